"""Minibatches have the right graphs and labels, and arms with the same seed see the same ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from metapt.domains.ppi.batches import CoTrainBatches, PpiBatches
from metapt.domains.ppi.config import Network
from metapt.domains.ppi.data.dataset import PpiDataset, on_device
from metapt.domains.ppi.data.graphs import pack, unpack
from metapt.domains.ppi.gin import GraphBatch

from .small_graphs import COARSE, small_graphs

NETWORK = Network(layers=2, width=3)
PRETRAIN, TRAIN, VALIDATION = np.arange(40, 100), np.arange(0, 30), np.arange(30, 40)
SETS = {"pretrain": (PRETRAIN, 16), "hypergradient": (PRETRAIN, 20), "train": (TRAIN, 8), "validation": (VALIDATION, 4)}


@pytest.fixture(scope="module")
def dataset() -> PpiDataset:
    """Return graphs whose first sum of edge bits is their number."""
    dataset = on_device(small_graphs(), "cpu")
    numbers = torch.arange(120.0).repeat_interleave(dataset.nodes.diff())
    return dataclasses.replace(dataset, edge_sums=torch.cat([numbers.unsqueeze(1), dataset.edge_sums[:, 1:]], 1))


def made(
    dataset: PpiDataset, kind: type[PpiBatches] = PpiBatches, seed: int = 0, rate: float = 0.2, **words: Any
) -> PpiBatches:
    return kind(dataset, SETS, NETWORK, rate, seed, **words)


def seen(graphs: GraphBatch) -> list[int]:
    """Return the numbers of the graphs in a minibatch."""
    return [int(part[0, 0]) for part in graphs.edge_sums.split(graphs.sizes.tolist())]


def equal(first: Any, second: Any) -> bool:
    """Return whether two minibatches of any kind are equal, tensor by tensor."""
    if isinstance(first, torch.Tensor) or first is None:
        return first is second or torch.equal(first, second)
    return all(equal(a, b) for a, b in zip(first, second, strict=True))


def test_labels_belong_to_their_graphs(dataset: PpiDataset) -> None:
    batches = made(dataset)
    for _ in range(5):
        for batch, part, labels, size in (
            (batches.pretrain(), PRETRAIN, dataset.coarse, 16),
            (batches.hypergradient(), PRETRAIN, dataset.coarse, 20),
            (batches.train(), TRAIN, dataset.fine, 8),
            (batches.validation(), VALIDATION, dataset.fine, 4),
        ):
            numbers = seen(batch.graphs)
            assert len(numbers) == size
            assert set(numbers) <= set(part.tolist())
            assert torch.equal(batch.labels, labels(torch.tensor(numbers)))
            assert equal(batch.graphs, dataset.batch(torch.tensor(numbers)))


def test_only_what_is_trained_on_has_dropout(dataset: PpiDataset) -> None:
    batches = made(dataset)
    both: Any = made(dataset, CoTrainBatches).pretrain()
    for batch in (batches.pretrain(), batches.hypergradient(), *both):
        assert batch.keep is not None
        assert batch.keep.shape == (2, len(batch.graphs.graph), 3)
    assert batches.train().keep is batches.validation().keep is made(dataset, rate=0.0).pretrain().keep is None


@pytest.mark.parametrize("kind", [PpiBatches, CoTrainBatches])
def test_hypergradients_have_graphs_and_masks_of_their_own(dataset: PpiDataset, kind: type[PpiBatches]) -> None:
    batches = made(dataset, kind)
    steps, hypergradients = ([draw() for _ in range(6)] for draw in (batches.pretrain, batches.hypergradient))
    for pairs in zip(steps, hypergradients, strict=True):
        for step, other in zip(*pairs, strict=True) if kind is CoTrainBatches else [pairs]:  # type: ignore[call-overload]
            assert set(seen(step.graphs)) != set(seen(other.graphs))
            assert other.keep is not None
            rows = min(step.keep.shape[1], other.keep.shape[1])
            assert not torch.equal(step.keep[:, :rows], other.keep[:, :rows])


def test_other_pt_labels_fewer_ft_tasks_and_the_released_centres_of_pt_minibatches(dataset: PpiDataset) -> None:
    flipped, tasks = torch.from_numpy(pack(unpack(dataset.graphs.coarse, COARSE) == 0)), torch.tensor([0, 3, 4])
    batches = made(dataset, coarse=flipped, tasks=tasks, offset_centres=False)
    for batch in (batches.pretrain(), batches.hypergradient()):
        numbers = seen(batch.graphs)
        assert torch.equal(batch.labels, 1 - dataset.coarse(torch.tensor(numbers)))
        assert batch.graphs.centre.tolist() == dataset.graphs.centre[numbers].tolist()
    both: Any = made(dataset, CoTrainBatches, tasks=tasks, offset_centres=False).pretrain()
    for batch in (batches.train(), batches.validation(), both.finetune):
        chosen = torch.tensor(seen(batch.graphs))
        assert torch.equal(batch.labels, dataset.fine(chosen)[:, tasks])
        assert equal(batch.graphs, dataset.batch(chosen))


def test_co_training_sees_the_pt_minibatch_of_other_arms_and_an_ft_minibatch_with_dropout(dataset: PpiDataset) -> None:
    both, alone = made(dataset, CoTrainBatches), made(dataset)
    for name in ("pretrain", "hypergradient"):
        batch: Any = getattr(both, name)()
        assert equal(batch.pretrain, getattr(alone, name)())
        assert set(seen(batch.finetune.graphs)) <= set(TRAIN.tolist())
        assert len(batch.finetune.labels) == 8
        assert not equal(batch.pretrain.keep, batch.finetune.keep)
        both.train(), both.validation()
    assert not equal(made(dataset, seed=1).pretrain(), made(dataset).pretrain())


@pytest.mark.parametrize("kind", [PpiBatches, CoTrainBatches])
def test_a_saved_state_goes_on_to_the_same_minibatches_and_masks(dataset: PpiDataset, kind: type[PpiBatches]) -> None:
    batches, other = (made(dataset, kind) for _ in range(2))
    names = ("pretrain", "train", "hypergradient", "validation")

    def some(drawn: PpiBatches) -> list[Any]:
        draws: list[Callable[[], Any]] = [getattr(drawn, name) for name in names]
        return [draw() for _ in range(3) for draw in draws]

    before = some(batches)
    other.load_state_dict(batches.state_dict())
    after = some(batches)
    assert not any(equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(equal(a, b) for a, b in zip(after, some(other), strict=True))
