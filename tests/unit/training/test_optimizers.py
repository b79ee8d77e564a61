"""Optimisers by name: torch's own, with settings per group and schedules; what can't work is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from metapt.errors import ConfigError
from metapt.method import Optimizer
from metapt.training.checkpoint import Checkpoint
from metapt.training.optimizers import OptimizerSpec


def params() -> dict[str, torch.Tensor]:
    return {name: torch.ones(2, 2, requires_grad=True) for name in ("conv.weight", "conv.bias", "scale")}


@pytest.mark.parametrize("name", sorted({*get_args(Optimizer), "ASGD", "Adafactor", "NAdam", "Rprop"}))
def test_an_optimiser_of_torch_by_name_takes_torchs_steps(name: str) -> None:
    ours, theirs = params(), params()
    pair = OptimizerSpec(name, {"lr": 0.1}).build(ours), getattr(torch.optim, name)(theirs.values(), lr=0.1)
    for _ in range(3):
        for optimizer, values in zip(pair, (ours, theirs), strict=True):
            optimizer.zero_grad()
            sum((value - 3).square().sum() for value in values.values()).backward()
            optimizer.step()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    for left, right in zip(*(each.state_dict()["state"].values() for each in pair), strict=True):
        assert all(torch.equal(torch.as_tensor(left[key]), torch.as_tensor(right[key])) for key in right)
    assert not torch.equal(ours["scale"], torch.ones(2, 2))


def test_a_group_has_its_own_settings_and_a_parameter_belongs_to_the_first_pattern_that_it_matches() -> None:
    spec = OptimizerSpec("SGD", {"lr": 0.1, "momentum": 0.5}, {"*.bias": {"lr": 1.0}, "conv.*": {"momentum": 0.9}})
    values = params()
    optimizer = spec.build(values)
    of = {
        name: next(group for group in optimizer.param_groups if any(value is each for each in group["params"]))
        for name, value in values.items()
    }
    assert {name: (group["lr"], group["momentum"]) for name, group in of.items()} == {
        "conv.bias": (1.0, 0.5),
        "conv.weight": (0.1, 0.9),
        "scale": (0.1, 0.5),
    }


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("Adan",), "the optimiser 'Adan' is no optimiser of torch.optim; legal: ASGD, Adadelta, .*, SGD$"),
        (("Optimizer",), "'Optimizer' is no optimiser"),
        (("lr_scheduler",), "'lr_scheduler' is no optimiser"),
        (("LBFGS",), r"'LBFGS' needs its loss again within each step \(a closure\); legal: (?!.*LBFGS)"),
        (("SparseAdam",), "'SparseAdam' takes sparse gradients only"),
        (("SGD", {"betas": (0.9, 0.99)}), "the optimiser SGD can't be made with .*betas"),
        (("SGD", {"lr": -1.0}), "Invalid learning rate: -1.0"),
        (("SGD", {}, {"bias": {"lr": 1.0}}), "optimiser group 'bias' matches no .*conv.weight, conv.bias, scale"),
        (("SGD", {}, {"*": {}, "scale": {}}), "'scale' matches no parameter that the groups before it leave"),
        (("SGD", {}, {"scale": {"learning_rate": 1.0}}), "can't be made with .*learning_rate"),
        (("SGD", {}, {"scale": {"lr": -2.0}}), "Invalid learning rate: -2.0"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(given: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        OptimizerSpec(*given).build(params())


@pytest.mark.slow
def test_the_step_of_an_optimiser_leaves_torchs_compiler_alone() -> None:
    code = """
import sys, torch
from metapt.training.optimizers import OptimizerSpec
weight = torch.ones(2, requires_grad=True)
optimizer = OptimizerSpec("Adam", {"lr": 0.1, "fused": True}).build({"weight": weight})
weight.sum().backward()
optimizer.step()
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_optimiser_can_be_differentiated_through_if_it_is_told_so() -> None:
    weight = torch.ones(2, requires_grad=True)
    value = weight.clone()
    rate = torch.tensor(0.1, requires_grad=True)
    optimizer = OptimizerSpec("SGD", {"lr": rate, "differentiable": True}).build({"value": value})
    value.grad = torch.ones(2)
    optimizer.step()
    assert torch.autograd.grad(value.sum(), rate) == (torch.tensor(-2.0),)


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], LRScheduler]] = {
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.5, total_steps=8, cycle_momentum=False),
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "warm-up, then cosine": lambda optimizer: SequentialLR(
        optimizer, [LinearLR(optimizer, total_iters=3), CosineAnnealingLR(optimizer, T_max=5)], milestones=[3]
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_learning_rates_follow_their_schedule_and_go_on_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    spec = OptimizerSpec("SGD", {"lr": 0.1}, schedule=SCHEDULES[name])
    weight = torch.zeros(1, requires_grad=True)
    theirs = torch.optim.SGD([weight], lr=0.1)
    schedule, expected = SCHEDULES[name](theirs), []
    for _ in range(7):
        expected.append(theirs.param_groups[0]["lr"])
        theirs.step()
        schedule.step()
    checkpoint = Checkpoint(tmp_path / "state", "")
    stepper, rates = spec.stepper({"weight": weight}), []
    for _ in range(7):
        rates.append(stepper.optimizer.param_groups[0]["lr"])
        weight.grad = torch.ones(1)
        stepper.step()
        checkpoint.save(stepper.state_dict())
        stepper = spec.stepper({"weight": weight})
        saved = checkpoint.load()
        assert saved is not None
        stepper.load_state_dict(saved)
    assert rates == expected
    assert weight.item() == pytest.approx(-sum(expected))


def test_a_schedule_that_waits_for_a_metric_is_refused() -> None:
    for schedule, kind in ((ReduceLROnPlateau, "ReduceLROnPlateau"), (lambda optimizer: None, "NoneType")):
        with pytest.raises(ConfigError, match=f"schedule returns a {kind}; legal: a function that takes the optim"):
            OptimizerSpec(schedule=schedule).stepper(params())
