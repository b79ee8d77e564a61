"""NT-Xent is the formula of Chen et al. (2020), and convex where the Gauss-Newton matrix needs it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from metapt.domains.ecg.contrastive import cross_entropy, similarities


def projections(seed: int = 0, count: int = 8, size: int = 5) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(z: Tensor, temperature: float) -> float:
    """Return the mean over views i, with partner j, of -log exp(s_ij / t) / sum over k != i of exp(s_ik / t)."""
    count, total = len(z), 0.0

    def s(i: int, k: int) -> float:
        return float(z[i] @ z[k] / (z[i].norm() * z[k].norm()) / temperature)

    for i in range(count):
        j = (i + count // 2) % count
        total -= s(i, j) - math.log(sum(math.exp(s(i, k)) for k in range(count) if k != i))
    return total / count


def nt_xent(z: Tensor, temperature: float) -> Tensor:
    return cross_entropy(similarities(z, temperature))


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("count", [2, 4, 10])
def test_it_is_the_double_loop(temperature: float, count: int) -> None:
    z = projections(1, count)
    assert float(nt_xent(z, temperature)) == pytest.approx(by_hand(z, temperature), rel=1e-12, abs=1e-12)


def test_its_derivatives_are_those_of_finite_differences() -> None:
    z = projections().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: nt_xent(z, 0.5), (z,))
    assert torch.autograd.gradgradcheck(lambda z: nt_xent(z, 0.5), (z,))


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_convex_in_the_similarities(seed: int) -> None:
    for at in (3 * projections(seed, 6, 6), similarities(projections(seed, 6), 0.5)):
        hessian = torch.autograd.functional.hessian(cross_entropy, at).reshape(36, 36)
        assert hessian.isfinite().all()
        assert torch.linalg.eigvalsh(hessian).min() > -1e-12
