"""Linear CKA is the ratio of HSICs of its kernel form, whose invariances hold for large numbers, too."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from metapt.domains.ppi.experiments.representations.run import linear_cka


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = random(0, 50, 7)
Y = X @ random(1, 7, 11) + 2 * random(2, 50, 11)  # partly the features of X


def test_is_blind_to_rotation_scaling_and_translation() -> None:
    rotation = torch.linalg.qr(random(3, 7, 7)).Q
    for changed in (X @ rotation, -3e4 * X, X + 1e3 * random(4, 7), 1e-6 * X @ rotation + 5):
        assert linear_cka(changed, Y) == pytest.approx(linear_cka(X, Y), abs=1e-9)


def test_is_the_ratio_of_hsics_of_gram_matrices() -> None:
    x, y = X, Y
    centring = torch.eye(50, dtype=x.dtype) - 1 / 50

    def hsic(first: Tensor, second: Tensor) -> Tensor:
        return torch.trace(first @ first.T @ centring @ second @ second.T @ centring)

    expected = hsic(x, y) / (hsic(x, x) * hsic(y, y)).sqrt()
    assert linear_cka(x, y) == pytest.approx(float(expected), abs=1e-12)


def test_is_worked_out_in_float64_and_without_a_matrix_of_examples_by_examples() -> None:
    far, y = X.float() + 1000, Y.float()
    assert linear_cka(far, y) == pytest.approx(linear_cka(far.double(), y.double()), abs=1e-14)
    # A matrix of 400,000 by 400,000 examples would take 1.3 TB.
    assert linear_cka(random(0, 400_000, 2), random(1, 400_000, 3)) < 1e-4


def test_is_undefined_for_constant_features_and_no_numbers() -> None:
    for value in (0.1, math.nan, math.inf):
        assert math.isnan(linear_cka(torch.full((50, 3), value), X))
