"""Minibatches and loaders.

Orders are those of a plain loop, examples that are not apart are told, and what is no loader is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler

import metapt
from metapt import LoaderBatches, MetaPretraining, MetaSettings, ModuleProblem, OptimizerSpec
from metapt.errors import ConfigError
from metapt.hypergrad import FittedHead, Identity
from metapt.training.checkpoint import Checkpoint

from .kinds import refused, right

X = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
LABELS = (X[:, 0] > 0).float()
META = {"w": torch.zeros(6)}


class Examples(Dataset[Any]):
    """Tensors in a class of the user."""

    def __init__(self, x: Tensor, labels: Tensor) -> None:
        self.x, self.labels = x, labels

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.labels[index]


DATA = TensorDataset(X[:100], LABELS[:100])
BATCH = (X[:50], LABELS[:50])
SHARED = Examples(X, LABELS)


def batches_of(train: Any, validation: Any, pretrain: Any = None, **how: Any) -> LoaderBatches:
    pretrain = [(X, LABELS)] if pretrain is None else pretrain
    return LoaderBatches(pretrain=pretrain, train=train, validation=validation, **how)


def arguments_of(
    batches: LoaderBatches, *, encoder: nn.Module | None = None, loss: Callable[..., Tensor] | None = None, **how: Any
) -> tuple[Any, ...]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        problem = ModuleProblem(
            encoder or nn.Linear(6, 4),
            nn.Linear(4, 6),
            nn.Linear(4, 1),
            pretrain_loss=loss or pretrain_loss,
            finetune_loss=lambda head, features, batch: (head(features) - 1).square().mean(),
            encode=lambda encoder, batch: encoder(next(iter(batch.values())) if isinstance(batch, dict) else batch[0]),
        )
    settings = MetaSettings(**{"iterations": 8, "inverse": Identity(), "finetuning": FittedHead(l2=0.1)} | how)
    return problem, batches, problem.pretrained, META, problem.head, settings


def pretrain_loss(encoder: nn.Module, head: nn.Module, meta: Any, batch: Any) -> Tensor:
    return ((head(encoder(batch[0])) - batch[0]).square() * meta["w"].exp()).mean()


# Orders of passes


class Ordered(Sampler[int]):
    """The numbers to 11, in an order that the number of the pass decides while it is given."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        for place in range(12):
            yield (place * 5 + self.epoch) % 12


class OrderedBatches(Ordered):
    def __iter__(self) -> Iterator[Any]:
        numbers = list(super().__iter__())
        yield from (numbers[:4], numbers[4:8], numbers[8:])


class Shifted(Dataset[int]):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index + 100 * self.epoch


class Stream(IterableDataset[int]):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(12, generator=torch.Generator().manual_seed(self.epoch)).tolist()


class Own:
    """A loader that is none of torch's."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Tensor]:
        yield from (torch.arange(12) + self.epoch).split(4)


LOADERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "distributed": lambda: with_sampler(DistributedSampler(range(12), num_replicas=1, rank=0, shuffle=True)),
    "one of two": lambda: with_sampler(DistributedSampler(range(24), num_replicas=2, rank=1, shuffle=True)),
    "sampler": lambda: with_sampler(Ordered()),
    "batch sampler": lambda: (DataLoader(range(12), batch_sampler=(own := OrderedBatches())), own),
    "in a batch sampler": lambda: (
        DataLoader(range(12), batch_sampler=BatchSampler(own := Ordered(), 4, drop_last=False)),
        own,
    ),
    "data set": lambda: (DataLoader(own := Shifted(), 4), own),
    "in a subset": lambda: (DataLoader(Subset(own := Shifted(), range(12)), 4), own),
    "stream": lambda: (DataLoader(own := Stream(), 4), own),
    "own loader": lambda: (own := Own(), own),
}


def with_sampler(sampler: Any) -> tuple[Any, Any]:
    return DataLoader(range(24), 4, sampler=sampler), sampler


def plain_loop(kind: str, passes: int) -> list[Tensor]:
    loader, counted = LOADERS[kind]()
    found = []
    for number in range(passes):
        counted.set_epoch(number)
        found += list(loader)
    return found


EPOCHS = "`DistributedSampler`, and any sampler, data set or loader with `set_epoch`"


@pytest.mark.parametrize("kind", LOADERS)
@right(EPOCHS, "leave `set_epoch` to metapt")
def test_orders_of_passes(kind: str) -> tuple[Any, Any]:
    batches = batches_of([0], [1], LOADERS[kind]()[0])
    return [batches.pretrain().batch for _ in range(12)], plain_loop(kind, 4)


@pytest.mark.parametrize("kind", LOADERS)
@right(EPOCHS, "leave `set_epoch` to metapt")
def test_orders_of_passes_with_hypergradients_from_the_same_loader(kind: str) -> tuple[Any, Any]:
    batches = batches_of([0], [1], LOADERS[kind]()[0])
    found = []
    for _ in range(12):
        found.append(batches.pretrain().batch)
        batches.hypergradient(), batches.hypergradient()
    return found, plain_loop(kind, 4)


@pytest.mark.parametrize("taken", [0, 3, 7, 11])
@pytest.mark.parametrize("kind", LOADERS)
@right(EPOCHS, "leave `set_epoch` to metapt")
def test_orders_of_the_passes_of_a_resumed_run(kind: str, taken: int) -> tuple[Any, Any]:
    before = batches_of([0], [1], LOADERS[kind]()[0])
    for _ in range(taken):
        before.pretrain()
    after = batches_of([0], [1], LOADERS[kind]()[0])
    after.load_state_dict(before.state_dict())
    return [after.pretrain().batch for _ in range(12 - taken)], plain_loop(kind, 4)[taken:]


# What is no loader

PAIR = "`[(x, y)]`, a list of one minibatch"


@pytest.mark.parametrize("name", ["pretrain", "train", "validation", "hypergradient"])
@pytest.mark.parametrize("given", [(X, LABELS), (X,), (X, (LABELS, LABELS))])
@refused("`train=(x, y)`", ("tuple of tensors", "[(x, y)]"), PAIR)
def test_a_tuple_of_tensors(name: str, given: Any) -> None:
    LoaderBatches(**{"pretrain": [BATCH], "train": [BATCH], "validation": [BATCH]} | {name: given})


@refused("`train=[x, y]`", ("list of unlike tensors", "[(x, y)]"), PAIR)
def test_a_list_of_unlike_tensors() -> None:
    batches_of([X, LABELS], [BATCH])


@pytest.mark.parametrize(
    "given",
    [X, X.numpy(), {"x": X}, "train", SimpleNamespace(x=X, to=lambda device: None)],
    ids=[*"abcde"],
)
@refused("`train=x` (tensor, array, mapping, graph)", ("one minibatch", "[minibatch]", "DataLoader"), PAIR)
def test_one_minibatch(given: Any) -> None:
    batches_of(given, [BATCH])


@pytest.mark.parametrize("given", [DATA, SHARED, Subset(SHARED, range(9)), Stream()])
@refused(
    "`train=dataset`",
    ("data set", "single examples", "DataLoader(dataset, batch_size=...)"),
    "`DataLoader(dataset, batch_size=...)`",
)
def test_a_data_set(given: Any) -> None:
    batches_of(given, [BATCH])


@refused("`DataLoader(dataset, batch_size=None)` of single examples", ("batch_size=None", "single"), "`batch_size=...`")
def test_a_loader_of_single_examples() -> None:
    batches_of(DataLoader(DATA, batch_size=None), [BATCH])


@pytest.mark.parametrize("given", [DataLoader, lambda: [BATCH], 3, None])
@refused("`train=DataLoader` (the class), a function", ("minibatches of train", "legal", "DataLoader"), "a loader")
def test_no_loader_at_all(given: Any) -> None:
    batches_of(given, [BATCH])


@refused("`train=[x]`, without `encode`", ("is a tensor", "first example", "encode="), "`[(x, y)]`, or `encode=`")
def test_a_minibatch_that_is_a_tensor() -> None:
    batches = batches_of([X[:50]], [X[50:]])
    problem = ModuleProblem(
        nn.Linear(6, 4),
        nn.Linear(4, 6),
        nn.Linear(4, 1),
        pretrain_loss=pretrain_loss,
        finetune_loss=lambda head, features, batch: (head(features) - 1).square().mean(),
    )
    metapt.check(problem, batches, problem.pretrained, META, problem.head, MetaSettings(2))


@pytest.mark.parametrize("given", [iter([BATCH]), (batch for batch in [BATCH])])
@refused("an iterator, a generator", ("only once", "DataLoader", "list"), "what can be passed through again")
def test_an_iterator(given: Any) -> None:
    batches_of(given, [BATCH])


@pytest.mark.parametrize("given", [[], DataLoader(DATA, 200, drop_last=True)])
@refused("a loader without a minibatch", ("loader of train", "no minibatch"), "a smaller `batch_size`")
def test_a_loader_without_a_minibatch(given: Any) -> None:
    batches_of(given, [BATCH]).train()


@pytest.mark.parametrize(
    "given",
    [
        [0],
        [X],
        [X, X + 1],
        [BATCH, BATCH],
        (BATCH, BATCH),
        [{"x": X}],
        [np.zeros(3)],
        DataLoader([BATCH], batch_size=None),
        DataLoader(TensorDataset(X[None], LABELS[None]), batch_size=None),
        Own(),
    ],
)
def test_what_is_a_loader(given: Any) -> None:
    assert batches_of(given, [1], given).train() is not None


# Errors in a loss


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 4), nn.BatchNorm1d(4))


LAST = "a last minibatch of one example, with BatchNorm"


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("form", ["loader", "list"])
@refused(LAST, ("BatchNorm", "minibatch 3 of pass 1", "`pretrain`", "[1, 6]", "drop_last=True"), "`drop_last=True`")
def test_a_pass_that_ends_with_one_example(form: str, reuse: bool) -> None:
    data = TensorDataset(X[:21], LABELS[:21])
    loader = DataLoader(data, 10) if form == "loader" else list(zip(X[:21].split(10), LABELS[:21].split(10)))  # noqa: B905
    batches = batches_of([BATCH], [(X[50:], LABELS[50:])], loader)
    MetaPretraining(*arguments_of(batches, encoder=Normed(), reuse_gradient=reuse)).run()


@refused(LAST, ("BatchNorm", "minibatch 2 of pass 1", "`hypergradient`", "drop_last=True"), "`drop_last=True`")
def test_a_pass_of_hypergradients_that_ends_with_one_example() -> None:
    loader = DataLoader(TensorDataset(X[:11]), 10)
    batches = batches_of([BATCH], [(X[50:], LABELS[50:])], hypergradient=loader)
    MetaPretraining(*arguments_of(batches, encoder=Normed())).run()


@refused(LAST, ("BatchNorm", "minibatch 3 of pass 2", "`pretrain`", "drop_last=True"), "`drop_last=True`")
def test_a_pass_of_a_plain_resumed_run_that_ends_with_one_example(tmp_path: Any) -> None:
    def run(count: int, rows: int) -> None:
        problem, *_ = arguments_of(batches_of([0], [1]), encoder=Normed())
        loader = DataLoader(TensorDataset(X[:rows]), 10)
        pretrainer = metapt.Pretrainer(problem, batches_of([0], [1], loader), problem.pretrained, OptimizerSpec())
        pretrainer.run(META, count, checkpoint=Checkpoint(tmp_path / "checkpoint", "run"))

    run(4, 30)
    run(9, 21)


@pytest.mark.parametrize("error", [ValueError, KeyError, RuntimeError, ZeroDivisionError])
def test_an_error_of_a_loss_keeps_its_type_and_says_where_it_comes_from(error: type[Exception]) -> None:
    def loss(encoder: nn.Module, head: nn.Module, meta: Any, batch: Any) -> Tensor:
        if len(batch[0]) < 10:
            raise error("the user's")
        return pretrain_loss(encoder, head, meta, batch)

    batches = batches_of([BATCH], [(X[50:], LABELS[50:])], DataLoader(TensorDataset(X[:24], LABELS[:24]), 10))
    with pytest.raises(error, match="the user's") as found:
        MetaPretraining(*arguments_of(batches, loss=loss)).run()
    assert found.traceback[-1].name == "loss"
    (note,) = found.value.__notes__
    for words in ("minibatch 3 of pass 1 of the loader `pretrain`", "[4, 6] and [4]", "4 of 10", "drop_last=True"):
        assert words in note


def test_an_error_in_fine_tuning_says_which_minibatches_were_in_use() -> None:
    arguments = arguments_of(batches_of([BATCH], [(X[50:, :5], LABELS[50:])]))
    for call in (lambda: metapt.check(*arguments), lambda: MetaPretraining(*arguments).run()):
        with pytest.raises(RuntimeError, match="cannot be multiplied") as found:
            call()
        (note,) = found.value.__notes__
        for words in ("loader `train` ([50, 6]", "loader `validation` ([350, 5]", "loader `hypergradient`"):
            assert words in note


def test_an_error_of_a_data_set_says_which_loader_it_comes_from() -> None:
    class Broken(Examples):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)[:1] if index < 15 else {}["x"]

    arguments = arguments_of(batches_of([BATCH], [(X[50:], LABELS[50:])], DataLoader(Broken(X, LABELS), 10)))
    with pytest.raises(KeyError) as found:
        MetaPretraining(*arguments).run()
    (note,) = found.value.__notes__
    assert "failed to give minibatch 2 of pass 1 of the loader `hypergradient`" in note or "`pretrain`" in note


def test_a_sentence_of_ours_has_no_note() -> None:
    arguments = arguments_of(batches_of([], [BATCH]))
    with pytest.raises(ConfigError) as found:
        MetaPretraining(*arguments).run()
    assert not hasattr(found.value, "__notes__")
