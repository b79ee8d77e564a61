"""Rotations are geometric, differentiable, and drawn from the given distribution."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from metapt.domains.mnist import batches, networks, problem
from metapt.domains.mnist.problem import RotationBatch, RotationProblem, rotate
from metapt.hypergrad import Pretrained


def images(count: int, side: int = 28, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(count, side, side, generator=torch.Generator().manual_seed(0), dtype=dtype)


def test_no_rotation_is_the_identity() -> None:
    torch.testing.assert_close(rotate(images(3), torch.zeros(3)), images(3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("quarters", [-1, 1, 2, 3, 4])
def test_quarter_turns_move_pixels_only(quarters: int) -> None:
    turned = rotate(images(3, dtype=torch.float64), torch.full((3,), 90.0 * quarters, dtype=torch.float64))
    expected = torch.rot90(images(3, dtype=torch.float64), quarters, dims=(1, 2))
    torch.testing.assert_close(turned, expected, atol=1e-12, rtol=0)


def test_positive_angles_turn_counter_clockwise() -> None:
    image = torch.zeros(1, 27, 27)
    image[0, 13, 23] = 1  # 10 pixels to the right of the centre
    turned = rotate(image, torch.tensor([30.0]))
    row, column = divmod(int(turned.argmax()), 27)
    assert abs(row - (13 - 10 * math.sin(math.radians(30)))) <= 0.5
    assert abs(column - (13 + 10 * math.cos(math.radians(30)))) <= 0.5


def test_each_image_is_rotated_by_its_own_angle() -> None:
    angles = torch.tensor([10.0, 250.0])
    both = rotate(images(2), angles)
    for index in range(2):
        torch.testing.assert_close(
            both[index : index + 1], rotate(images(2)[index : index + 1], angles[index : index + 1])
        )


def test_the_corners_of_a_turned_image_are_black() -> None:
    turned = rotate(torch.ones(1, 28, 28), torch.tensor([45.0]))
    assert turned[0, 0, 0] == 0
    assert turned[0, 14, 14] == pytest.approx(1)


def test_rotation_is_differentiable_in_the_angle_and_in_the_image() -> None:
    angles = torch.tensor([33.3, 200.7], dtype=torch.float64, requires_grad=True)
    pixels = images(2, side=6, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(rotate, (pixels, angles))


def normal_with(angles: Tensor, mean: float, deviation: float) -> bool:
    """Return whether draws have this mean and standard deviation up to four standard errors."""
    error = deviation / math.sqrt(len(angles))
    return abs(float(angles.mean()) - mean) < 4 * error and abs(
        float(angles.std()) - deviation
    ) < 4 * error / math.sqrt(2)


def test_fine_tuning_images_are_rotated_by_draws_from_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    angles: list[Tensor] = []
    monkeypatch.setattr(batches, "rotate", lambda pixels, degrees: angles.append(degrees) or pixels)
    batches.rotated(torch.zeros(4000, 1, 1), (45.0, 15.0), torch.Generator().manual_seed(1))
    assert normal_with(angles[0], 45, 15)


@pytest.mark.parametrize(
    ("meta", "deviation"),
    [({"mean": 70.0}, 1.0), ({"mean": 70.0, "deviation": 12.0}, 12.0)],
    ids=["mean", "mean and deviation"],
)
def test_pretraining_images_are_rotated_by_draws_from_the_learned_distribution(
    monkeypatch: pytest.MonkeyPatch, meta: dict[str, float], deviation: float
) -> None:
    angles: list[Tensor] = []
    monkeypatch.setattr(problem, "rotate", lambda pixels, degrees: angles.append(degrees) or pixels)
    noise = torch.randn(4000, generator=torch.Generator().manual_seed(2))
    batch = RotationBatch(torch.zeros(4000, 28, 28), torch.zeros(4000, dtype=torch.int64), noise)
    pretrained: Pretrained = networks.initial("separate", 10, 10, torch.Generator().manual_seed(0), "cpu")[0]
    RotationProblem().pretrain_loss(pretrained, {name: torch.tensor(value) for name, value in meta.items()}, batch)
    assert normal_with(angles[0], 70, deviation)
