"""Crops, jitter and warps as in the paper; a smoothed velocity gives a diffeomorphism where the paper's warp folds."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from metapt.domains.ecg import augment
from metapt.domains.ecg.augment import Draws, Smoothing, crop_and_jitter, displacement, draw, warp
from metapt.domains.ecg.policy import Policy
from metapt.domains.ecg.problem import views

DTYPE = torch.float64
NONE = torch.zeros(60, dtype=DTYPE)
both = pytest.mark.parametrize("smoothing", ["displacement", "velocity"])


def drawn(
    views: int, samples: int, jitter: Literal["fixed", "uniform"] = "fixed", crop: float = 0.5, noise: float = 0.1
) -> Draws:
    return draw(views, samples, 12, jitter, torch.Generator().manual_seed(0), DTYPE, crop=crop, noise=noise)


def ecgs(views: int, samples: int, seed: int = 1) -> Tensor:
    """Return noise that is nowhere 0, each lead with a scale of its own."""
    noise = torch.randn(views, samples, 12, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)
    return (noise + 0.01 * noise.sign()) * torch.arange(1.0, 13.0, dtype=DTYPE)


def field(strength: float, smoothing: Smoothing, views: int = 100, samples: int = 1000, seed: int = 0) -> Tensor:
    velocity = torch.randn(views, samples, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)
    return displacement(torch.full((views,), strength, dtype=DTYPE), velocity, smoothing)


@pytest.mark.parametrize(("samples", "crop"), [(64, 0.5), (1000, 0.5), (1000, 0.9)])
def test_a_crop_zeroes_one_stretch_of_each_lead_uniform_up_to_a_share(samples: int, crop: float) -> None:
    signals = ecgs(60, samples)
    result = crop_and_jitter(signals, drawn(60, samples, crop=crop)._replace(jitter=NONE))
    zeroed = result == 0
    assert torch.equal(result[~zeroed], signals[~zeroed])
    lengths = zeroed.sum(1)
    assert 0.96 * crop * samples < lengths.max() <= crop * samples + 1
    assert lengths.min() < 0.02 * samples
    assert lengths.double().mean() == pytest.approx(crop * samples / 2, rel=0.1)
    edges = zeroed.int().diff(dim=1, prepend=torch.zeros(60, 1, 12), append=torch.zeros(60, 1, 12))
    assert (edges.eq(1).sum(1) == (lengths > 0)).all(), "one stretch"
    assert (zeroed[:, :, :1] != zeroed[:, :, 1:]).any(1).all(), "each lead has its own"
    where = zeroed.double().mean((0, 2))
    assert where[0] < 0.05 < 0.3 < where[samples // 2]


def test_jitter_is_white_noise_of_a_tenth_of_each_leads_deviation() -> None:
    signals, draws = ecgs(60, 1000), drawn(60, 1000)
    noise = crop_and_jitter(signals, draws._replace(crop_length=torch.zeros(60, 12, dtype=DTYPE))) - signals
    torch.testing.assert_close(noise.std(1), 0.1 * signals.std(1), rtol=0.1, atol=0.0)
    lagged = (noise[:, 1:] * noise[:, :-1]).mean(1) / noise.square().mean(1)
    assert lagged.abs().mean() < 0.05
    cropped = crop_and_jitter(signals, draws) - crop_and_jitter(signals, draws._replace(jitter=NONE))
    torch.testing.assert_close(cropped, noise, msg="under a crop, too, and by the deviation of the lead before it")


def test_the_strength_of_jitter_is_fixed_or_uniform_over_views() -> None:
    assert (drawn(20, 4, noise=0.3).jitter == 0.3).all()
    jitter = drawn(2000, 4, "uniform").jitter
    assert 0 <= jitter.min() < jitter.max() <= 0.1
    assert float(jitter.mean()) == pytest.approx(0.05, rel=0.05)


@both
def test_a_small_strength_is_close_to_the_identity_which_is_one_to_the_bit(smoothing: Smoothing) -> None:
    signals = torch.sin(0.05 * torch.arange(1000, dtype=DTYPE)).view(1, -1, 1).expand(100, -1, 12)
    assert torch.equal(warp(signals, field(0.0, smoothing)), signals)
    tiny, twice = field(1e-6, smoothing), field(2e-6, smoothing)
    torch.testing.assert_close(twice, 2 * tiny, rtol=1e-4, atol=1e-12)  # linear in the strength
    assert (warp(signals, tiny) - signals).abs().max() < 1e-6


@pytest.mark.parametrize("shift", [-5.0, 0.25, 3.0])
def test_a_constant_displacement_shifts_all_leads_and_repeats_the_end_values(shift: float) -> None:
    signals = ecgs(2, 64)
    low = torch.arange(64) + math.floor(shift)
    share = shift - math.floor(shift)
    expected = (1 - share) * signals[:, low.clamp(0, 63)] + share * signals[:, (low + 1).clamp(0, 63)]
    torch.testing.assert_close(warp(signals, torch.full((2, 64), shift, dtype=DTYPE)), expected)


@pytest.mark.parametrize(
    ("smoothing", "strength", "folded"),
    [
        ("velocity", 1.0, 0.0),
        ("velocity", 100.0, 0.0),
        ("displacement", 4.0, 0.0),
        ("displacement", 100 * 4.0**2, 1.0),  # the paper's m = 4 at the start
    ],
)
def test_time_stays_in_order_where_the_warp_is_a_diffeomorphism(
    smoothing: Smoothing, strength: float, folded: float
) -> None:
    steps = 1 + field(strength, smoothing).diff(dim=1)
    assert (steps <= 0).any(1).double().mean() == folded


@pytest.mark.parametrize("strength", [0.1, 4.0])
def test_the_typical_displacement_is_about_the_strength_while_that_is_small(strength: float) -> None:
    typical = field(strength, "velocity").square().mean().sqrt()
    assert float(typical) == pytest.approx(strength, rel=0.06)


def smooth(velocity: NDArray[np.float64], radius: int, unit_variance: bool) -> NDArray[np.float64]:
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / 12) ** 2)
    return np.convolve(velocity, kernel / (np.sqrt((kernel**2).sum()) if unit_variance else kernel.sum()), "same")


def flow(velocity: NDArray[np.float64], strength: float, coarsening: int) -> NDArray[np.float64]:
    """Return the displacement after unit time in a piecewise linear velocity field on the coarser grid (RK4)."""
    samples, coarse = len(velocity), len(velocity) // coarsening
    grid = np.arange(coarse, dtype=float)
    at_grid = np.interp(np.linspace(0, samples - 1, coarse), np.arange(samples), velocity) * strength / coarsening

    def v(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.interp(x, grid, at_grid)

    x, steps = grid.copy(), 200
    for _ in range(steps):
        a = v(x)
        b = v(x + a / (2 * steps))
        c = v(x + b / (2 * steps))
        d = v(x + c / steps)
        x = x + (a + 2 * b + 2 * c + d) / (6 * steps)
    return np.interp(np.linspace(0, coarse - 1, samples), grid, coarsening * (x - grid))


@pytest.mark.parametrize(
    ("strength", "squarings", "coarsening", "tolerance"),
    [(2.0, 5, 4, 0.015), (8.0, 5, 4, 0.05), (8.0, 1, 4, 0.4), (2.0, 10, 1, 0.002), (8.0, 10, 1, 0.005)],
)
def test_scaling_and_squaring_converges_to_the_flow(
    monkeypatch: pytest.MonkeyPatch, strength: float, squarings: int, coarsening: int, tolerance: float
) -> None:
    """Errors are relative to the largest displacement; finer steps and a finer grid make them smaller."""
    monkeypatch.setattr(augment, "SQUARINGS", squarings)
    monkeypatch.setattr(augment, "COARSENING", coarsening)
    velocity = torch.randn(4, 1000, generator=torch.Generator().manual_seed(3), dtype=DTYPE)
    made = displacement(torch.full((4,), strength, dtype=DTYPE), velocity, "velocity").numpy()
    for noise, ours in zip(velocity.numpy(), made, strict=True):
        truth = flow(smooth(noise, 36, unit_variance=True), strength, coarsening)
        assert np.abs(ours - truth).max() < tolerance * np.abs(truth).max()


def test_the_papers_field_is_smoothed_afterwards() -> None:
    velocity = torch.randn(4, 1000, generator=torch.Generator().manual_seed(3), dtype=DTYPE)
    made = displacement(torch.full((4,), 0.1, dtype=DTYPE), velocity, "displacement").numpy()
    for noise, ours in zip(velocity.numpy(), made, strict=True):
        truth = smooth(flow(noise, 0.1, 4), 12, unit_variance=False)
        assert np.abs(ours - truth).max() < 0.01 * np.abs(truth).max()


@both
@pytest.mark.parametrize("scale", ["square", "log"])
def test_the_derivative_w_r_t_the_strength_is_that_of_finite_differences(
    smoothing: Smoothing, scale: Literal["square", "log"]
) -> None:
    """Uses float64 at a generic point, since a warp has kinks where it reads at a sample."""
    policy = Policy(smoothing, scale, 1.0, 0)
    signals, draws = ecgs(2, 64), drawn(4, 64)
    at = torch.tensor(0.17 if scale == "square" else 1.03, dtype=DTYPE, requires_grad=True)
    weights = torch.randn(5, 4 * 64 * 12, generator=torch.Generator().manual_seed(4), dtype=DTYPE)

    def sums(m: Tensor) -> Tensor:
        return weights @ views(policy, {"scale": m}, signals, draws).flatten()

    assert torch.autograd.gradcheck(sums, (at,), eps=1e-7, atol=1e-3, rtol=1e-6)
    assert torch.autograd.functional.jacobian(sums, at).abs().min() > 1
