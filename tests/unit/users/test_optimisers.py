"""Optimisers, schedules, solvers and recorders."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from metapt import (
    MetaSettings,
    OptimizerSpec,
    Pretrainer,
    Recorder,
)
from metapt.errors import ConfigError
from metapt.hypergrad import SGD, Adam, FittedHead, Neumann, Unroll

from .kinds import refused, right
from .small_runs import META, SETTINGS, Batches, Table, made, pretrain, problem, resumed, run, spec

NUMPY = {
    "float64": spec(lr=np.logspace(-2, -1, 3)[0]),
    "float32": spec(lr=np.float32(0.01)),
    "array": spec(lr=np.array(0.01)),
    "in a group": OptimizerSpec("SGD", {}, {"*.bias": {"lr": np.float64(0.1)}}),
    "betas": spec("AdamW", betas=np.array([0.8, 0.99]), weight_decay=np.float64(0.1)),
    "tuple": spec("Adam", betas=tuple(np.linspace(0.8, 0.9, 2)), amsgrad=np.bool_(True)),
    "cosine": spec(schedule=lambda made: CosineAnnealingLR(made, np.int64(20), eta_min=np.float64(0.01))),
    "milestones": spec(schedule=lambda made: MultiStepLR(made, np.array([2, 5, 8]), gamma=np.float64(0.5))),
    "function": spec(schedule=lambda made: LambdaLR(made, lambda step: np.interp(step, [0, 9], [1.0, 0.1]))),
    "cycle": spec(momentum=0.9, schedule=lambda made: OneCycleLR(made, np.float64(0.1), total_steps=40)),
    "sequence": spec(
        schedule=lambda made: SequentialLR(
            made, [ExponentialLR(made, np.float64(0.9)), ExponentialLR(made, 0.5)], milestones=[np.int64(5)]
        )
    ),
    "of a user": spec(schedule=lambda made: Table(made, {np.int64(3): [np.float64(0.1)]})),
}


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.filterwarnings("ignore:.*EPOCH_DEPRECATION|The epoch parameter:UserWarning")
@right("NumPy numbers in an `OptimizerSpec`, in `MetaSettings` or in a schedule", "they become Python's", 0)
def test_a_run_with_numpy_numbers_goes_on(name: str, tmp_path: Path) -> tuple[Any, Any]:
    return resumed(tmp_path / "run", replace(SETTINGS, pretrain_optimizer=NUMPY[name], meta_optimizer=NUMPY["float32"]))


@right("NumPy numbers in an `OptimizerSpec`, in `MetaSettings` or in a schedule", "they become Python's", 0)
def test_numpy_numbers_in_settings_are_pythons_numbers(tmp_path: Path) -> tuple[Any, Any]:
    numbers: Any = {"iterations": np.int64(6), "warmup": np.int32(1), "average_decay": np.float64(0.9)}
    inverse = Neumann(np.int64(1), np.float64(0.1))  # type: ignore[arg-type]
    finetuning = Unroll(np.int64(2), Adam(np.float64(0.1)))  # type: ignore[arg-type]
    learned, _ = resumed(tmp_path / "run", replace(SETTINGS, inverse=inverse, finetuning=finetuning, **numbers))
    return learned, run(made(replace(SETTINGS, iterations=6, warmup=1, average_decay=0.9)))


@pytest.mark.parametrize(
    "lr",
    [torch.tensor(0.1), torch.tensor([0.1])],
    ids=["scalar", "of one number"],
)
@pytest.mark.parametrize("decay", [0.8, 1.0])
@right("a tensor as learning rate, with a schedule or groups", "it is copied", 1e-6)
def test_a_learning_rate_of_a_user_stays_as_it_is(lr: Tensor, decay: float) -> tuple[Any, Any]:
    decaying: Callable[[Any], LRScheduler] = lambda made: ExponentialLR(made, decay)  # noqa: E731
    shared = OptimizerSpec("SGD", {"lr": lr}, {"head.*": {"momentum": 0.5}}, decaying)
    by_number = OptimizerSpec("SGD", {"lr": 0.1}, {"head.*": {"momentum": 0.5}}, decaying)
    before = lr.clone()
    found = [pretrain(None, META, 20, shared).vector() for _ in range(2)]
    assert torch.equal(lr, before)
    return found, [pretrain(None, META, 20, by_number).vector()] * 2


@right("a tensor as learning rate, with a schedule or groups", "it is copied", 0)
def test_a_run_with_a_learning_rate_that_is_a_tensor_goes_on(tmp_path: Path) -> tuple[Any, Any]:
    own = spec(lr=torch.tensor(0.01), schedule=lambda made: ExponentialLR(made, 0.8))
    return resumed(tmp_path / "run", replace(SETTINGS, pretrain_optimizer=own, meta_optimizer=own))


@right("a dictionary of settings that is changed later", "it is copied", 0)
def test_settings_are_copied() -> tuple[Any, Any]:
    given = {"lr": 0.01}
    own = OptimizerSpec("SGD", given)
    given["lr"] = 1.0
    return pretrain(None, META, optimizer=own).vector(), pretrain(None, META).vector()


CLASS = "a class, function, text or torch optimiser in place of a solver or an `OptimizerSpec`"
CLASS_DO = "`Neumann(...)`, `FittedHead(...)`, `OptimizerSpec(name, {...})`"
WEIGHT = nn.Parameter(torch.zeros(1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inverse": Neumann}, "inverse is the class Neumann; legal: a solver, such as Neumann"),
        ({"inverse": "neumann"}, "inverse is a str"),
        ({"inverse": 0.1}, "inverse is a float"),
        ({"finetuning": Unroll}, "finetuning is the class Unroll; legal: a solver, such as FittedHead"),
        ({"finetuning": FittedHead}, "finetuning is the class FittedHead"),
        ({"finetuning": None}, "finetuning is a NoneType"),
        ({"finetuning": Neumann(1, 0.1)}, "a Neumann, has no attribute minibatches"),
        ({"finetuning": Unroll(1, OptimizerSpec("SGD"))}, "optimizer of the FT solver is a OptimizerSpec"),
        ({"finetuning": Unroll(1, torch.optim.SGD)}, "optimizer of the FT solver is the class SGD"),  # type: ignore[arg-type]
        ({"finetuning": Unroll(1, SGD)}, "optimizer of the FT solver is the class SGD"),  # type: ignore[arg-type]
        ({"pretrain_optimizer": torch.optim.SGD}, "pretrain_optimizer is the class SGD; legal: an OptimizerSpec"),
        ({"pretrain_optimizer": torch.optim.SGD([WEIGHT], 0.1)}, "pretrain_optimizer is a SGD"),
        ({"meta_optimizer": "Adam"}, "meta_optimizer is a str"),
        ({"meta_optimizer": Adam(0.1)}, "meta_optimizer is a Adam"),
        ({"meta_optimizer": OptimizerSpec}, "meta_optimizer is the class OptimizerSpec"),
        ({"iterations": 6.0}, "iterations is 6.0; legal: a whole number"),
        ({"iterations": "6"}, "iterations is '6'; legal: a whole number"),
        ({"warmup": None}, "warmup is None; legal: a whole number"),
    ],
    ids=str,
)
@refused(CLASS, ("legal",), CLASS_DO)
def test_a_class_for_an_object(changes: dict[str, Any], words: str) -> None:
    with said(words):
        MetaSettings(**({"iterations": 6} | changes))


@contextlib.contextmanager
def said(words: str) -> Any:
    """Check that an error contains these words, and pass it on."""
    with pytest.raises(ConfigError) as found:
        yield
    assert words in str(found.value)
    raise found.value


@pytest.mark.parametrize(
    "given", [torch.optim.SGD, "SGD", torch.optim.SGD([WEIGHT], 0.1), {"lr": 0.1}, SGD(0.1)], ids=str
)
@refused(CLASS, ("optimizer is", "legal: an OptimizerSpec"), CLASS_DO)
def test_another_optimiser_of_plain_pt(given: Any) -> None:
    own = problem()
    Pretrainer(own, Batches(), own.pretrained, given)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.optim.SGD, {"lr": 0.1}), "the name of an optimiser is the class SGD; legal: the name of a class"),
        ((torch.optim.SGD([WEIGHT], 0.1),), "the name of an optimiser is a SGD"),
        (("SGD", 0.1), "the settings of the optimiser 'SGD' are a float; legal: a dictionary"),
        (("SGD", [("lr", 0.1)]), "the settings of the optimiser 'SGD' are a list"),
        (("SGD", None), "the settings of the optimiser 'SGD' are a NoneType"),
        (("SGD", "lr=0.1"), "the settings of the optimiser 'SGD' are a str"),
        (("SGD", {}, {"head.*": 0.1}), "the groups of the optimiser 'SGD' are {'head.*': 0.1}; legal"),
        (("SGD", {}, [{"lr": 0.1}]), "the groups of the optimiser 'SGD' are [{'lr': 0.1}]"),
        (("SGD", {}, {}, 0.9), "schedule is a float; legal: a function that takes the optimiser"),
        (("SGD", {}, {}, "cosine"), "schedule is a str"),
        (("SGD", {}, {}, ExponentialLR(torch.optim.SGD([WEIGHT], 0.1), 0.9)), "schedule is a ExponentialLR"),
    ],
)
@refused("a class, or settings that are no dictionary, in an `OptimizerSpec`", ("legal",), CLASS_DO)
def test_nonsense_in_an_optimizer_spec(arguments: tuple[Any, ...], words: str) -> None:
    with said(words):
        OptimizerSpec(*arguments)


OTHERS_SCHEDULE = ExponentialLR(torch.optim.SGD([WEIGHT], 0.1), 0.9)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (lambda step: 0.99**step, "schedule can't be called with an optimiser (TypeError"),
        (lambda: None, "schedule can't be called with an optimiser (TypeError"),
        (CosineAnnealingLR, "schedule can't be called with an optimiser (TypeError"),
        (lambda optimizer: 0.1, "schedule returns a float"),
        (lambda optimizer: ExponentialLR, "schedule returns the class ExponentialLR"),
        (lambda optimizer: [ExponentialLR(optimizer, 0.9)], "schedule returns a list"),
        (lambda optimizer: OTHERS_SCHEDULE, "schedule returns a ExponentialLR of another optimiser"),
        (ReduceLROnPlateau, "schedule returns a ReduceLROnPlateau"),
    ],
)
@refused(
    "a schedule that is a function, of another optimiser, or waits for a metric",
    ("legal: a function that takes the optimiser and returns its schedule",),
    "`schedule=lambda optimizer: LambdaLR(optimizer, lambda step: ...)`",
)
def test_nonsense_for_a_schedule(schedule: Any, words: str) -> None:
    with said(words):
        OptimizerSpec("SGD", schedule=schedule).stepper({"weight": WEIGHT})


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"loss": 0.5}, "returns a float for 'loss'"),
        ({"loss": 1}, "returns a int for 'loss'"),
        ({"one": torch.zeros(()), "loss": [0.5, 0.6]}, "returns a list for 'loss'"),
        ({"loss": np.float64(0.5)}, "returns a float64 for 'loss'"),
        ({"loss": None}, "returns a NoneType for 'loss'"),
        (torch.zeros(()), "returns a Tensor"),
        (0.5, "returns a float"),
        (None, "returns a NoneType"),
    ],
    ids=str,
)
@refused(
    "a `Recorder` of numbers",
    ("Recorder returns", "legal: a function that returns a dictionary of tensors", "torch.tensor"),
    "a function that returns tensors",
)
def test_a_recorder_takes_tensors(seen: Any, words: str) -> None:
    with said(words):
        Recorder(lambda: seen)(1)


@pytest.mark.parametrize("given", [torch.zeros(()), {"loss": torch.zeros(())}, 0.5, None], ids=str)
@refused(
    "a `Recorder` of numbers",
    ("Recorder is given", "legal: a function"),
    "a function that returns tensors",
)
def test_a_recorder_takes_a_function(given: Any) -> None:
    Recorder(given)
