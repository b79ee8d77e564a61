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
Scale = Literal["square", "log"]
scales = pytest.mark.parametrize(("scale", "unit"), [("square", 100 * 3.0**2), ("log", 3.0)])


def meta_of(policy: Policy, dtype: torch.dtype = DTYPE) -> Params:
    return {name: value.to(dtype) for name, value in policy.initial(torch.Generator().manual_seed(0)).items()}


def signals(count: int = 6, samples: int = 64) -> Tensor:
    return torch.randn(count, samples, 12, generator=torch.Generator().manual_seed(1), dtype=DTYPE)


@scales
def test_strengths_lie_between_0_and_twice_the_scale(scale: Scale, unit: float) -> None:
    policy = Policy("velocity", scale, 3.0, 4)
    meta = meta_of(policy)
    strengths = policy.strength(meta, 10 * signals())
    assert strengths.shape == (6,)
    assert len(set(strengths.tolist())) == 6  # each ECG its own
    assert (strengths > 0).all()
    assert (strengths < 2 * unit).all()
    meta["network.out.weight"].zero_()
    meta["network.out.bias"].zero_()
    torch.testing.assert_close(policy.strength(meta, signals()), torch.full((6,), unit, dtype=DTYPE))


@scales
def test_without_a_network_all_ecgs_have_the_strength_of_the_scale(scale: Scale, unit: float) -> None:
    policy = Policy("displacement", scale, 3.0, 0)
    meta = meta_of(policy)
    assert list(meta) == [SCALE]
    assert meta[SCALE].item() == pytest.approx(3.0 if scale == "square" else math.log(3.0))
    assert policy.strength(meta, signals()).tolist() == pytest.approx([unit] * 6)
    assert float(policy.global_strength(meta)) == pytest.approx(unit)


@pytest.mark.parametrize("network_width", [0, 4])
def test_a_scale_of_0_is_stationary_where_it_is_squared_and_only_there(network_width: int) -> None:
    draws = draw(12, 64, 12, "fixed", torch.Generator().manual_seed(2), DTYPE, crop=0.5, noise=0.1)

    def slope(scale: Scale, at: float) -> float:
        policy = Policy("velocity", scale, 1.0, network_width)
        meta = meta_of(policy) | {SCALE: torch.tensor(at, dtype=DTYPE, requires_grad=True)}
        weight = torch.linspace(-1, 1, 64, dtype=DTYPE).view(1, -1, 1)
        (gradient,) = torch.autograd.grad((weight * views(policy, meta, signals(), draws)).sum(), meta[SCALE])
        return abs(float(gradient))

    assert slope("square", 0.0) == 0
    assert slope("square", 0.1) > 1e-3
    assert slope("log", 0.0) > 1e-3
    assert slope("log", -3.0) > 1e-3


def test_every_meta_parameter_has_a_derivative_and_it_is_the_right_one() -> None:
    policy = Policy("velocity", "log", 2.0, 2)
    meta = {name: value.requires_grad_() for name, value in meta_of(policy).items()}
    assert len(meta) == 1 + 4 * 3 + 2
    inputs = signals(4)

    def strengths(*values: Tensor) -> Tensor:
        return policy.strength(dict(zip(meta, values, strict=True)), inputs)

    assert torch.autograd.gradcheck(strengths, tuple(meta.values()))
    for name, gradient in zip(
        meta, torch.autograd.grad(strengths(*meta.values())[0], list(meta.values())), strict=True
    ):
        assert gradient.abs().max() > 1e-8, name


def test_the_network_is_four_convolutions_with_batch_norm_of_the_minibatch() -> None:
    policy = Policy("velocity", "log", 1.0, 4)
    meta = meta_of(policy)
    layers: list[nn.Module] = []
    for layer in range(4):
        convolution = nn.Conv1d(4 if layer else 12, 4, 15, stride=2, padding=7, bias=False)
        convolution.weight.data = meta[f"network.{layer}.weight"].squeeze(2)
        layers += [convolution, nn.BatchNorm1d(4).double(), nn.ReLU()]
    hidden = nn.Sequential(*layers)(signals().transpose(1, 2)).mean(2)
    expected = 2 * torch.sigmoid(hidden @ meta["network.out.weight"][0] + meta["network.out.bias"])
    torch.testing.assert_close(policy.strength(meta, signals()), expected)


def test_the_start_is_that_of_the_generator() -> None:
    policy = Policy("velocity", "log", 1.0, 4)
    first, second, other = (policy.initial(torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["network.0.weight"], other["network.0.weight"])
    for name, value in first.items():
        if name.endswith(("0.weight", "out.weight")):
            assert value.abs().max() <= (12 * 15 if "0" in name else 4) ** -0.5
