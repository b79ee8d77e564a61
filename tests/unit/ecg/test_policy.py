"""The learned strength can't vanish or explode, and it depends on every meta-parameter."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from metapt.domains.ecg.augment import draw
from metapt.domains.ecg.policy import SCALE, Policy
from metapt.domains.ecg.problem import views
from metapt.hypergrad import Params

DTYPE = torch.float64
SIGNALS = torch.randn(6, 64, 12, generator=torch.Generator().manual_seed(1), dtype=DTYPE)
Scale = Literal["square", "log"]


def meta_of(policy: Policy) -> Params:
    return {name: value.double() for name, value in policy.initial(torch.Generator().manual_seed(0)).items()}


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
    assert float(plain.global_strength(meta)) == pytest.approx(unit)


@pytest.mark.parametrize("network_width", [0, 4])
@pytest.mark.parametrize(
    ("scale", "at", "moves"), [("square", 0.0, False), ("square", 0.1, True), ("log", 0.0, True), ("log", -3.0, True)]
)
def test_a_scale_of_0_is_stationary_where_it_is_squared_and_only_there(
    network_width: int, scale: Scale, at: float, moves: bool
) -> None:
    draws = draw(12, 64, 12, "fixed", torch.Generator().manual_seed(2), DTYPE, crop=0.5, noise=0.1)
    policy = Policy("velocity", scale, 1.0, network_width)
    meta = meta_of(policy) | {SCALE: torch.tensor(at, dtype=DTYPE, requires_grad=True)}
    weight = torch.linspace(-1, 1, 64, dtype=DTYPE).view(1, -1, 1)
    (slope,) = torch.autograd.grad((weight * views(policy, meta, SIGNALS, draws)).sum(), meta[SCALE])
    assert abs(float(slope)) > 1e-3 if moves else slope == 0


def test_every_meta_parameter_has_a_derivative_and_it_is_the_right_one() -> None:
    policy = Policy("velocity", "log", 2.0, 2)
    meta = {name: value.requires_grad_() for name, value in meta_of(policy).items()}
    assert len(meta) == 1 + 4 * 3 + 2

    def strengths(*values: Tensor) -> Tensor:
        return policy.strength(dict(zip(meta, values, strict=True)), SIGNALS[:4])

    assert torch.autograd.gradcheck(strengths, tuple(meta.values()))
    slopes = torch.autograd.grad(strengths(*meta.values())[0], list(meta.values()))
    assert all(slope.abs().max() > 1e-8 for slope in slopes)


def test_the_network_is_four_convolutions_with_batch_norm_of_the_minibatch() -> None:
    policy = Policy("velocity", "log", 1.0, 4)
    meta = meta_of(policy)
    layers: list[nn.Module] = []
    for layer in range(4):
        convolution = nn.Conv1d(4 if layer else 12, 4, 15, stride=2, padding=7, bias=False)
        convolution.weight.data = meta[f"network.{layer}.weight"].squeeze(2)
        layers += [convolution, nn.BatchNorm1d(4).double(), nn.ReLU()]
    hidden = nn.Sequential(*layers)(SIGNALS.transpose(1, 2)).mean(2)
    expected = 2 * torch.sigmoid(hidden @ meta["network.out.weight"][0] + meta["network.out.bias"])
    torch.testing.assert_close(policy.strength(meta, SIGNALS), expected)


def test_the_start_is_that_of_the_generator() -> None:
    policy = Policy("velocity", "log", 1.0, 4)
    first, again, other = (policy.initial(torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["network.0.weight"], other["network.0.weight"])
    assert first["network.0.weight"].abs().max() <= (12 * 15) ** -0.5
    assert first["network.out.weight"].abs().max() <= 4**-0.5
