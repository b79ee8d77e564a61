"""Crops, jitter and warps as in the paper, and the strength of the warp, which every meta-parameter moves."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metapt.domains.ecg import augment
from metapt.domains.ecg.augment import SCALE, Policy, Smoothing, crop_and_jitter, displacement, views, warp

from .small_ecgs import draws, meta_of

DTYPE = torch.float64
NONE = torch.zeros(60, dtype=DTYPE)
both = pytest.mark.parametrize("smoothing", ["displacement", "velocity"])
Scale = Literal["square", "log"]


def ecgs(count: int, samples: int, seed: int = 1) -> Tensor:
    """Return noise that is nowhere 0, each lead with a scale of its own."""
    noise = torch.randn(count, samples, 12, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)
    return (noise + 0.01 * noise.sign()) * torch.arange(1.0, 13.0, dtype=DTYPE)


def field(strength: float, smoothing: Smoothing, count: int = 100, samples: int = 1000) -> Tensor:
    velocity = torch.randn(count, samples, generator=torch.Generator().manual_seed(0), dtype=DTYPE)
    return displacement(torch.full((count,), strength, dtype=DTYPE), velocity, smoothing)


@pytest.mark.parametrize(("samples", "crop"), [(64, 0.5), (1000, 0.9)])
def test_a_crop_zeroes_one_stretch_of_each_lead_uniform_up_to_a_share(samples: int, crop: float) -> None:
    signals = ecgs(60, samples)
    result = crop_and_jitter(signals, draws(60, samples, crop=crop)._replace(jitter=NONE))
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


def test_jitter_is_white_noise_of_a_share_of_each_leads_deviation() -> None:
    signals, drawn = ecgs(60, 1000), draws(60, 1000)
    noise = crop_and_jitter(signals, drawn._replace(crop_length=torch.zeros(60, 12, dtype=DTYPE))) - signals
    torch.testing.assert_close(noise.std(1), 0.1 * signals.std(1), rtol=0.1, atol=0.0)
    lagged = (noise[:, 1:] * noise[:, :-1]).mean(1) / noise.square().mean(1)
    assert lagged.abs().mean() < 0.05
    cropped = crop_and_jitter(signals, drawn) - crop_and_jitter(signals, drawn._replace(jitter=NONE))
    torch.testing.assert_close(cropped, noise, msg="under a crop, too, and by the deviation of the lead before it")
    torch.testing.assert_close(draws(20, 4, noise=0.3).jitter, torch.full((20,), 0.3, dtype=DTYPE))
    jitter = draws(2000, 4, jitter="uniform").jitter
    assert 0 <= jitter.min() < jitter.max() <= 0.1 + 1e-7
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
    signals, low = ecgs(2, 64), torch.arange(64) + math.floor(shift)
    share = shift - math.floor(shift)
    expected = (1 - share) * signals[:, low.clamp(0, 63)] + share * signals[:, (low + 1).clamp(0, 63)]
    torch.testing.assert_close(warp(signals, torch.full((2, 64), shift, dtype=DTYPE)), expected)


FOLDED = [("velocity", 1.0, 0), ("velocity", 100.0, 0), ("displacement", 4.0, 0), ("displacement", 100 * 4.0**2, 1)]
"""The last one is the paper's m = 4 at the start."""


@pytest.mark.parametrize(("smoothing", "strength", "folded"), FOLDED)
def test_time_stays_in_order_where_the_warp_is_a_diffeomorphism(
    smoothing: Smoothing, strength: float, folded: float
) -> None:
    steps = 1 + field(strength, smoothing).diff(dim=1)
    assert (steps <= 0).any(1).double().mean() == folded


@pytest.mark.parametrize("strength", [0.1, 4.0])
def test_the_typical_displacement_is_about_the_strength_while_that_is_small(strength: float) -> None:
    assert float(field(strength, "velocity").square().mean().sqrt()) == pytest.approx(strength, rel=0.06)


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


FLOWS: list[tuple[Smoothing, float, int, int, float]] = [
    ("velocity", 2.0, 5, 4, 0.015), ("velocity", 8.0, 5, 4, 0.05), ("velocity", 8.0, 1, 4, 0.4),
    ("velocity", 2.0, 10, 1, 0.002), ("velocity", 8.0, 10, 1, 0.005), ("displacement", 0.1, 5, 4, 0.01),
]  # fmt: skip


@pytest.mark.parametrize(("smoothing", "strength", "squarings", "coarsening", "tolerance"), FLOWS)
def test_scaling_and_squaring_converges_to_the_flow(
    smoothing: Smoothing,
    strength: float,
    squarings: int,
    coarsening: int,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Errors are relative to the largest displacement; finer steps and a finer grid make them smaller."""
    monkeypatch.setattr(augment, "SQUARINGS", squarings)
    monkeypatch.setattr(augment, "COARSENING", coarsening)
    velocity = torch.randn(4, 1000, generator=torch.Generator().manual_seed(3), dtype=DTYPE)
    made = displacement(torch.full((4,), strength, dtype=DTYPE), velocity, smoothing).numpy()
    for noise, ours in zip(velocity.numpy(), made, strict=True):
        if smoothing == "velocity":
            truth = flow(smooth(noise, 36, unit_variance=True), strength, coarsening)
        else:
            truth = smooth(flow(noise, strength, coarsening), 12, unit_variance=False)
        assert np.abs(ours - truth).max() < tolerance * np.abs(truth).max()


@both
@pytest.mark.parametrize(("scale", "at"), [("square", 0.17), ("log", 1.03)])
def test_the_derivative_w_r_t_the_strength_is_that_of_finite_differences(
    smoothing: Smoothing, scale: Scale, at: float
) -> None:
    """Uses float64 at a generic point, since a warp has kinks where it reads at a sample."""
    policy, signals, drawn = Policy(smoothing, scale, 1.0, 0), ecgs(2, 64), draws(4)
    weights = torch.randn(5, 4 * 64 * 12, generator=torch.Generator().manual_seed(4), dtype=DTYPE)

    def sums(m: Tensor) -> Tensor:
        return weights @ views(policy, policy.strength({SCALE: m}, signals), signals, drawn).flatten()

    start = torch.tensor(at, dtype=DTYPE, requires_grad=True)
    assert torch.autograd.gradcheck(sums, (start,), eps=1e-7, atol=1e-3, rtol=1e-6)
    assert torch.autograd.functional.jacobian(sums, start).abs().min() > 1


SIGNALS = torch.randn(6, 64, 12, generator=torch.Generator().manual_seed(1), dtype=DTYPE)


@pytest.mark.parametrize(("scale", "start", "unit"), [("square", 3.0, 100 * 3.0**2), ("log", math.log(3.0), 3.0)])
def test_strengths_lie_between_0_and_twice_the_scale(scale: Scale, start: float, unit: float) -> None:
    policy = Policy("velocity", scale, 3.0, 4)
    strengths = policy.strength(meta_of(policy), 10 * SIGNALS)
    assert len(set(strengths.tolist())) == len(strengths) == 6, "each ECG has its own"
    assert ((strengths > 0) & (strengths < 2 * unit)).all()
    plain = Policy("displacement", scale, 3.0, 0)
    meta = meta_of(plain)
    assert list(meta) == [SCALE]
    assert meta[SCALE].item() == pytest.approx(start)
    assert plain.strength(meta, SIGNALS).tolist() == pytest.approx([unit] * 6)


@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize(("scale", "at", "moves"), [("square", 0.0, False), ("square", 0.1, True), ("log", -3.0, True)])
def test_a_scale_of_0_is_stationary_where_it_is_squared_and_only_there(
    width: int, scale: Scale, at: float, moves: bool
) -> None:
    policy = Policy("velocity", scale, 1.0, width)
    meta = meta_of(policy) | {SCALE: torch.tensor(at, dtype=DTYPE, requires_grad=True)}
    weight = torch.linspace(-1, 1, 64, dtype=DTYPE).view(1, -1, 1)
    shown = views(policy, policy.strength(meta, SIGNALS), SIGNALS, draws(12, seed=2))
    (slope,) = torch.autograd.grad((weight * shown).sum(), meta[SCALE])
    assert abs(float(slope)) > 1e-3 if moves else slope == 0


def test_every_meta_parameter_has_a_derivative_and_it_is_the_right_one() -> None:
    policy = Policy("velocity", "log", 2.0, 2)
    meta = {name: value.requires_grad_() for name, value in meta_of(policy).items()}
    assert len(meta) == 1 + 4 * 3 + 2

    def strengths(*values: Tensor) -> Tensor:
        return policy.strength(dict(zip(meta, values, strict=True)), SIGNALS[:4])

    assert torch.autograd.gradcheck(strengths, tuple(meta.values()), fast_mode=True)
    slopes = torch.autograd.grad(strengths(*meta.values())[0], list(meta.values()))
    assert all(slope.abs().max() > 1e-8 for slope in slopes)


def test_the_network_is_four_convolutions_with_batch_norm_of_the_minibatch_and_starts_as_torchs() -> None:
    policy = Policy("velocity", "log", 1.0, 4)
    meta, again = meta_of(policy), meta_of(policy)
    other = policy.initial(torch.Generator().manual_seed(1))
    assert all(torch.equal(meta[name], again[name]) for name in meta)
    assert not torch.equal(meta["network.0.weight"].float(), other["network.0.weight"])
    assert meta["network.0.weight"].abs().max() <= (12 * 15) ** -0.5
    assert meta["network.out.weight"].abs().max() <= 4**-0.5
    layers: list[nn.Module] = []
    for layer in range(4):
        convolution = nn.Conv1d(4 if layer else 12, 4, 15, stride=2, padding=7, bias=False)
        convolution.weight.data = meta[f"network.{layer}.weight"].squeeze(2)
        layers += [convolution, nn.BatchNorm1d(4).double(), nn.ReLU()]
    hidden = nn.Sequential(*layers)(SIGNALS.transpose(1, 2)).mean(2)
    expected = 2 * torch.sigmoid(hidden @ meta["network.out.weight"][0] + meta["network.out.bias"])
    torch.testing.assert_close(policy.strength(meta, SIGNALS), expected)
