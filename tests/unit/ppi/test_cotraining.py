"""Minibatches are the same for all arms with the same seed, and steps of co-training agree with an explicit Adam."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from metapt.domains.ppi.config import Network
from metapt.domains.ppi.cotraining import BothGraphs, CoTrainBatches, CoTrainer, CoTrainProblem, without_conflicts
from metapt.domains.ppi.data.dataset import PpiDataset, on_device
from metapt.domains.ppi.gin import GinEncoder, GraphBatch, initial_head, initial_pretrained
from metapt.domains.ppi.problem import LabelledGraphs, PpiBatches
from metapt.hypergrad import Params, Pretrained
from metapt.training.optimizers import OptimizerSpec
from metapt.twostage.heads import encoder_of, whole

from .graphs_helper import double, exact
from .small_arms import setting_in
from .small_graphs import COARSE, FINE, small_graphs

NETWORK = Network(layers=2, width=3)
PRETRAIN, TRAIN, VALIDATION = np.arange(40, 100), np.arange(0, 30), np.arange(30, 40)
SETS = {"pretrain": (PRETRAIN, 16), "hypergradient": (PRETRAIN, 20), "train": (TRAIN, 8), "validation": (VALIDATION, 4)}
SETS["hypergradient train"] = SETS["train"]


@pytest.fixture(scope="module")
def numbered() -> PpiDataset:
    """Return graphs whose first sum of edge bits is their number."""
    dataset = on_device(small_graphs(), "cpu")
    numbers = torch.arange(120.0).repeat_interleave(dataset.nodes.diff())
    return dataclasses.replace(dataset, edge_sums=torch.cat([numbers.unsqueeze(1), dataset.edge_sums[:, 1:]], 1))


def made(
    numbered: PpiDataset,
    kind: type[PpiBatches] = PpiBatches,
    seed: int = 0,
    rate: float = 0.2,
    tasks: Any = range(FINE),
    **words: Any,
) -> PpiBatches:
    job = setting_in(Path(), numbered, seed=seed, dropout=rate, **words).job
    return kind(numbered, SETS, job.model_copy(update={"network": NETWORK}), torch.tensor(tasks))


def seen(graphs: GraphBatch) -> list[int]:
    """Return the numbers of the graphs in a minibatch."""
    return [int(part[0, 0]) for part in graphs.edge_sums.split(graphs.sizes.tolist())]


def equal(first: Any, second: Any) -> bool:
    """Return whether two minibatches of any kind are equal, tensor by tensor."""
    if isinstance(first, torch.Tensor) or first is None:
        return first is second or torch.equal(first, second)
    return all(equal(a, b) for a, b in zip(first, second, strict=True))


def test_labels_belong_to_their_graphs_and_only_what_is_trained_on_has_dropout(numbered: PpiDataset) -> None:
    batches = made(numbered)
    for _ in range(5):
        for batch, part, labels, size in (
            (batches.pretrain(), PRETRAIN, numbered.coarse, 16),
            (batches.hypergradient(), PRETRAIN, numbered.coarse, 20),
            (batches.train(), TRAIN, numbered.fine, 8),
            (batches.validation(), VALIDATION, numbered.fine, 4),
        ):
            numbers = seen(batch.graphs)
            assert len(numbers) == size
            assert set(numbers) <= set(part.tolist())
            assert torch.equal(batch.labels, labels(torch.tensor(numbers)))
            assert equal(batch.graphs, numbered.batch(torch.tensor(numbers)))
            masks = (2, len(batch.graphs.graph), 3) if part is PRETRAIN else None
            assert masks == (None if batch.keep is None else batch.keep.shape)
    assert made(numbered, rate=0.0).pretrain().keep is None


@pytest.mark.parametrize("kind", [PpiBatches, CoTrainBatches])
def test_hypergradients_have_graphs_and_masks_of_their_own(numbered: PpiDataset, kind: type[PpiBatches]) -> None:
    batches = made(numbered, kind)
    steps, hypergradients = ([draw() for _ in range(6)] for draw in (batches.pretrain, batches.hypergradient))
    for pairs in zip(steps, hypergradients, strict=True):
        for step, other in zip(*pairs, strict=True) if kind is CoTrainBatches else [pairs]:  # type: ignore[call-overload]
            assert set(seen(step.graphs)) != set(seen(other.graphs))
            assert other.keep is not None
            rows = min(step.keep.shape[1], other.keep.shape[1])
            assert not torch.equal(step.keep[:, :rows], other.keep[:, :rows])


def test_fewer_ft_tasks_and_the_released_centres_of_pt_minibatches(numbered: PpiDataset) -> None:
    tasks = [0, 3, 4]
    batches = made(numbered, tasks=tasks, offset_centres=False)
    for batch in (batches.pretrain(), batches.hypergradient()):
        numbers = seen(batch.graphs)
        assert torch.equal(batch.labels, numbered.coarse(torch.tensor(numbers)))
        assert batch.graphs.centre.tolist() == numbered.graphs.centre[numbers].tolist()
    both: Any = made(numbered, CoTrainBatches, tasks=tasks, offset_centres=False).pretrain()
    for batch in (batches.train(), batches.validation(), both.finetune):
        chosen = torch.tensor(seen(batch.graphs))
        assert torch.equal(batch.labels, numbered.fine(chosen)[:, tasks])
        assert equal(batch.graphs, numbered.batch(chosen))


def test_co_training_sees_the_pt_minibatch_of_other_arms_and_an_ft_minibatch_with_dropout(numbered: PpiDataset) -> None:
    both, alone = made(numbered, CoTrainBatches), made(numbered)
    for name in ("pretrain", "hypergradient"):
        batch: Any = getattr(both, name)()
        assert equal(batch.pretrain, getattr(alone, name)())
        assert set(seen(batch.finetune.graphs)) <= set(TRAIN.tolist())
        assert len(batch.finetune.labels) == 8
        assert batch.finetune.keep.shape == (2, len(batch.finetune.graphs.graph), 3)
        assert not equal(batch.pretrain.keep, batch.finetune.keep)
        both.train(), both.validation()
    assert not equal(made(numbered, seed=1).pretrain(), made(numbered).pretrain())


@pytest.mark.parametrize("kind", [PpiBatches, CoTrainBatches])
def test_a_saved_state_goes_on_to_the_same_minibatches_and_masks(numbered: PpiDataset, kind: type[PpiBatches]) -> None:
    batches, other = (made(numbered, kind) for _ in range(2))

    def some(drawn: PpiBatches) -> list[Any]:
        return [(drawn.pretrain(), drawn.train(), drawn.hypergradient(), drawn.validation()) for _ in range(3)]

    before = some(batches)
    other.load_state_dict(batches.state_dict())
    after = some(batches)
    assert not any(equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(equal(a, b) for a, b in zip(after, some(other), strict=True))


LAYERS, WIDTH, LR = 2, 4, 1e-2
PROBLEM = CoTrainProblem(GinEncoder(LAYERS, WIDTH))
Gradients = Literal["alternate", "pcgrad"]


class Exact(CoTrainBatches):
    """Use float64: Adam turns rounding errors in directions that BatchNorm removes into full steps."""

    def pretrain(self) -> BothGraphs:  # type: ignore[override]
        return BothGraphs(
            *(LabelledGraphs(exact(part.graphs), part.labels.double(), part.keep) for part in super().pretrain())
        )


def batches(dataset: PpiDataset) -> CoTrainBatches:
    sets = {"pretrain": (np.arange(100), 16), "train": (np.arange(60), 8)}
    job = setting_in(Path(), dataset).job.model_copy(update={"network": Network(layers=LAYERS, width=WIDTH)})
    return Exact(dataset, sets, job, torch.arange(FINE))


def network() -> Pretrained:
    random = torch.Generator().manual_seed(0)
    encoder, head, buffers = initial_pretrained(LAYERS, WIDTH, COARSE, random)
    heads = {"pretrain_head": head, "finetune_head": initial_head(WIDTH, FINE, random)}
    return Pretrained(double(whole(encoder, **heads)), {}, double(buffers))


def trainer(dataset: PpiDataset, gradients: Gradients) -> CoTrainer:
    return CoTrainer(PROBLEM, batches(dataset), network(), OptimizerSpec("Adam", {"lr": LR}), gradients)


def gradient(values: Params, buffers: Params, head: str, batch: LabelledGraphs) -> Tensor:
    """Give each value that the loss depends on its gradient, and return the loss."""
    for value in values.values():
        value.grad = None
    features = PROBLEM.encoder({**encoder_of(values), **buffers}, batch.graphs, training=True, keep=batch.keep)
    scores = features @ values[f"{head}.weight"].T + values[f"{head}.bias"]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, batch.labels)
    loss.backward()
    return loss.detach()


class Reference:
    """The same network with torch's Adam, whose parameters without gradient stay unchanged."""

    def __init__(self) -> None:
        start = network()
        self.values = {name: value.clone().requires_grad_() for name, value in start.encoder.items()}
        self.buffers, self.adam = start.buffers, torch.optim.Adam(self.values.values(), lr=LR)

    def is_that_of(self, ours: CoTrainer) -> None:
        start = network().encoder
        for name, value in ours.pretrained.encoder.items():
            torch.testing.assert_close(value.detach(), self.values[name].detach(), rtol=1e-7, atol=1e-9)
            # BatchNorm removes the bias of the first linear layer.
            assert name.endswith("linear1.bias") or float((value.detach() - start[name]).abs().max()) > LR / 10
        torch.testing.assert_close(ours.pretrained.buffers, self.buffers, rtol=1e-7, atol=1e-9)


def test_alternating_is_a_step_of_adam_on_pt_data_then_one_on_ft_data(dataset: PpiDataset) -> None:
    ours, stream, theirs = trainer(dataset, "alternate"), batches(dataset), Reference()
    for _ in range(3):
        losses, both = [], stream.pretrain()
        for head, batch in (("pretrain_head", both.pretrain), ("finetune_head", both.finetune)):
            losses.append(gradient(theirs.values, theirs.buffers, head, batch))
            assert (theirs.values["pretrain_head.bias"].grad is None) == (head == "finetune_head")
            theirs.adam.step()
        loss = ours.step({})
        torch.testing.assert_close(loss, losses[0], rtol=1e-10, atol=0.0)
        assert not loss.requires_grad
    theirs.is_that_of(ours)
    assert theirs.buffers["layers.0.norm.num_batches_tracked"] == 6


def test_pcgrad_is_one_step_of_adam_along_both_gradients_without_their_conflict(dataset: PpiDataset) -> None:
    ours, stream, theirs, conflicts = trainer(dataset, "pcgrad"), batches(dataset), Reference(), 0
    values = list(theirs.values.values())
    for _ in range(6):
        both, found = stream.pretrain(), []
        for head, batch in (("pretrain_head", both.pretrain), ("finetune_head", both.finetune)):
            gradient(theirs.values, theirs.buffers, head, batch)
            found.append([torch.zeros_like(value) if value.grad is None else value.grad for value in values])
        conflicts += float(sum((a * b).sum() for a, b in zip(*found, strict=True))) < 0
        for value, each in zip(values, without_conflicts(*found), strict=True):
            value.grad = each
        theirs.adam.step()
        ours.step({})
    theirs.is_that_of(ours)
    assert theirs.buffers["layers.0.norm.num_batches_tracked"] == 12
    assert conflicts > 0


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # xx = 10, xy = -1, yy = 2. x + y / 2 = (1/2, 1/2, 3), y + x / 10 = (-9/10, 1, 3/10).
        ([1.0, 0.0, 3.0], [-1.0, 1.0, 0.0], [-0.4, 1.5, 3.3]),
        ([1.0, 0.0, 3.0], [1.0, 1.0, 1.0], [2.0, 1.0, 4.0]),  # agreeing ones are summed
        ([1.0, 2.0, -3.0], [-7.0, -14.0, 21.0], [0.0, 0.0, 0.0]),  # opposite ones cancel
        ([0.0, 0.0, 0.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
    ],
)
def test_conflicts_are_projected_out(first: list[float], second: list[float], expected: list[float]) -> None:
    """Two gradients of three numbers, in tensors of two and one."""
    gradients = ([torch.tensor(each[:2]).view(2, 1), torch.tensor(each[2:])] for each in (first, second))
    found = without_conflicts(*gradients)
    assert [part.shape for part in found] == [(2, 1), (1,)]
    assert [float(value) for part in found for value in part.flatten()] == pytest.approx(expected, abs=1e-6)
