"""Rotations are geometric and differentiable; networks and losses equal plain torch modules, alone and stacked."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metapt.domains.mnist.config import Heads
from metapt.domains.mnist.problem import (
    DigitProblem,
    ExampleWeightsProblem,
    Images,
    RotationBatch,
    RotationProblem,
    WeightingProblem,
    example_weights,
    initial_weights,
    rotate,
    weighting_network,
)
from metapt.hypergrad import Params, Pretrained, Stacked
from metapt.hypergrad.stacked import stack, stack_pretrained
from metapt.hypergrad.trial import Given, check_second_derivatives, tried

HEADS: list[Heads] = ["separate", "shared"]


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int, side: int = 28) -> Tensor:
    return torch.rand(count, side, side, generator=stream(0), dtype=torch.float64)


def test_each_image_is_turned_counter_clockwise_by_its_own_angle() -> None:
    quarters = range(-1, 5)
    turned = rotate(images(6), 90.0 * torch.tensor(quarters, dtype=torch.float64))
    expected = [torch.rot90(image, quarter) for image, quarter in zip(images(6), quarters, strict=True)]
    torch.testing.assert_close(turned, torch.stack(expected), atol=1e-12, rtol=0)
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
        pretrained, head = initial_weights(heads, 1000, 5, stream(0), "cpu")
        parts = pretrained.encoder, pretrained.head, head
        return [{name: tuple(value.shape) for name, value in part.items()} for part in parts]

    encoder = {"hidden.weight": (64, 784), "hidden.bias": (64,)}
    output = {"output.weight": (1000, 64), "output.bias": (1000,)}
    assert shapes("separate") == [encoder, output, {"output.weight": (5, 64), "output.bias": (5,)}]
    assert shapes("shared") == [encoder | output, {}, {}]


@pytest.mark.parametrize("heads", HEADS)
def test_losses_are_those_of_a_torch_module(heads: Heads) -> None:
    pretrained, _ = initial_weights(heads, 10, 10, stream(0), "cpu")
    batch, network = minibatch(1), module(pretrained)
    noise, weights = torch.randn(20, generator=stream(2)), torch.rand(20, generator=stream(3))
    each = F.cross_entropy(network(batch.images), batch.labels, reduction="none")
    cnn, mean, deviation = weighting_network(stream(4)), torch.tensor(30.0), torch.tensor(4.0)

    def rotated(**meta: Tensor) -> Tensor:
        return RotationProblem().pretrain_loss(pretrained, meta, RotationBatch(*batch, noise))

    found = {
        rotated(mean=mean): F.cross_entropy(network(rotate(batch.images, 30 + noise)), batch.labels),
        rotated(mean=mean, deviation=deviation): F.cross_entropy(
            network(rotate(batch.images, 30 + 4 * noise)), batch.labels
        ),
        ExampleWeightsProblem().pretrain_loss(pretrained, {"weights": weights}, batch): (weights * each).mean(),
        WeightingProblem().pretrain_loss(pretrained, cnn, batch): (example_weights(cnn, batch.images) * each).mean(),
        DigitProblem().head_loss(pretrained.head, DigitProblem().encode(pretrained.encoder, batch), batch): each.mean(),
    }
    for loss, expected in found.items():
        torch.testing.assert_close(loss, expected)


def test_stacked_replicates_have_their_own_losses() -> None:
    single = [initial_weights("separate", 10, 10, stream(seed), "cpu") for seed in range(3)]
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
    params = weighting_network(stream(0))
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
    torch.testing.assert_close(example_weights(params, pixels), expected)


@pytest.mark.parametrize("base", [RotationProblem, WeightingProblem, ExampleWeightsProblem])
def test_second_derivatives_are_differences_of_gradients(base: type[DigitProblem]) -> None:
    tested = type("Untested", (base,), {})()  # a subclass is not taken for tested
    pretrained, head = initial_weights("separate", 10, 5, stream(0), "cpu")
    batch: Any = minibatch(1)
    meta: Params = {"weights": torch.rand(20, generator=stream(3))}
    if base is RotationProblem:
        batch = RotationBatch(*batch, torch.randn(20, generator=stream(2)))
        meta = {"mean": torch.tensor(30.0), "deviation": torch.tensor(4.0)}
    elif base is WeightingProblem:
        meta = weighting_network(stream(4))
    given = Given(pretrained, meta, head, batch, minibatch(2, classes=5))
    check_second_derivatives(tested, given, products=True, head_steps=True, network=True)
    assert all(gap is not None and gap.agrees for gap in tried(tested).values())
