"""Rotations are geometric and differentiable; networks and losses equal plain torch modules, alone and stacked."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metapt.domains.mnist import batches, networks, problem
from metapt.domains.mnist.config import Heads
from metapt.domains.mnist.problem import (
    DigitProblem,
    ExampleWeightsProblem,
    Images,
    RotationBatch,
    RotationProblem,
    WeightingProblem,
    rotate,
)
from metapt.hypergrad import Params, Pretrained, Stacked
from metapt.hypergrad.stacked import stack, stack_pretrained
from metapt.hypergrad.trial import check_second_derivatives, tried

HEADS: list[Heads] = ["separate", "shared"]


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int, side: int = 28) -> Tensor:
    return torch.rand(count, side, side, generator=stream(0), dtype=torch.float64)


@pytest.mark.parametrize("quarters", [-1, 0, 1, 2, 3, 4])
def test_quarter_turns_move_pixels_only(quarters: int) -> None:
    turned = rotate(images(3), torch.full((3,), 90.0 * quarters, dtype=torch.float64))
    torch.testing.assert_close(turned, torch.rot90(images(3), quarters, dims=(1, 2)), atol=1e-12, rtol=0)


def test_each_image_is_turned_counter_clockwise_by_its_own_angle() -> None:
    image = torch.zeros(2, 27, 27)
    image[:, 13, 23] = 1  # 10 pixels to the right of the centre
    for turned, angle in zip(rotate(image, torch.tensor([30.0, 250.0])), (30, 250), strict=True):
        row, column = divmod(int(turned.argmax()), 27)
        assert abs(row - (13 - 10 * math.sin(math.radians(angle)))) <= 0.5
        assert abs(column - (13 + 10 * math.cos(math.radians(angle)))) <= 0.5


def test_the_corners_of_a_turned_image_are_black() -> None:
    turned = rotate(torch.ones(1, 28, 28), torch.tensor([45.0]))
    assert (turned[0, 0, 0], turned[0, 14, 14]) == (0, pytest.approx(1))


def test_rotation_is_differentiable_in_the_angle_and_in_the_image() -> None:
    angles = torch.tensor([33.3, 200.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rotate, (images(2, side=6).requires_grad_(), angles))


@pytest.mark.parametrize(
    ("meta", "mean", "deviation"),
    [(None, 45.0, 15.0), ({"mean": 70.0}, 70.0, 1.0), ({"mean": 70.0, "deviation": 12.0}, 70.0, 12.0)],
    ids=["FT", "PT with a learned mean", "PT with both"],
)
def test_images_are_rotated_by_draws_from_the_distribution(
    monkeypatch: pytest.MonkeyPatch, meta: dict[str, float] | None, mean: float, deviation: float
) -> None:
    drawn: list[Tensor] = []
    for module in (problem, batches):
        monkeypatch.setattr(module, "rotate", lambda pixels, degrees: drawn.append(degrees) or pixels)
    if meta is None:
        batches.rotated(torch.zeros(4000, 1, 1), (mean, deviation), stream(1))
    else:
        batch = RotationBatch(
            torch.zeros(4000, 28, 28), torch.zeros(4000).long(), torch.randn(4000, generator=stream(2))
        )
        pretrained, _ = networks.initial("separate", 10, 10, stream(0), "cpu")
        RotationProblem().pretrain_loss(pretrained, {name: torch.tensor(value) for name, value in meta.items()}, batch)
    error = deviation / math.sqrt(4000)
    assert float(drawn[0].mean()) == pytest.approx(mean, abs=4 * error)
    assert float(drawn[0].std()) == pytest.approx(deviation, abs=4 * error / math.sqrt(2))


def minibatch(seed: int, size: int = 20, classes: int = 10) -> Images:
    return Images(
        torch.rand(size, 28, 28, generator=stream(seed)), torch.randint(classes, (size,), generator=stream(seed))
    )


def module(pretrained: Pretrained) -> nn.Module:
    """Return the PT network as a torch module."""
    hidden, output = nn.Linear(784, 64), nn.Linear(64, 10)
    weights = {**pretrained.encoder, **pretrained.head}
    hidden.load_state_dict({name: weights[f"hidden.{name}"] for name in ("weight", "bias")})
    output.load_state_dict({name: weights[f"output.{name}"] for name in ("weight", "bias")})
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), output)


def test_pt_and_ft_share_the_hidden_layer_or_all() -> None:
    def shapes(heads: Heads) -> list[dict[str, tuple[int, ...]]]:
        pretrained, head = networks.initial(heads, 1000, 5, stream(0), "cpu")
        parts = pretrained.encoder, pretrained.head, head
        return [{name: tuple(value.shape) for name, value in part.items()} for part in parts]

    encoder = {"hidden.weight": (64, 784), "hidden.bias": (64,)}
    output = {"output.weight": (1000, 64), "output.bias": (1000,)}
    assert shapes("separate") == [encoder, output, {"output.weight": (5, 64), "output.bias": (5,)}]
    assert shapes("shared") == [encoder | output, {}, {}]


@pytest.mark.parametrize("heads", HEADS)
def test_losses_are_those_of_a_torch_module(heads: Heads) -> None:
    pretrained, _ = networks.initial(heads, 10, 10, stream(0), "cpu")
    batch, network = minibatch(1), module(pretrained)
    noise, weights = torch.randn(20, generator=stream(2)), torch.rand(20, generator=stream(3))
    each = F.cross_entropy(network(batch.images), batch.labels, reduction="none")
    turned = F.cross_entropy(network(rotate(batch.images, 30 + 4 * noise)), batch.labels)
    cnn, angles = networks.weighting(stream(4)), {"mean": torch.tensor(30.0), "deviation": torch.tensor(4.0)}
    found = {
        RotationProblem().pretrain_loss(pretrained, angles, RotationBatch(*batch, noise)): turned,
        ExampleWeightsProblem().pretrain_loss(pretrained, {"weights": weights}, batch): (weights * each).mean(),
        WeightingProblem().pretrain_loss(pretrained, cnn, batch): (
            networks.example_weights(cnn, batch.images) * each
        ).mean(),
        DigitProblem().head_loss(pretrained.head, DigitProblem().encode(pretrained.encoder, batch), batch): each.mean(),
    }
    for loss, expected in found.items():
        torch.testing.assert_close(loss, expected)


def test_stacked_replicates_have_their_own_losses() -> None:
    single = [networks.initial("separate", 10, 10, stream(seed), "cpu") for seed in range(3)]
    apart = [RotationBatch(*minibatch(seed), torch.randn(20, generator=stream(seed))) for seed in range(3)]
    metas = [{"mean": torch.tensor(20.0 * seed)} for seed in range(3)]
    alone, stacked = RotationProblem(), Stacked(RotationProblem())
    pretrained, head = stack_pretrained([one for one, _ in single]), stack([one for _, one in single])
    batch = RotationBatch(*(torch.stack(parts) for parts in zip(*apart, strict=True)))
    expected = [alone.pretrain_loss(single[i][0], metas[i], apart[i]) for i in range(3)]
    torch.testing.assert_close(stacked.pretrain_losses(pretrained, stack(metas), batch), torch.stack(expected))
    expected = [alone.head_loss(single[i][1], alone.encode(single[i][0].encoder, apart[i]), apart[i]) for i in range(3)]
    found = stacked.head_loss(head, stacked.encode(pretrained.encoder, batch), batch)
    torch.testing.assert_close(found, torch.stack(expected).sum())


def test_the_weighting_cnn_is_the_papers() -> None:
    """Two convolutions (32 of 5 x 5, 64 of 3 x 3), each with BatchNorm, ReLU, pooling; a linear layer; 2 * sigmoid."""
    params = networks.weighting(stream(0))
    for name in [name for name in params if name.startswith("norm")]:  # else they are trivial
        params[name] = params[name] + 0.3 * torch.randn(params[name].shape, generator=stream(1))
    layers = [
        *(nn.Conv2d(1, 32, 5), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1600, 1)),
    ]
    for name, index in {"conv1": 0, "norm1": 1, "conv2": 4, "norm2": 5, "linear": 9}.items():
        own = {part: params[f"{name}.{part}"] for part in ("weight", "bias")}
        layers[index].load_state_dict(own, strict=not name.startswith("norm"))
    pixels = torch.rand(12, 28, 28, generator=stream(2))
    expected = 2 * torch.sigmoid(nn.Sequential(*layers)(pixels.unsqueeze(1)).squeeze(1))
    torch.testing.assert_close(networks.example_weights(params, pixels), expected)


class Rotation(RotationProblem):
    """A subclass is not taken for tested."""


class Weighting(WeightingProblem):
    """As above."""


class ExampleWeights(ExampleWeightsProblem):
    """As above."""


@pytest.mark.parametrize("kind", [Rotation, Weighting, ExampleWeights])
def test_second_derivatives_are_differences_of_gradients(kind: type[DigitProblem]) -> None:
    pretrained, head = networks.initial("separate", 10, 5, stream(0), "cpu")
    batch, rotated = minibatch(1), RotationBatch(*minibatch(1), torch.randn(20, generator=stream(2)))
    metas: dict[type, Params] = {
        Rotation: {"mean": torch.tensor(30.0), "deviation": torch.tensor(4.0)},
        Weighting: networks.weighting(stream(4)),
        ExampleWeights: {"weights": torch.rand(20, generator=stream(3))},
    }
    tested = kind()
    check_second_derivatives(
        tested, pretrained, metas[kind], head, rotated if kind is Rotation else batch,
        minibatch(2, classes=5), products=True, head_steps=True, network=True,
    )  # fmt: skip
    assert all(gap is not None and gap.agrees for gap in tried(tested).found.values())
