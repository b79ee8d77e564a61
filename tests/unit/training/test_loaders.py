"""Loaders: the order of a plain loop, the same for a seed, and on from a saved state; what is no loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
)
from torch.utils.data import TensorDataset as InMemory
from torch.utils.data.distributed import DistributedSampler

import metapt
from metapt import LoaderBatches, MetaPretraining, MetaSettings, ModuleProblem, OptimizerSpec
from metapt.errors import ConfigError
from metapt.hypergrad import FittedHead, Identity
from metapt.training.checkpoint import Checkpoint
from metapt.training.loaders import moved
from metapt.training.seeds import Seeded

from .kinds import heard, refused, right

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


DATA = InMemory(X[:100], LABELS[:100])
BATCH, REST = (X[:50], LABELS[:50]), (X[50:], LABELS[50:])
SHARED = Examples(X, LABELS)


def batches_of(train: Any, validation: Any, pretrain: Any = None, **how: Any) -> LoaderBatches:
    pretrain = [(X, LABELS)] if pretrain is None else pretrain
    return LoaderBatches(pretrain=pretrain, train=train, validation=validation, **how)


def of_pt(loader: Any, **how: Any) -> LoaderBatches:
    return batches_of([torch.zeros(1)], [torch.ones(1)], loader, **how)


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


# Draws follow from the seed and the state


class Noisy(Dataset[Tensor]):
    """Examples that draw from torch's global generator, or from one of their own; or how they are put together."""

    def __init__(self, draws: torch.Generator | None = None) -> None:
        self.draws = draws

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        return index + torch.rand((), generator=self.draws)

    def __call__(self, found: list[Any]) -> Tensor:
        return torch.stack([each[0] + self[0] for each in found])


class Shuffled(Sampler[int]):
    """A sampler with a generator of its own, or that of another."""

    def __init__(self, other: Shuffled | None = None) -> None:
        self.draws, self.sampler = None if other else torch.Generator(), other

    def __iter__(self) -> Iterator[int]:
        return iter(self.sampler or torch.randperm(10, generator=self.draws).tolist())


NUMBERS = InMemory(torch.arange(10))


def sampler(**how: Any) -> RandomSampler:
    return RandomSampler(NUMBERS, generator=torch.Generator(), **how)


DRAWING: dict[str, Callable[[], DataLoader[Any]]] = {
    "generator": lambda: DataLoader(NUMBERS, 4, shuffle=True, generator=torch.Generator()),
    "replacement": lambda: DataLoader(NUMBERS, 4, sampler=sampler(replacement=True)),
    "batch sampler": lambda: DataLoader(NUMBERS, batch_sampler=BatchSampler(sampler(), 4, False)),
    "own sampler": lambda: DataLoader(NUMBERS, 4, sampler=Shuffled()),
    "deep": lambda: DataLoader(NUMBERS, batch_sampler=BatchSampler(Shuffled(Shuffled()), 4, False)),
    "own draws": lambda: DataLoader(Noisy(torch.Generator()), 4),
    "subset": lambda: DataLoader(ConcatDataset([Subset(Noisy(torch.Generator()), range(6))]), 4),
    "collate": lambda: DataLoader(NUMBERS, 4, collate_fn=Noisy(torch.Generator())),
    "noisy": lambda: DataLoader(Noisy(), 4, shuffle=True),
    "workers": lambda: DataLoader(Noisy(), 4, shuffle=True, num_workers=1),
    "persistent": lambda: DataLoader(NUMBERS, 4, shuffle=True, num_workers=1, persistent_workers=True),
}


def taken(batches: LoaderBatches, count: int) -> list[Any]:
    """Return PT minibatches as lists, alternating with those of hypergradients."""
    found = []
    for _ in range(count):
        for batch in (batches.pretrain(), batches.hypergradient()):
            assert isinstance(batch, Seeded)
            values = batch.batch[0] if isinstance(batch.batch, list) else batch.batch
            found.append((values.tolist(), batch.seed))
    return found


@pytest.mark.parametrize("kind", DRAWING)
def test_minibatches_follow_from_the_seed_and_the_state(kind: str) -> None:
    batches = of_pt(DRAWING[kind]())
    before = torch.manual_seed(1).get_state()
    first = taken(batches, 4)  # to the second pass
    state = batches.state_dict()
    rest = taken(batches, 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert len({seed for _, seed in first + rest}) == 14
    again = of_pt(DRAWING[kind]())
    torch.rand(3)
    assert taken(again, 4) == first
    other = of_pt(DRAWING[kind]())
    other.load_state_dict(state)
    assert taken(other, 3) == rest
    assert taken(of_pt(DRAWING[kind](), seed=1), 4) != first


@pytest.mark.parametrize("own", [None, torch.Generator()])
def test_what_a_data_set_draws_does_not_depend_on_the_order_of_its_examples(own: torch.Generator | None) -> None:
    class Drawn(Noisy):
        def __getitem__(self, index: int) -> Tensor:
            return torch.stack([torch.tensor(index), torch.randint(6, (), generator=self.draws)])

    batches = of_pt(DataLoader(Drawn(own), 6, shuffle=True, generator=torch.Generator()))
    first = [batches.pretrain().batch[0] for _ in range(100)]
    assert sum(int(index == draw) for index, draw in first) < 35


def test_a_list_gives_the_same_minibatch_itself_so_that_it_is_encoded_once() -> None:
    given = [torch.zeros(1)]
    batches = batches_of(given, [torch.ones(1)])
    assert batches.train() is batches.train() is given[0]
    on_device = batches_of([[torch.zeros(1)]], [[torch.ones(1)]], [0], device="meta")
    assert on_device.train() is on_device.train()
    assert on_device.validation() is on_device.validation()


def test_a_loader_with_fewer_minibatches_than_the_run_had_is_refused() -> None:
    taken(batches := of_pt(DataLoader(NUMBERS, 2)), 4)
    with pytest.raises(ConfigError, match="had taken 4 minibatches of pretrain in a pass, and the loader gives fewer"):
        of_pt(DataLoader(NUMBERS, 5)).load_state_dict(batches.state_dict())


def test_the_minibatches_of_another_seed_are_refused() -> None:
    state = of_pt(DataLoader(NUMBERS, 2), seed=np.int64(0)).state_dict()
    assert type(state["seed"]) is int, "a checkpoint keeps no number of NumPy"
    with pytest.raises(ConfigError, match="its seed was 0, and that of LoaderBatches is 1 now"):
        of_pt(DataLoader(NUMBERS, 2), seed=1).load_state_dict(state)


class Pair(NamedTuple):
    x: Tensor
    name: str


def test_tensors_are_moved_wherever_a_minibatch_has_them() -> None:
    batch = {"a": [torch.zeros(2)], "b": Pair(torch.zeros(1), "name"), "c": (torch.zeros(3), 4)}
    there = moved(batch, "meta")
    assert there["a"][0].device.type == there["b"].x.device.type == there["c"][0].device.type == "meta"
    assert there["b"].name == "name"
    assert there["c"][1] == 4


# Orders of passes


class Epochs:
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 12


class Ordered(Epochs, Sampler[int]):
    """The numbers to 11, in an order that the number of the pass decides while it is given."""

    def __iter__(self) -> Iterator[int]:
        for place in range(12):
            yield (place * 5 + self.epoch) % 12


class OrderedBatches(Ordered):
    def __iter__(self) -> Iterator[Any]:
        self.left = list(super().__iter__())  # the place in the pass is an attribute
        while self.left:
            yield [self.left.pop(0) for _ in range(4)]


class Shifted(Epochs, Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index + 100 * self.epoch


class Stream(Epochs, IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        self.left = torch.randperm(12, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.left:
            yield self.left.pop(0)


class Own(Epochs):
    def __iter__(self) -> Iterator[Tensor]:
        self.left = list((torch.arange(12) + self.epoch).split(4))  # the place in the pass is an attribute
        while self.left:
            yield self.left.pop(0)


class Around:
    """Another's loader, as one that moves minibatches."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


WORKER: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}
LOADERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "one of two": lambda: (DataLoader(range(24), 4, sampler=(own := DistributedSampler(range(24), 2, 1))), own),
    "sampler": lambda: (DataLoader(range(24), 4, sampler=(own := Ordered())), own),
    "batch sampler": lambda: (DataLoader(range(12), batch_sampler=(own := OrderedBatches())), own),
    "in a batch sampler": lambda: (DataLoader(range(12), batch_sampler=BatchSampler(own := Ordered(), 4, False)), own),
    "data set": lambda: (DataLoader(own := Shifted(), 4), own),
    "in a subset": lambda: (DataLoader(Subset(own := Shifted(), range(12)), 4), own),
    "stream": lambda: (DataLoader(own := Stream(), 4), own),
    "own loader": lambda: (own := Own(), own),
    "around a loader": lambda: (Around(DataLoader(range(12), 4, sampler=(own := Ordered()), **WORKER)), own),
}
EPOCHS = "`DistributedSampler`, and any sampler, data set or loader with `set_epoch`"


def plain_loop(kind: str, passes: int) -> list[Tensor]:
    loader, counted = LOADERS[kind]()
    found = []
    for number in range(passes):
        counted.set_epoch(number)
        found += list(loader)
    return found


@pytest.mark.parametrize("taken", [0, 3, 7])
@pytest.mark.parametrize("kind", LOADERS)
@right(EPOCHS)
def test_orders_of_the_passes_of_a_run_and_of_one_that_is_resumed(kind: str, taken: int) -> tuple[Any, Any]:
    loader, found = LOADERS[kind]()[0], []
    before, after, another = of_pt(loader), of_pt(loader), of_pt(loader)
    for _ in range(taken):
        before.pretrain()
    after.load_state_dict(before.state_dict())
    for _ in range(12 - taken):
        found.append(after.pretrain().batch)
        for other in (after.hypergradient, after.hypergradient, another.pretrain):
            other()
    return found, plain_loop(kind, 4)[taken:]


# What is no loader

PAIR = "`train=(x, y)`, for any of the loaders", "tuple of tensors", "[(x, y)]"
GRAPH = SimpleNamespace(x=X, to=lambda device: None)
ONE = "`train=x`: a tensor, an array, a mapping, a graph", "one minibatch", "[minibatch]", "DataLoader"
SET = "`train=dataset`", "data set", "DataLoader(dataset, batch_size=...)"
CLASS = "`train=DataLoader` (the class), a function", "minibatches of train", "legal"
ONCE = "an iterator, a generator", "only once", "DataLoader", "list"
EMPTY = "a loader without a minibatch", "loader of train", "no minibatch"
NO_LOADER: list[tuple[tuple[str, ...], list[Any]]] = [
    (PAIR, [(X, LABELS), (X,), (X, (LABELS, LABELS))]),
    (("`train=[x, y]`", "list of unlike tensors", "[(x, y)]"), [[X, LABELS]]),
    (ONE, [X, X.numpy(), {"x": X}, "train", GRAPH]),
    (SET, [DATA, SHARED, Subset(SHARED, [1]), Stream()]),
    (("`DataLoader(dataset, batch_size=None)` of single examples", "single"), [DataLoader(DATA, batch_size=None)]),
    (CLASS, [DataLoader, lambda: [BATCH], None]),
    (ONCE, [iter([BATCH]), (batch for batch in [BATCH])]),
    (EMPTY, [[], DataLoader(DATA, 200, drop_last=True)]),
]


@pytest.mark.parametrize(("refuses", "given"), [(refused(*row), each) for row, given in NO_LOADER for each in given])
def test_what_is_no_loader_is_refused(refuses: Callable[..., Any], given: Any) -> None:
    refuses(lambda: batches_of(given, [BATCH]).train())()


@pytest.mark.parametrize("name", ["pretrain", "validation", "hypergradient"])
@refused(*PAIR)
def test_each_loader_is_looked_at(name: str) -> None:
    LoaderBatches(**{"pretrain": [BATCH], "train": [BATCH], "validation": [BATCH]} | {name: BATCH})


@refused("`train=[x]`, without `encode`", "is a tensor", "first example", "encode=")
def test_a_minibatch_that_is_a_tensor() -> None:
    losses = {"pretrain_loss": pretrain_loss, "finetune_loss": lambda head, features, _: head(features).mean()}
    problem = ModuleProblem(nn.Linear(6, 4), nn.Linear(4, 6), nn.Linear(4, 1), **losses)
    batches = batches_of([X[:50]], [X[50:]])
    metapt.check(problem, batches, problem.pretrained, META, problem.head, MetaSettings(2))


LISTS: list[Any] = [[0], [X], [X, X + 1], [BATCH, BATCH], (BATCH, BATCH), [{"x": X}], [np.zeros(3)]]
ONES = DataLoader([BATCH], batch_size=None), DataLoader(InMemory(X[None], LABELS[None]), batch_size=None)


@pytest.mark.parametrize("given", [*LISTS, *ONES, Own()])
def test_what_is_a_loader(given: Any) -> None:
    assert batches_of(given, [1], given).train() is not None


def test_a_minibatch_without_examples_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^minibatch 1 of pass 1 of the loader `validation` \(.*\) has no examples"):
        batches_of([BATCH], DataLoader(DATA, 4, collate_fn=lambda found: (X[:0], LABELS[:0]))).validation()


# Errors in a loss


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))


LAST = "a last minibatch of one example, with BatchNorm", "BatchNorm", "drop_last=True"
ROWS_21 = InMemory(X[:21], LABELS[:21])
THIRD = "minibatch 3 of pass 1", "`pretrain`", "[1, 6]"
ENDS: list[tuple[tuple[str, ...], dict[str, Any], bool]] = [
    (THIRD, {"pretrain": DataLoader(ROWS_21, 10)}, True),
    (THIRD, {"pretrain": [*zip(X[:21].split(10), "abc", strict=True)]}, False),
    (("minibatch 2 of pass 1", "`hypergradient`"), {"hypergradient": DataLoader(InMemory(X[:11]), 10)}, False),
]


@pytest.mark.parametrize(("words", "loaders", "reuse"), ENDS)
def test_a_pass_that_ends_with_one_example(words: tuple[str, ...], loaders: dict[str, Any], reuse: bool) -> None:
    arguments = arguments_of(batches_of([BATCH], [REST], **loaders), encoder=normed(), reuse_gradient=reuse)
    refused(*LAST, *words)(MetaPretraining(*arguments).run)()


@refused(*LAST, "minibatch 3 of pass 2", "`pretrain`")
def test_a_pass_of_a_plain_resumed_run_that_ends_with_one_example(tmp_path: Any) -> None:
    for count, rows in ((4, 30), (9, 21)):
        batches = of_pt(DataLoader(InMemory(X[:rows]), 10))
        problem, *_ = arguments_of(batches, encoder=normed())
        pretrainer = metapt.Pretrainer(problem, batches, problem.pretrained, OptimizerSpec())
        pretrainer.run(META, count, checkpoint=Checkpoint(tmp_path / "checkpoint", "run"))


def noted(error: type[Exception], call: Callable[[], object]) -> tuple[Any, str]:
    """Return an error with the one note that it has."""
    with pytest.raises(error) as found:
        call()
    (note,) = found.value.__notes__
    return found, note


@pytest.mark.parametrize("error", [ValueError, KeyError])
def test_an_error_of_a_loss_keeps_its_type_and_says_where_it_comes_from(error: type[Exception]) -> None:
    def loss(encoder: nn.Module, head: nn.Module, meta: Any, batch: Any) -> Tensor:
        if len(batch[0]) < 10:
            raise error("the user's")
        return pretrain_loss(encoder, head, meta, batch)

    batches = batches_of([BATCH], [REST], DataLoader(InMemory(X[:24], LABELS[:24]), 10))
    found, note = noted(error, MetaPretraining(*arguments_of(batches, loss=loss)).run)
    assert "the user's" in str(found.value)
    assert found.traceback[-1].name == "loss"
    for words in ("minibatch 3 of pass 1 of the loader `pretrain`", "[4, 6] and [4]", "4 of 10", "drop_last=True"):
        assert words in note


def test_an_error_in_fine_tuning_says_which_minibatches_were_in_use() -> None:
    arguments = arguments_of(batches_of([BATCH], [(X[50:, :5], LABELS[50:])]))
    for call in (lambda: metapt.check(*arguments), lambda: MetaPretraining(*arguments).run()):
        found, note = noted(RuntimeError, call)
        assert "cannot be multiplied" in str(found.value)
        for words in ("loader `train` ([50, 6]", "loader `validation` ([350, 5]", "loader `hypergradient`"):
            assert words in note


def test_an_error_of_a_data_set_says_which_loader_it_comes_from() -> None:
    class Broken(Examples):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)[:1] if index < 15 else {}["x"]

    batches = batches_of([BATCH], [REST], DataLoader(Broken(X, LABELS), 10))
    _, note = noted(KeyError, MetaPretraining(*arguments_of(batches)).run)
    assert "failed to give minibatch 2 of pass 1 of the loader `" in note


def test_a_sentence_of_ours_has_no_note() -> None:
    with pytest.raises(ConfigError) as found:
        MetaPretraining(*arguments_of(batches_of([], [BATCH]))).run()
    assert not hasattr(found.value, "__notes__")


def test_a_sampler_that_pt_and_hypergradients_share_is_told() -> None:
    order: Any = SequentialSampler(range(12))
    loader = DataLoader(DATA, 4, sampler=order)
    with heard() as messages:
        of_pt(loader)
        order.lock = Lock()
        of_pt(loader, hypergradient=[BATCH])
    assert messages == []
    with heard() as messages:
        of_pt(loader)
    assert "a sampler can't be copied" in messages[0]


class Counting(Sampler[int]):
    """A new order in each pass, which the sampler counts."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        yield from torch.randperm(12, generator=torch.Generator().manual_seed(self.passes)).tolist()


@pytest.mark.parametrize(
    "loader", [DataLoader(range(12), 4, sampler=Counting()), Around(DataLoader(range(12), 4, sampler=Counting()))]
)
def test_a_second_run_begins_where_the_first_one_began(loader: Any) -> None:
    begun = of_pt(loader)
    start = begun.state_dict()
    first, second = ([batches.pretrain().batch for _ in range(7)] for batches in (begun, of_pt(loader)))
    assert all(map(torch.equal, first, second))
    begun.load_state_dict(start)
    assert all(torch.equal(each, begun.pretrain().batch) for each in first)
    assert not torch.equal(first[0], first[3]), "a pass has an order of its own"
