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
from metapt.domains.ppi.problem import BothGraphs, CoTrainProblem, LabelledGraphs, encoder_of, head_of, whole
from metapt.hypergrad import Params, Pretrained
from metapt.training.optimizers import OptimizerSpec

from .graphs_helper import DTYPE, double, exact
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


class Adam:
    """Adam (Kingma and Ba 2015) with a step count per parameter; parameters without gradient stay unchanged."""

    def __init__(self) -> None:
        self.first: Params = {}
        self.second: Params = {}
        self.count: dict[str, int] = {}

    def step(self, values: Params, gradient: dict[str, Tensor | None]) -> None:
        for name, slope in gradient.items():
            if slope is None:
                continue
            t = self.count[name] = self.count.get(name, 0) + 1
            self.first[name] = 0.9 * self.first.get(name, torch.zeros_like(slope)) + 0.1 * slope
            self.second[name] = 0.999 * self.second.get(name, torch.zeros_like(slope)) + 0.001 * slope.square()
            mean, square = self.first[name] / (1 - 0.9**t), self.second[name] / (1 - 0.999**t)
            values[name] = values[name] - LR * mean / (square.sqrt() + 1e-8)


def loss_of(values: Params, buffers: Params, head: str, batch: LabelledGraphs) -> Tensor:
    features = PROBLEM.encoder({**encoder_of(values), **buffers}, batch.graphs, training=True, keep=batch.keep)
    scores = features @ values[f"{head}.weight"].T + values[f"{head}.bias"]
    return torch.nn.functional.binary_cross_entropy_with_logits(scores, batch.labels)


def gradient(
    values: Params, buffers: Params, head: str, batch: LabelledGraphs
) -> tuple[Tensor, dict[str, Tensor | None]]:
    at = {name: value.detach().requires_grad_() for name, value in values.items()}
    loss = loss_of(at, buffers, head, batch)
    return loss.detach(), dict(zip(at, torch.autograd.grad(loss, list(at.values()), allow_unused=True), strict=True))


def parts(both: BothGraphs) -> list[tuple[str, LabelledGraphs]]:
    return [("pretrain_head", both.pretrain), ("finetune_head", both.finetune)]


def compare(ours: CoTrainer, values: Params, buffers: Params) -> None:
    start = network().encoder
    for name, value in ours.pretrained.encoder.items():
        torch.testing.assert_close(value.detach(), values[name], rtol=1e-7, atol=1e-9)
        # BatchNorm removes the bias of the first linear layer.
        assert name.endswith("linear1.bias") or float((value.detach() - start[name]).abs().max()) > LR / 10
    torch.testing.assert_close(ours.pretrained.buffers, buffers, rtol=1e-7, atol=1e-9)


def test_alternating_is_a_step_of_adam_on_pt_data_then_one_on_ft_data(dataset: PpiDataset) -> None:
    ours, stream, adam = trainer(dataset, "alternate"), batches(dataset), Adam()
    start = network()
    values, buffers = dict(start.encoder), start.buffers
    for _ in range(3):
        expected = []
        for head, batch in parts(stream.pretrain()):
            loss, slopes = gradient(values, buffers, head, batch)
            assert (slopes["pretrain_head.bias"] is None) == (head == "finetune_head")
            adam.step(values, slopes)
            expected.append(loss)
        loss = ours.step({})
        torch.testing.assert_close(loss, expected[0], rtol=1e-10, atol=0.0)
        assert not loss.requires_grad
    compare(ours, values, buffers)
    assert buffers["layers.0.norm.num_batches_tracked"] == 6
    assert (adam.count["node"], adam.count["pretrain_head.bias"]) == (6, 3)


@pytest.mark.parametrize("gradients", ["pcgrad", "pcgrad_shared"])
def test_pcgrad_is_one_step_of_adam_along_both_gradients_without_their_conflict(
    gradients: Gradients, dataset: PpiDataset
) -> None:
    ours, stream, adam = trainer(dataset, gradients), batches(dataset), Adam()
    start = network()
    # the encoder's numbers come first
    part = sum(
        value.numel() for value in (encoder_of if gradients == "pcgrad_shared" else dict)(start.encoder).values()
    )
    values, buffers = dict(start.encoder), start.buffers
    conflicts = 0
    for _ in range(6):
        vectors = []
        for head, batch in parts(stream.pretrain()):
            _, slopes = gradient(values, buffers, head, batch)
            vectors.append(
                torch.cat(
                    [
                        torch.zeros(values[k].numel(), dtype=DTYPE) if v is None else v.flatten()
                        for k, v in slopes.items()
                    ]
                )
            )
        x, y = (vector[:part] for vector in vectors)
        total = x + y
        if x @ y < 0:
            conflicts += 1
            total = total - (x @ y) / (y @ y) * y - (x @ y) / (x @ x) * x
        total = torch.cat([total, sum(vectors)[part:]])  # type: ignore[index]
        sizes = [value.numel() for value in values.values()]
        slopes = {name: each.view_as(values[name]) for name, each in zip(values, total.split(sizes), strict=True)}
        adam.step(values, slopes)
        ours.step({})
    compare(ours, values, buffers)
    assert buffers["layers.0.norm.num_batches_tracked"] == 12
    assert conflicts > 0


def test_conflicts_are_projected_out_of_the_shared_part_alone() -> None:
    """Two gradients of three numbers, an encoder of two and a head of one, with hand-computed sums."""

    def vectors(*values: list[float]) -> list[list[Tensor]]:
        return [[torch.tensor(each[:2]), torch.tensor(each[2:])] for each in values]

    conflicting = vectors([1.0, 0.0, 3.0], [-1.0, 1.0, 0.0])
    # Shared: x = (1, 0), y = (-1, 1), xy = -1. x - xy / yy y = (1/2, 1/2), y - xy / xx x = (0, 1).
    shared = without_conflicts(conflicting, 1)
    torch.testing.assert_close(shared, [torch.tensor([0.5, 1.5]), torch.tensor([3.0])])
    # Whole: xx = 10, yy = 2. x + y / 2 = (1/2, 1/2, 3), y + x / 10 = (-9/10, 1, 3/10).
    whole = without_conflicts(conflicting, 2)
    torch.testing.assert_close(whole, [torch.tensor([-0.4, 1.5]), torch.tensor([3.3])])
    agreeing = vectors([1.0, 0.0, -3.0], [1.0, 1.0, 1.0])  # the encoder's parts agree, the whole vectors do not
    torch.testing.assert_close(without_conflicts(agreeing, 1), [torch.tensor([2.0, 1.0]), torch.tensor([-2.0])])


@pytest.mark.parametrize("gradients", ["alternate", "pcgrad", "pcgrad_shared"])
def test_both_heads_learn(dataset: PpiDataset, gradients: Gradients) -> None:
    ours = trainer(dataset, gradients)
    everything = exact(dataset.batch(torch.arange(60)))

    def losses() -> list[float]:
        values = {name: value.detach() for name, value in ours.pretrained.encoder.items()}
        features = PROBLEM.encoder({**encoder_of(values), **ours.pretrained.buffers}, everything, training=False)
        scores = (
            features @ head_of(values, f"{part}_head")["weight"].T + head_of(values, f"{part}_head")["bias"]
            for part in ("pretrain", "finetune")
        )
        labels = (dataset.coarse(torch.arange(60)).double(), dataset.fine(torch.arange(60)).double())
        return [
            float(torch.nn.functional.binary_cross_entropy_with_logits(score, label))
            for score, label in zip(scores, labels, strict=True)
        ]

    before = losses()
    for _ in range(60):
        ours.step({})
    assert all(after < first - 0.01 for after, first in zip(losses(), before, strict=True))
