"""Examples that FT validation has in common with FT training, or that minibatches held out in turn share, are told."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, random_split
from torch.utils.data import TensorDataset as InMemory

import metapt
from metapt import MetaPretraining
from metapt.hypergrad import FittedHead, Unroll
from metapt.training import overlap

from .kinds import heard, warned
from .test_loaders import BATCH, DATA, LABELS, SHARED, Examples, X, arguments_of, batches_of

LOADER, SIGNS = DataLoader(DATA, 25), X.sign()
MANY = torch.randn(40_000, 6, generator=torch.Generator().manual_seed(2))
EDGES = torch.randint(400, (2, 900), generator=torch.Generator().manual_seed(1))


def shuffled(*sets: Any) -> tuple[Any, Any]:
    first, second = (DataLoader(each, 25, shuffle=True) for each in sets)
    return first, second


def part(start: int, end: int, kind: Any = InMemory) -> Any:
    return kind(X[start:end], LABELS[start:end])


def large(start: int, end: int) -> InMemory:
    return InMemory(MANY[start:end], MANY[start:end, 0])


SAME: dict[str, Callable[[], tuple[Any, Any]]] = {
    "one loader": lambda: (LOADER, LOADER),
    "data sets of copies": lambda: shuffled(*(InMemory(X[:100].clone(), LABELS[:100].clone()) for _ in "ab")),
    "overlapping parts of large tensors": lambda: shuffled(large(0, 30_000), large(29_900, 40_000)),
    "overlapping parts of a large tensor": lambda: ([(MANY[:30_000],)], [(MANY[29_900:],)]),
    "overlapping subsets": lambda: shuffled(Subset(SHARED, range(300)), Subset(SHARED, range(290, 400))),
    "subsets of a subset": lambda: (
        DataLoader(Subset(Subset(SHARED, range(100, 200)), range(50)), 25),
        DataLoader(SHARED, 25, sampler=SubsetRandomSampler(range(149, 200))),
    ),
    "sets of the user's class": lambda: shuffled(part(0, 100, Examples), part(0, 100, Examples)),
    "copies in two lists": lambda: ([BATCH], [(X[:50].clone(), LABELS[:50].clone())]),
    "one among several": lambda: ([(X[:50],), (X[50:60],)], [(X[70:99],), (X[50:60],)]),
    "mappings": lambda: ([{"x": X[:50], "y": LABELS[:50]}], [{"x": X[:50] + 0, "y": LABELS[:50] + 0}]),
    "a list and a loader": lambda: ([BATCH], DataLoader(DATA, 25)),
    "graphs": lambda: tuple([(X[:50], SimpleNamespace(x=X + 0, edges=EDGES))] for _ in "ab"),
    "few categories in one tensor": lambda: ([(SIGNS,)], [(SIGNS,)]),
}
common = warned(
    "the same examples in `train` and `validation`", "FT validation examples", "same", "FT training", "random_split"
)


@pytest.mark.parametrize("kind", SAME)
def test_common_examples_are_told_once(kind: str) -> None:
    batches = batches_of(*SAME[kind]())
    with heard() as messages:
        common(lambda: [(batches.train(), batches.validation()) for _ in range(8)])()
    assert len(messages) == 1


@pytest.mark.parametrize("kind", ["one loader", "overlapping subsets", "copies in two lists", "graphs"])
def test_a_check_and_a_run_tell_of_common_examples(kind: str) -> None:
    arguments = arguments_of(batches_of(*SAME[kind]()))
    common(metapt.check)(*arguments)
    common(lambda: MetaPretraining(*arguments).run())()


def categories(seed: int, count: int = 50) -> tuple[Tensor, Tensor]:
    found = torch.randint(2, (count, 4), generator=torch.Generator().manual_seed(seed)).float()
    return found[:, :3], found[:, 3]


def masked(part: slice) -> tuple[Tensor, Tensor, Tensor]:
    mask = torch.zeros(400, dtype=torch.bool)
    mask[part] = True
    return X, LABELS, mask


ORDER, HALVES = torch.randperm(400, generator=torch.Generator().manual_seed(3)), (slice(100), slice(100, 200))
DIFFERENT: dict[str, Callable[[], tuple[Any, Any]]] = {
    "random split": lambda: shuffled(*random_split(DATA, [50, 50])),
    "subsets": lambda: tuple(DataLoader(Subset(SHARED, part), 50) for part in (range(100), range(100, 150))),
    "samplers": lambda: tuple(
        DataLoader(DATA, 25, sampler=SubsetRandomSampler(part)) for part in (range(50), range(50, 100))
    ),
    "lists": lambda: ([(X[:50], LABELS[:50])], [(X[50:], LABELS[50:])]),
    "few examples that occur twice": lambda: ([(X[:200],)], [(torch.cat([X[195:200], X[200:]]),)]),
    "other parts of one permutation": lambda: tuple([(X[:100], ORDER[part])] for part in HALVES),
    "numbers of one permutation": lambda: tuple([(X, ORDER[part])] for part in HALVES),
    "few categories": lambda: ([categories(0)], [categories(1)]),
    "few categories in small minibatches": lambda: tuple(
        DataLoader(InMemory(*categories(seed, 12)), 4, shuffle=True) for seed in (2, 3)
    ),
    "windows of one tensor": lambda: tuple([(MANY[:100, part],)] for part in (slice(0, 3), slice(3, 6))),
    "columns of one tensor": lambda: tuple([(SIGNS[:, column],)] for column in (0, 1)),
    "masks": lambda: tuple([masked(part)] for part in HALVES),
    "masks of a graph": lambda: tuple([(SimpleNamespace(x=X, edges=EDGES), masked(part)[-1])] for part in HALVES),
    "numbers of nodes": lambda: ([(X, torch.arange(100))], [(X, torch.arange(100, 200))]),
    "no tensors": lambda: ([0], [0]),
    "one item for each user": lambda: tuple([(torch.arange(50), torch.arange(50) % 7 + shift)] for shift in (0, 7)),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_nothing_is_told_of_examples_that_are_apart(kind: str) -> None:
    batches = batches_of(*DIFFERENT[kind]())
    with heard() as messages:
        for _ in range(20):
            batches.train(), batches.validation()
    assert not messages


@pytest.mark.parametrize("kind", [InMemory, list])
def test_examples_are_looked_at_in_the_first_pass_only(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []
    monkeypatch.setattr(overlap, "examples", lambda batch: looks.append(batch) or [])
    train, validation = (DataLoader(kind(torch.arange(12.0)[:, None] + shift), 4) for shift in (0, 100))
    batches = batches_of(train, validation)
    for _ in range(20):
        batches.train(), batches.validation()
    assert len(looks) == (2 if kind is InMemory else 6) + 7  # the last of the first minibatch, which must not change


folds = warned("`cross_fit` with examples that two minibatches", "cross_fit", "same in two", "minibatches, 2")
CROSS, VALIDATION = FittedHead(l2=0.1, cross_fit=True, minibatches=2), [(X[100:150], LABELS[100:150])]


@pytest.mark.parametrize(
    "train", [DataLoader(part(0, 50), 50, shuffle=True), [BATCH, (X[25:75], LABELS[25:75])]], ids=["loader", "list"]
)
def test_minibatches_that_are_held_out_in_turn(train: Any) -> None:
    folds(metapt.check)(*(arguments := arguments_of(batches_of(train, VALIDATION), finetuning=CROSS)))
    folds(lambda: MetaPretraining(*arguments).run())()


def test_minibatches_of_two_passes_that_are_held_out_in_turn() -> None:
    batches = batches_of(DataLoader(part(0, 75), 25, shuffle=True), VALIDATION)  # three a pass, and two a call
    folds(MetaPretraining(*arguments_of(batches, finetuning=CROSS)).run)()


@pytest.mark.parametrize(
    ("train", "finetuning"),
    [(DataLoader(part(0, 100), 50, shuffle=True), CROSS), ([BATCH], CROSS), (DataLoader(DATA, 100), Unroll(2))],
    ids=["folds apart", "one minibatch", "no folds"],
)
def test_nothing_is_told_of_folds_that_are_apart_and_of_steps_on_one_minibatch(train: Any, finetuning: Any) -> None:
    with heard() as messages:
        metapt.check(*arguments_of(batches_of(train, VALIDATION), finetuning=finetuning))
    assert not messages
