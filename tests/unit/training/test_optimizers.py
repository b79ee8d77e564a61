"""Optimisers, schedules, solvers and recorders: torch's own by name; what can't work is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedules
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, LRScheduler, OneCycleLR, SequentialLR

from metapt import MetaSettings, OptimizerSpec, Pretrainer, Recorder
from metapt.errors import ConfigError
from metapt.hypergrad import SGD, Adam, FittedHead, Neumann, Unroll
from metapt.method import Optimizer
from metapt.training.checkpoint import Checkpoint

from .kinds import refused, right
from .small_runs import SETTINGS, Batches, Table, made, pretrain, problem, resumed, run, spec

NO_TENSOR = pytest.mark.skipif(torch.__version__ < (2, 7), reason="torch 2.6 takes no such tensor for a learning rate")


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
    for mine, others in zip(*(each.state_dict()["state"].values() for each in pair), strict=True):
        assert all(torch.equal(torch.as_tensor(mine[key]), torch.as_tensor(others[key])) for key in others)
    assert not torch.equal(ours["scale"], torch.ones(2, 2))


def test_a_group_has_its_own_settings_and_a_parameter_belongs_to_the_first_pattern_that_it_matches() -> None:
    spec = OptimizerSpec("SGD", {"lr": 0.1, "momentum": 0.5}, {"*.bias": {"lr": 1.0}, "conv.*": {"momentum": 0.9}})
    values = params()
    names = {id(value): name for name, value in values.items()}
    groups = spec.build(values).param_groups
    found = {names[id(each)]: (group["lr"], group["momentum"]) for group in groups for each in group["params"]}
    assert found == {"conv.bias": (1.0, 0.5), "conv.weight": (0.1, 0.9), "scale": (0.1, 0.5)}


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


@NO_TENSOR
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
        optimizer, [schedules.LinearLR(optimizer, total_iters=3), CosineAnnealingLR(optimizer, T_max=5)], milestones=[3]
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


def test_what_an_optimiser_keeps_in_another_type_than_its_parameters_goes_on(tmp_path: Path) -> None:
    again, whole = resumed(tmp_path / "run", replace(SETTINGS, pretrain_optimizer=spec("NAdam", lr=0.05)))
    assert all(map(torch.equal, again, whole)), "torch's NAdam has float32 beside parameters of float64"


# Numbers of NumPy and torch

NUMPY = {
    "array": spec(lr=np.array(0.01)),
    "in a group": OptimizerSpec("SGD", {}, {"*.bias": {"lr": np.float64(0.1)}}),
    "tuple": spec("Adam", betas=tuple(np.linspace(0.8, 0.9, 2)), amsgrad=np.bool_(True)),
    "milestones": spec(schedule=lambda made: schedules.MultiStepLR(made, np.array([2, 5, 8]), gamma=np.float64(0.5))),
    "function": spec(schedule=lambda made: LambdaLR(made, lambda step: np.interp(step, [0, 9], [1.0, 0.1]))),
    "sequence": spec(
        schedule=lambda made: SequentialLR(
            made, [ExponentialLR(made, np.float64(0.9)), ExponentialLR(made, 0.5)], milestones=[np.int64(5)]
        )
    ),
    "of a user": spec(schedule=lambda made: Table(made, {np.int64(3): [np.float64(0.1)]})),
}
NUMBERS, RATE = "NumPy numbers in an `OptimizerSpec`", "A learning rate that is a tensor, with a schedule or groups"


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.filterwarnings("ignore:.*EPOCH_DEPRECATION|The epoch parameter:UserWarning")
@right(NUMBERS, 0)
def test_a_run_with_numpy_numbers_goes_on(name: str, tmp_path: Path) -> tuple[Any, Any]:
    optimizers = {"pretrain_optimizer": NUMPY[name], "meta_optimizer": spec(lr=np.float32(0.01))}
    return resumed(tmp_path / "run", replace(SETTINGS, **optimizers))


@right(NUMBERS, 0)
def test_numpy_numbers_in_settings_are_pythons_numbers(tmp_path: Path) -> tuple[Any, Any]:
    numbers: Any = {"iterations": np.int64(6), "warmup": np.int32(1), "average_decay": np.float64(0.9)}
    inverse = Neumann(np.int64(1), np.float64(0.1))  # type: ignore[arg-type]
    finetuning = Unroll(np.int64(2), Adam(np.float64(0.1)))  # type: ignore[arg-type]
    learned, _ = resumed(tmp_path / "run", replace(SETTINGS, inverse=inverse, finetuning=finetuning, **numbers))
    return learned, run(made(replace(SETTINGS, iterations=6, warmup=1, average_decay=0.9)))


@pytest.mark.parametrize(
    ("lr", "decay"), [(torch.tensor(0.1), 0.8), pytest.param(torch.tensor([0.1]), 1.0, marks=NO_TENSOR)]
)
@right(RATE, 1e-6)
def test_a_learning_rate_of_a_user_stays_as_it_is(lr: Tensor, decay: float) -> tuple[Any, Any]:
    decaying: Callable[[Any], LRScheduler] = lambda made: ExponentialLR(made, decay)  # noqa: E731
    shared, by_number = (
        OptimizerSpec("SGD", {"lr": rate}, {"head.*": {"momentum": 0.5}}, decaying) for rate in (lr, 0.1)
    )
    before = lr.clone()
    found = [pretrain(None, count=20, optimizer=shared) for _ in range(2)]
    assert torch.equal(lr, before)
    return found, [pretrain(None, count=20, optimizer=by_number)] * 2


@right(RATE, 0)
def test_a_run_with_a_learning_rate_that_is_a_tensor_goes_on(tmp_path: Path) -> tuple[Any, Any]:
    own = spec(lr=torch.tensor(0.01), schedule=lambda made: ExponentialLR(made, 0.8))
    return resumed(tmp_path / "run", replace(SETTINGS, pretrain_optimizer=own, meta_optimizer=own))


@pytest.mark.parametrize("reuse", [False, True])
def test_a_schedule_that_the_user_holds_goes_on_with_each_step_and_after_a_resume(reuse: bool, tmp_path: Path) -> None:
    held: list[LRScheduler] = []

    def schedule(made: Any) -> LRScheduler:
        held[:] = [ExponentialLR(made, 0.8)]
        return held[0]

    settings = replace(SETTINGS, pretrain_optimizer=spec(schedule=schedule), reuse_gradient=reuse)
    run(made(settings), tmp_path / "run", stop=4)
    run(made(settings), tmp_path / "run")
    assert held[0].last_epoch == SETTINGS.iterations * SETTINGS.pretrain_steps


@right("A dictionary of settings that is changed later", 0)
def test_settings_are_copied() -> tuple[Any, Any]:
    given = {"lr": 0.01}
    own = OptimizerSpec("SGD", given)
    given["lr"] = 1.0
    return pretrain(None, optimizer=own), pretrain(None)


# What is refused


def settings(changes: dict[str, Any]) -> MetaSettings:
    return MetaSettings(**({"iterations": 6} | changes))


def plain(optimizer: Any) -> None:
    own = problem()
    Pretrainer(own, Batches(), own.pretrained, optimizer)


def built(*arguments: Any) -> None:
    OptimizerSpec(*arguments).build(params())


def scheduled(schedule: Any) -> None:
    OptimizerSpec("SGD", schedule=schedule).stepper({"weight": WEIGHT})


WEIGHT = nn.Parameter(torch.zeros(1))
TORCHS = torch.optim.SGD([WEIGHT], 0.1)
OTHERS_SCHEDULE = ExponentialLR(TORCHS, 0.9)
CLASS = "A class, a function, a text or an optimiser of torch in the place of a solver or an `OptimizerSpec`"
OTHER = "Other things in an `OptimizerSpec`"
SCHEDULE = "A schedule that is a function of the step"
RANGES: dict[str, list[tuple[str, Any]]] = {
    "a whole number": [("iterations", 6.0), ("iterations", "6"), ("warmup", None)],
    "a whole number, 1 or more": [(key, 0) for key in ("iterations", "pretrain_steps", "accumulate", "max_skipped")],
    "a whole number, 0 or more": [(key, -1) for key in ("warmup", "remainder", "head_steps_between_updates")],
    "a positive number": [("clip_norm", 0.0)],
    "between 0 and 1": [("average_decay", 1.0)],
    "more than 1": [("explosion_factor", 1.0)],
    "hessian or gauss_newton": [("curvature", "gauss-newton")],
}
CLASSES: list[tuple[dict[str, Any], str]] = [
    *(({key: value}, f"{key} is {value!r}; legal: {legal}") for legal, given in RANGES.items() for key, value in given),
    ({"warmup": 6}, "warmup is 6 of 6 iterations"),
    ({"inverse": Neumann}, "inverse is the class Neumann; legal: a solver, such as Neumann"),
    ({"inverse": "neumann"}, "inverse is a str; legal"),
    ({"finetuning": FittedHead}, "finetuning is the class FittedHead; legal: a solver, such as FittedHead"),
    ({"finetuning": None}, "finetuning is a NoneType"),
    ({"finetuning": Neumann(1, 0.1)}, "a Neumann, has no attribute minibatches and no optimizer and no uses_head"),
    ({"finetuning": Unroll(1, OptimizerSpec("SGD"))}, "optimizer of the FT solver is a OptimizerSpec"),
    ({"finetuning": Unroll(1, SGD)}, "optimizer of the FT solver is the class SGD"),  # type: ignore[arg-type]
    ({"finetuning": FittedHead(), "head_steps_between_updates": 1}, "a FittedHead, has no optimizer for steps of the"),
    ({"pretrain_optimizer": torch.optim.SGD}, "pretrain_optimizer is the class SGD; legal: an OptimizerSpec"),
    ({"meta_optimizer": TORCHS}, "meta_optimizer is a SGD"),
    ({"pretrain_optimizer": spec(maximize=True)}, "maximizes; legal: to minimize"),
    ({"pretrain_optimizer": OptimizerSpec("SGD", {}, {"*": {"maximize": True}})}, "maximizes; legal: to minimize"),
]
REFUSED: list[tuple[str, Callable[..., object], tuple[Any, ...], str]] = [
    *((CLASS, plain, (given,), "optimizer is ") for given in (torch.optim.SGD, "SGD", TORCHS, {"lr": 0.1}, SGD(0.1))),
    (OTHER, built, (torch.optim.SGD, {"lr": 0.1}), "the name of an optimiser is the class SGD; legal: the name of"),
    *((OTHER, built, ("SGD", bad), "the settings of the optimiser 'SGD' are a") for bad in (0.1, [("lr", 1)], None)),
    *((OTHER, built, ("SGD", {}, bad), "the groups of the optimiser 'SGD' are") for bad in ({"*": 0.1}, [{"lr": 1}])),
    *((OTHER, built, ("SGD", {}, {}, given), "schedule is a") for given in (0.9, OTHERS_SCHEDULE)),
    *((OTHER, built, (name,), f"{name!r} is no optim") for name in ("Adan", "Optimizer", "lr_scheduler")),
    (OTHER, built, ("LBFGS",), "'LBFGS' needs its loss again within each step (a closure); legal: ASGD, Adadelta, "),
    (OTHER, built, ("SparseAdam",), "'SparseAdam' takes sparse gradients only"),
    (OTHER, built, ("SGD", {"betas": (0.9, 0.99)}), "the optimiser SGD can't be made with {'betas'"),
    (OTHER, built, ("SGD", {"lr": -1.0}), "Invalid learning rate: -1.0"),
    (OTHER, built, ("SGD", {}, {"bias": {}}), "group 'bias' matches no parameter"),
    (OTHER, built, ("SGD", {}, {"bias": {}}), "there are: conv.weight, conv.bias, scale"),
    (OTHER, built, ("SGD", {}, {"*": {}, "scale": {}}), "'scale' matches no parameter that the groups before it leave"),
    (OTHER, built, ("SGD", {}, {"scale": {"learning_rate": 1.0}}), "can't be made with {'learning_rate'"),
    (OTHER, built, ("SGD", {}, {"scale": {"lr": -2.0}}), "Invalid learning rate: -2.0"),
    *(
        (SCHEDULE, scheduled, (given,), "schedule can't be called with an optimiser (TypeError")
        for given in (lambda step: 0.99**step, lambda: None, CosineAnnealingLR)
    ),
    (SCHEDULE, scheduled, (lambda optimizer: 0.1,), "schedule returns a float; legal: a function"),
    (SCHEDULE, scheduled, (lambda optimizer: ExponentialLR,), "schedule returns the class ExponentialLR"),
    (SCHEDULE, scheduled, (lambda optimizer: OTHERS_SCHEDULE,), "schedule returns a ExponentialLR of another optim"),
    (SCHEDULE, scheduled, (schedules.ReduceLROnPlateau,), "schedule returns a ReduceLROnPlateau"),
]


@pytest.mark.parametrize(
    ("refuses", "call", "given"),
    [
        *((refused(CLASS, words, error=ConfigError), settings, (changes,)) for changes, words in CLASSES),
        *((refused(row, words, error=ConfigError), call, given) for row, call, given, words in REFUSED),
    ],
)
def test_what_cannot_work_is_refused(refuses: Callable[..., Any], call: Callable[..., Any], given: Any) -> None:
    refuses(call)(*given)


RECORDER, LEGAL = "A `Recorder` that is given numbers", "legal: a function that returns a dictionary of tensors"
given_numbers = refused(RECORDER, LEGAL, "torch.tensor", "Recorder is given")


SEEN: list[tuple[Any, str]] = [
    ({"loss": 0.5}, "Recorder returns a float for 'loss'"),
    ({"one": torch.zeros(()), "loss": [0.5, 0.6]}, "Recorder returns a list for 'loss'"),
    ({"loss": np.float64(0.5)}, "Recorder returns a float64 for 'loss'"),
    (torch.zeros(()), "Recorder returns a Tensor"),
    (None, "Recorder returns a NoneType"),
]


@pytest.mark.parametrize(("seen", "words"), SEEN, ids=["float", "list", "NumPy", "tensor", "nothing"])
def test_a_recorder_takes_a_function_of_tensors(seen: Any, words: str) -> None:
    refused(RECORDER, LEGAL, "torch.tensor", words)(lambda: Recorder(lambda: seen)(1))()
    given_numbers(Recorder)(seen)
    with pytest.raises(ConfigError, match="a Recorder observes every 0 steps; legal: every=1 or more"):
        Recorder(lambda: seen, 0)
