"""Steps of co-training agree with an explicit Adam."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from metapt.domains.ppi.batches import CoTrainBatches
from metapt.domains.ppi.config import Network
from metapt.domains.ppi.cotraining import CoTrainer, without_conflicts
from metapt.domains.ppi.data.dataset import PpiDataset, on_device
from metapt.domains.ppi.gin import GinEncoder, initial_head, initial_pretrained
from metapt.domains.ppi.problem import BothGraphs, CoTrainProblem, LabelledGraphs, encoder_of, whole
from metapt.hypergrad import Params, Pretrained
from metapt.training.optimizers import OptimizerSpec

from .graphs_helper import double, exact
from .small_graphs import COARSE, FINE, small_graphs

LAYERS, WIDTH, LR = 2, 4, 1e-2
PROBLEM = CoTrainProblem(GinEncoder(LAYERS, WIDTH))
Gradients = Literal["alternate", "pcgrad", "pcgrad_shared"]


@pytest.fixture(scope="module")
def dataset() -> PpiDataset:
    return on_device(small_graphs(), "cpu")


class Exact(CoTrainBatches):
    """Use float64: Adam turns rounding errors in directions that BatchNorm removes into full steps."""

    def pretrain(self) -> BothGraphs:  # type: ignore[override]
        return BothGraphs(
            *(LabelledGraphs(exact(part.graphs), part.labels.double(), part.keep) for part in super().pretrain())
        )


def batches(dataset: PpiDataset) -> CoTrainBatches:
    sets = {"pretrain": (np.arange(100), 16), "train": (np.arange(60), 8)}
    return Exact(dataset, sets, Network(layers=LAYERS, width=WIDTH), 0.2, 0)


def network() -> Pretrained:
    random = torch.Generator().manual_seed(0)
    encoder, head, buffers = initial_pretrained(LAYERS, WIDTH, COARSE, random)
    return Pretrained(double(whole(encoder, head, initial_head(WIDTH, FINE, random))), {}, double(buffers))


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


def parts(both: BothGraphs) -> list[tuple[str, LabelledGraphs]]:
    return [("pretrain_head", both.pretrain), ("finetune_head", both.finetune)]


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
        expected = []
        for head, batch in parts(stream.pretrain()):
            expected.append(gradient(theirs.values, theirs.buffers, head, batch))
            assert (theirs.values["pretrain_head.bias"].grad is None) == (head == "finetune_head")
            theirs.adam.step()
        loss = ours.step({})
        torch.testing.assert_close(loss, expected[0], rtol=1e-10, atol=0.0)
        assert not loss.requires_grad
    theirs.is_that_of(ours)
    assert theirs.buffers["layers.0.norm.num_batches_tracked"] == 6


@pytest.mark.parametrize("gradients", ["pcgrad", "pcgrad_shared"])
def test_pcgrad_is_one_step_of_adam_along_both_gradients_without_their_conflict(
    gradients: Gradients, dataset: PpiDataset
) -> None:
    ours, stream, theirs, conflicts = trainer(dataset, gradients), batches(dataset), Reference(), 0
    values = theirs.values
    projected = encoder_of(values) if gradients == "pcgrad_shared" else values
    part = sum(value.numel() for value in projected.values())  # the encoder's numbers come first
    for _ in range(6):
        vectors = []
        for head, batch in parts(stream.pretrain()):
            gradient(values, theirs.buffers, head, batch)
            filled = [torch.zeros_like(value) if value.grad is None else value.grad for value in values.values()]
            vectors.append(torch.cat([value.flatten() for value in filled]))
        x, y = (vector[:part] for vector in vectors)
        total = x + y
        if x @ y < 0:
            conflicts += 1
            total = total - (x @ y) / (y @ y) * y - (x @ y) / (x @ x) * x
        total = torch.cat([total, sum(vectors)[part:]])  # type: ignore[index]
        sizes = [value.numel() for value in values.values()]
        for value, each in zip(values.values(), total.split(sizes), strict=True):
            value.grad = each.view_as(value)
        theirs.adam.step()
        ours.step({})
    theirs.is_that_of(ours)
    assert theirs.buffers["layers.0.norm.num_batches_tracked"] == 12
    assert conflicts > 0


@pytest.mark.parametrize(
    ("first", "second", "projected", "expected"),
    [
        # Shared: x = (1, 0), y = (-1, 1), xy = -1. x - xy / yy y = (1/2, 1/2), y - xy / xx x = (0, 1).
        ([1.0, 0.0, 3.0], [-1.0, 1.0, 0.0], 1, [0.5, 1.5, 3.0]),
        # Whole: xx = 10, yy = 2. x + y / 2 = (1/2, 1/2, 3), y + x / 10 = (-9/10, 1, 3/10).
        ([1.0, 0.0, 3.0], [-1.0, 1.0, 0.0], 2, [-0.4, 1.5, 3.3]),
        # The encoder's parts agree, the whole vectors do not.
        ([1.0, 0.0, -3.0], [1.0, 1.0, 1.0], 1, [2.0, 1.0, -2.0]),
        ([1.0, 2.0, -3.0], [-7.0, -14.0, 21.0], 2, [0.0, 0.0, 0.0]),  # opposite ones cancel
        ([0.0, 0.0, 0.0], [1.0, 2.0, 3.0], 2, [1.0, 2.0, 3.0]),
    ],
)
def test_conflicts_are_projected_out_of_the_shared_part_alone(
    first: list[float], second: list[float], projected: int, expected: list[float]
) -> None:
    """Two gradients of three numbers, an encoder of two and a head of one."""
    gradients = ([torch.tensor(each[:2]).view(2, 1), torch.tensor(each[2:])] for each in (first, second))
    found = without_conflicts(*gradients, projected)
    assert [part.shape for part in found] == [(2, 1), (1,)]
    torch.testing.assert_close(
        torch.cat([part.flatten() for part in found]), torch.tensor(expected), rtol=1e-6, atol=1e-6
    )
