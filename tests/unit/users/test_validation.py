"""Training and validation examples.

Examples that FT validation has in common with FT training are told, by a check and by a run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, TensorDataset, random_split

import metapt
from metapt import MetaPretraining
from metapt.hypergrad import FittedHead, Unroll

from .kinds import Heard, warned
from .test_loaders import BATCH, DATA, LABELS, SHARED, Examples, X, arguments_of, batches_of


def told(function: Callable[[], object]) -> list[str]:
    heard = Heard()
    logging.getLogger("metapt.training.loaders").addHandler(heard)
    try:
        function()
    finally:
        logging.getLogger("metapt.training.loaders").removeHandler(heard)
    return heard.messages


ONE = DataLoader(DATA, 25)
MANY = torch.randn(40_000, 6, generator=torch.Generator().manual_seed(2))
EDGES = torch.randint(400, (2, 900), generator=torch.Generator().manual_seed(1))
SAME: dict[str, Callable[[], tuple[Any, Any]]] = {
    "one loader": lambda: (ONE, ONE),
    "two loaders of a data set": lambda: (DataLoader(DATA, 25, shuffle=True), DataLoader(DATA, 50)),
    "data sets of the same tensors": lambda: tuple(
        DataLoader(TensorDataset(X[:100], LABELS[:100]), 25, shuffle=True) for _ in range(2)
    ),
    "data sets of copies": lambda: tuple(
        DataLoader(TensorDataset(X[:100].clone(), LABELS[:100].clone()), 25, shuffle=True) for _ in range(2)
    ),
    "overlapping parts of tensors": lambda: tuple(
        DataLoader(TensorDataset(X[part], LABELS[part]), 25, shuffle=True) for part in (slice(300), slice(200, 400))
    ),
    "overlapping parts of large tensors": lambda: tuple(
        DataLoader(TensorDataset(MANY[part], MANY[part, 0]), 25, shuffle=True)
        for part in (slice(30_000), slice(29_900, 40_000))
    ),
    "overlapping parts of a large tensor": lambda: ([(MANY[:30_000],)], [(MANY[29_900:],)]),
    "overlapping subsets": lambda: tuple(
        DataLoader(Subset(SHARED, part), 25, shuffle=True) for part in (range(300), range(290, 400))
    ),
    "subsets of a subset": lambda: (
        DataLoader(Subset(Subset(SHARED, range(100, 200)), range(50)), 25),
        DataLoader(SHARED, 25, sampler=SubsetRandomSampler(range(149, 200))),
    ),
    "a list of one minibatch": lambda: ([BATCH], [BATCH]),
    "the tensors in two lists": lambda: ([(X[:50], LABELS[:50])], [(X[:50], LABELS[:50])]),
    "copies in two lists": lambda: ([BATCH], [(X[:50].clone(), LABELS[:50].clone())]),
    "some of them": lambda: ([BATCH], [(X[40:90], LABELS[40:90])]),
    "one among several": lambda: ([(X[:50],), (X[50:60],)], [(X[70:99],), (X[50:60],)]),
    "mappings": lambda: ([{"x": X[:50], "y": LABELS[:50]}], [{"x": X[:50] + 0, "y": LABELS[:50] + 0}]),
    "a list and a loader": lambda: ([BATCH], DataLoader(DATA, 25)),
    "graphs": lambda: tuple([(X[:50], SimpleNamespace(x=X + 0, edges=EDGES))] for _ in range(2)),
    "few categories in one tensor": lambda: ([(C,)], [(C,)]),
}
C = X.sign()
APART = "`random_split`, or other sets without common examples"
WORDS = ("FT validation examples", "same", "FT training", "random_split")


@pytest.mark.parametrize("kind", SAME)
@warned("the same examples in `train` and `validation`, or some of them", WORDS, APART)
def test_check_tells_of_common_examples(kind: str) -> None:
    metapt.check(*arguments_of(batches_of(*SAME[kind]())))


@pytest.mark.parametrize("kind", SAME)
@warned("the same examples in `train` and `validation`, or some of them", WORDS, APART)
def test_a_run_tells_of_common_examples(kind: str) -> None:
    MetaPretraining(*arguments_of(batches_of(*SAME[kind]()))).run()


@pytest.mark.parametrize("part", [slice(100), slice(50, 150)])
@warned("the same examples in `train` and `validation`, or some of them", WORDS, APART)
def test_a_run_tells_of_common_examples_of_two_data_sets_of_the_users_class(part: slice) -> None:
    train = DataLoader(Examples(X[:100], LABELS[:100]), 20, shuffle=True)
    validation = DataLoader(Examples(X[part], LABELS[part]), 20, shuffle=True)
    MetaPretraining(*arguments_of(batches_of(train, validation))).run()


@warned("the same examples in `train` and `validation`, or some of them", WORDS, APART)
def test_a_run_tells_of_them_after_a_check() -> None:
    arguments = arguments_of(batches_of(*SAME["copies in two lists"]()))
    logging.disable()
    metapt.check(*arguments)
    logging.disable(logging.NOTSET)
    MetaPretraining(*arguments).run()


def categories(seed: int, count: int = 50) -> tuple[Tensor, Tensor]:
    found = torch.randint(2, (count, 4), generator=torch.Generator().manual_seed(seed)).float()
    return found[:, :3], found[:, 3]


def masked(part: slice) -> tuple[Tensor, Tensor, Tensor]:
    mask = torch.zeros(400, dtype=torch.bool)
    mask[part] = True
    return X, LABELS, mask


ORDER = torch.randperm(400, generator=torch.Generator().manual_seed(3))
DIFFERENT: dict[str, Callable[[], tuple[Any, Any]]] = {
    "random split": lambda: tuple(DataLoader(part, 50, shuffle=True) for part in random_split(DATA, [50, 50])),
    "subsets": lambda: tuple(DataLoader(Subset(SHARED, part), 50) for part in (range(100), range(100, 150))),
    "samplers": lambda: tuple(
        DataLoader(DATA, 25, sampler=SubsetRandomSampler(part)) for part in (range(50), range(50, 100))
    ),
    "lists": lambda: ([(X[:50], LABELS[:50])], [(X[50:], LABELS[50:])]),
    "few examples that occur twice": lambda: ([(X[:200],)], [(torch.cat([X[195:200], X[200:]]),)]),
    "other parts of one permutation": lambda: tuple([(X[:100], ORDER[part])] for part in (slice(100), slice(100, 200))),
    "numbers of one permutation": lambda: tuple([(X, ORDER[part])] for part in (slice(100), slice(100, 200))),
    "few categories": lambda: ([categories(0)], [categories(1)]),
    "few categories in small minibatches": lambda: tuple(
        DataLoader(TensorDataset(*categories(seed, 12)), 4, shuffle=True) for seed in (2, 3)
    ),
    "masks": lambda: ([masked(slice(100))], [masked(slice(100, 200))]),
    "masks of a graph": lambda: tuple(
        [(SimpleNamespace(x=X, edges=EDGES), masked(part)[-1])] for part in (slice(100), slice(100, 200))
    ),
    "numbers of nodes": lambda: ([(X, torch.arange(100))], [(X, torch.arange(100, 200))]),
    "no tensors": lambda: ([0], [0]),
    "one item for each user": lambda: (
        [(torch.arange(50), torch.arange(50) % 7)],
        [(torch.arange(50), torch.arange(50) % 7 + 7)],
    ),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_nothing_is_told_of_examples_that_are_apart(kind: str) -> None:
    batches = batches_of(*DIFFERENT[kind]())
    heard = told(lambda: [(batches.train(), batches.validation()) for _ in range(20)])
    assert not heard


def test_it_is_told_once() -> None:
    batches = batches_of(*SAME["copies in two lists"]())
    assert len(told(lambda: [(batches.train(), batches.validation()) for _ in range(5)])) == 1


FOLDS = "`cross_fit` with an example in two minibatches of a call"
MULTIPLE = "passes of a multiple of the FT solver's minibatches"


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    "train",
    [
        DataLoader(TensorDataset(X[:50], LABELS[:50]), 50, shuffle=True),
        [(X[:50], LABELS[:50]), (X[25:75], LABELS[25:75])],
    ],
)
@warned(FOLDS, ("cross_fit", "same in two", "multiple", "minibatches, 2"), MULTIPLE)
def test_minibatches_that_are_held_out_in_turn(train: Any, check: bool) -> None:
    solver = FittedHead(l2=0.1, cross_fit=True, minibatches=2)
    arguments = arguments_of(batches_of(train, [(X[100:150], LABELS[100:150])]), finetuning=solver)
    if check:
        metapt.check(*arguments)
    else:
        MetaPretraining(*arguments).run()


def test_nothing_is_told_of_folds_that_are_apart_and_of_steps_on_one_minibatch() -> None:
    validation = [(X[100:150], LABELS[100:150])]
    folds = DataLoader(TensorDataset(X[:100], LABELS[:100]), 50, shuffle=True)
    solver = FittedHead(l2=0.1, cross_fit=True, minibatches=2)
    for train, finetuning in ((folds, solver), ([BATCH], solver), (DataLoader(DATA, 100), Unroll(2))):
        arguments = arguments_of(batches_of(train, validation), finetuning=finetuning)
        assert not told(lambda given=arguments: metapt.check(*given))
