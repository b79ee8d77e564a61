"""Loaders give minibatches without end, the same for the same seed, and go on from a saved state."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

from metapt import LoaderBatches
from metapt.errors import ConfigError
from metapt.training import overlap
from metapt.training.loaders import moved
from metapt.training.seeds import Seeded

NUMBERS = TensorDataset(torch.arange(10))
FT = {"train": [torch.zeros(1)], "validation": [torch.ones(1)]}


class Noisy(Dataset[Tensor]):
    """Examples that draw from torch's global generator."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        return index + torch.rand(())


def loader(kind: str) -> DataLoader[Any]:
    if kind == "generator":
        return DataLoader(NUMBERS, 4, shuffle=True, generator=torch.Generator())
    if kind == "replacement":
        return DataLoader(NUMBERS, 4, sampler=RandomSampler(NUMBERS, replacement=True, generator=torch.Generator()))
    if kind == "batch sampler":
        return DataLoader(
            NUMBERS, batch_sampler=BatchSampler(RandomSampler(NUMBERS, generator=torch.Generator()), 4, False)
        )
    if kind == "workers":
        return DataLoader(Noisy(), 4, shuffle=True, num_workers=1)
    if kind == "persistent":
        return DataLoader(NUMBERS, 4, shuffle=True, num_workers=1, persistent_workers=True)
    return DataLoader(Noisy(), 4, shuffle=True)


def taken(batches: LoaderBatches, count: int) -> list[Any]:
    """Return PT minibatches as lists, alternating with those of hypergradients."""
    found = []
    for _ in range(count):
        for batch in (batches.pretrain(), batches.hypergradient()):
            assert isinstance(batch, Seeded)
            values = batch.batch[0] if isinstance(batch.batch, list) else batch.batch
            found.append((values.tolist(), batch.seed))
    return found


@pytest.mark.parametrize("kind", ["generator", "replacement", "batch sampler", "noisy", "workers", "persistent"])
def test_minibatches_follow_from_the_seed_and_the_state(kind: str) -> None:
    batches = LoaderBatches(pretrain=loader(kind), **FT)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = taken(batches, 4)
    state = batches.state_dict()
    rest = taken(batches, 5)
    assert torch.equal(torch.get_rng_state(), before)
    assert len({str(each) for each in first + rest}) == 18
    again = LoaderBatches(pretrain=loader(kind), **FT)
    torch.rand(3)
    assert taken(again, 4) == first
    other = LoaderBatches(pretrain=loader(kind), **FT)
    other.load_state_dict(state)
    assert taken(other, 5) == rest
    assert taken(LoaderBatches(pretrain=loader(kind), **FT, seed=1), 4) != first


def test_what_a_data_set_draws_does_not_depend_on_the_order_of_its_examples() -> None:
    class Drawn(Dataset[Tensor]):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> Tensor:
            return torch.stack([torch.tensor(index), torch.randint(10, ())])

    given = DataLoader(Drawn(), 10, shuffle=True, generator=torch.Generator())
    batches = LoaderBatches(pretrain=given, **FT)
    first = [batches.pretrain().batch[0] for _ in range(100)]
    assert sum(int(index == draw) for index, draw in first) < 30


def test_a_list_gives_the_same_minibatch_itself_so_that_it_is_encoded_once() -> None:
    batches = LoaderBatches(pretrain=[0], **FT)
    assert batches.train() is batches.train() is FT["train"][0]
    on_device = LoaderBatches(pretrain=[0], train=[[torch.zeros(1)]], validation=[[torch.ones(1)]], device="meta")
    assert on_device.train() is on_device.train()
    assert on_device.validation() is on_device.validation()


def test_a_loader_with_fewer_minibatches_than_the_run_had_is_refused() -> None:
    batches = LoaderBatches(pretrain=DataLoader(NUMBERS, 2), **FT)
    taken(batches, 4)
    fewer = LoaderBatches(pretrain=DataLoader(NUMBERS, 5), **FT)
    with pytest.raises(ConfigError, match="had taken 4 minibatches of pretrain in a pass, and the loader gives fewer"):
        fewer.load_state_dict(batches.state_dict())


@pytest.mark.parametrize("kind", [TensorDataset, list])
def test_examples_are_looked_at_in_the_first_pass_only(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []
    monkeypatch.setattr(overlap, "examples", lambda batch: looks.append(batch) or [])
    train, validation = (DataLoader(kind(torch.arange(12.0)[:, None] + shift), 4) for shift in (0, 100))
    batches = LoaderBatches(pretrain=[0], train=train, validation=validation)
    for _ in range(20):
        batches.train(), batches.validation()
    assert len(looks) == (2 if kind is TensorDataset else 6)


class Pair(NamedTuple):
    x: Tensor
    name: str


def test_tensors_are_moved_wherever_a_minibatch_has_them() -> None:
    batch = {"a": [torch.zeros(2)], "b": Pair(torch.zeros(1), "name"), "c": (torch.zeros(3), 4)}
    there = moved(batch, "meta")
    assert there["a"][0].device.type == there["b"].x.device.type == there["c"][0].device.type == "meta"
    assert there["b"].name == "name"
    assert there["c"][1] == 4
