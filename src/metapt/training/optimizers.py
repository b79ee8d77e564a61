"""Optimisers of `torch.optim` by name, with settings per group of parameters."""

from __future__ import annotations

import copy
import fnmatch
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from metapt.errors import ConfigError
from metapt.hypergrad import Params
from metapt.training.checkpoint import described

Schedule = Callable[[torch.optim.Optimizer], LRScheduler]
_UNFIT = {"LBFGS": "needs its loss again within each step (a closure)", "SparseAdam": "takes sparse gradients only"}
_SCHEDULE = (
    "a function that takes the optimiser and returns its schedule, of torch.optim.lr_scheduler, which depends on the "
    "number of the step only, such as lambda optimizer: CosineAnnealingLR(optimizer, T_max=1000)"
)


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimiser before it has parameters.

    NumPy's numbers become Python's, since a checkpoint has no others. Tensors are copied for each optimiser, since
    schedules change them in place.

    Args:
        name: a class of `torch.optim`.
        settings: its keyword arguments.
        groups: keyword arguments that differ for some parameters, by shell pattern of parameter names. The first
            pattern that a parameter matches counts.
        schedule: takes the optimiser and returns its learning-rate schedule, of `torch.optim.lr_scheduler`, which is
            asked for its next step after each step of the optimiser; None: the learning rates stay.

    Raises:
        ConfigError: an argument is of another kind.
    """

    name: str = "Adam"
    settings: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigError(
                f"the name of an optimiser is {kind(self.name)}; legal: the name of a class of torch.optim as a text, "
                "with its keyword arguments as a dictionary: OptimizerSpec('SGD', {'lr': 0.1})"
            )
        if not isinstance(self.settings, Mapping):
            raise ConfigError(
                f"the settings of the optimiser {self.name!r} are {kind(self.settings)}; legal: a dictionary of its "
                "keyword arguments, such as {'lr': 0.1}"
            )
        groups = self.groups.values() if isinstance(self.groups, Mapping) else [self.groups]
        if not all(isinstance(each, Mapping) for each in [self.groups, *groups]):
            raise ConfigError(
                f"the groups of the optimiser {self.name!r} are {self.groups!r}; legal: a dictionary of keyword "
                "arguments for each pattern of names, such as {'head.*': {'lr': 0.1}}"
            )
        if self.schedule is not None and not callable(self.schedule):
            raise ConfigError(f"schedule is {kind(self.schedule)}; legal: {_SCHEDULE}")
        object.__setattr__(self, "settings", _own(self.settings))
        object.__setattr__(self, "groups", _own(self.groups))

    def stepper(self, params: Params) -> Stepper:
        """Return the optimiser of `params` with its schedule. Raises ConfigError as `build` and `Stepper`."""
        return Stepper(self, params)

    def build(self, params: Params) -> torch.optim.Optimizer:
        """Return the optimiser of `params`, which must be leaves that require a gradient, without the schedule.

        Raises:
            ConfigError: the optimiser does not exist or can't be used here, a setting is unknown or out of range, or a
                pattern matches no parameter.
        """
        if self.name not in _names():
            why = _UNFIT.get(self.name, "is no optimiser of torch.optim")
            raise ConfigError(f"the optimiser {self.name!r} {why}; legal: {', '.join(_names())}")
        members: dict[str, list[torch.Tensor]] = {pattern: [] for pattern in [*self.groups, "*"]}
        for name, value in params.items():
            members[next(pattern for pattern in members if fnmatch.fnmatchcase(name, pattern))].append(value)
        for pattern in self.groups:
            if not members[pattern]:
                raise ConfigError(
                    f"the optimiser group {pattern!r} matches no parameter that the groups before it leave; there are: "
                    f"{', '.join(params)}"
                )
        # The constructor is called for each group, to check its settings: torch accepts any key in a group.
        groups = [
            group
            for pattern, values in members.items()
            if values
            for group in self._make(values, {**self.settings, **self.groups.get(pattern, {})}).param_groups
        ]
        return self._make(groups, self.settings)

    def _make(self, params: list[Any], settings: dict[str, Any]) -> torch.optim.Optimizer:
        try:
            return without_compiler(getattr(torch.optim, self.name))(params, **_own(settings))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the optimiser {self.name} can't be made with {settings}: {error}") from error


class Stepper:
    """An optimiser that follows its learning-rate schedule.

    Args:
        spec: the optimiser and its schedule.
        params: leaves that require a gradient.

    Attributes:
        settings: the spec and the schedule at its start, for checkpoints (see `described`).

    Raises:
        ConfigError: see `OptimizerSpec.build`; or the schedule can't be made, is none, or depends on a metric.
    """

    def __init__(self, spec: OptimizerSpec, params: Params) -> None:
        self.optimizer = spec.build(params)
        self._spec, self._params, self._steps = spec, dict(params), 0
        names = {id(value): name for name, value in params.items()}
        self._names = [[names[id(value)] for value in group["params"]] for group in self.optimizer.param_groups]
        self._schedule = None if spec.schedule is None else _scheduled(spec.schedule, self.optimizer)
        schedule = [type(self._schedule).__name__, {} if self._schedule is None else self._schedule.state_dict()]
        self.settings = described(
            {"name": spec.name, "settings": spec.settings, "groups": spec.groups, "schedule": schedule}
        )

    def check(self, what: str, params: Params) -> None:
        """Raise ConfigError if `params` are other tensors than those of the optimiser."""
        if any(params.get(name) is not value for name, value in self._params.items()):
            raise ConfigError(
                f"a tensor of `{what}` was assigned anew, and the optimiser would go on with the old one; legal: to "
                "change its numbers in place, as in `with torch.no_grad(): value.clamp_(0, 1)`"
            )

    def check_moving(self) -> None:
        """Raise ConfigError if a learning rate is 0 for good, or at most a millionth of another one."""
        rates = [float(group.get("initial_lr", group["lr"])) for group in self.optimizer.param_groups]
        for rate, names in zip(rates, self._names, strict=True):
            if rate <= 1e-6 * max(rates) and (self._schedule is None or any(rates)):
                raise ConfigError(
                    f"the learning rate of {', '.join(names)} is {rate:g}, and hypergradients would take them for "
                    "trained; legal: a larger one or, to freeze them, requires_grad_(False) before the problem is made"
                )

    def step(self) -> None:
        """Take one step with the gradients of the parameters, free them, and set the next learning rates."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._steps += 1
        if self._schedule is not None:
            self._schedule.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of optimiser and schedule, by names of parameters; the tensors are not copied."""
        state, names = self.optimizer.state_dict(), [name for group in self._names for name in group]
        return {
            "parameters": {names[place]: value for place, value in state["state"].items()},
            "groups": [
                plain(group) | {"params": own} for group, own in zip(state["param_groups"], self._names, strict=True)
            ],
            "schedule": {} if self._schedule is None else plain(self._schedule.state_dict()),
            "steps": self._steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken. It is copied, since torch would go on with its tensors.

        Raises:
            ValueError: its groups have other parameters, or this schedule leads to another learning rate.
        """
        if [sorted(group["params"]) for group in state["groups"]] != [sorted(names) for names in self._names]:
            raise ValueError("the optimiser has other groups of parameters, or has them in another order")
        places = {name: place for place, name in enumerate(name for group in self._names for name in group)}
        groups = [
            group | {"params": [places[name] for name in names]}
            for group, names in zip(state["groups"], self._names, strict=True)
        ]
        rates = self._rates(state["steps"])
        moments = copy.deepcopy({places[name]: value for name, value in state["parameters"].items()})
        self.optimizer.load_state_dict({"state": moments, "param_groups": copy.deepcopy(groups)})
        values = [value for group in self.optimizer.param_groups for value in group["params"]]
        for place, saved in moments.items():  # which torch has converted to the type of the parameter
            own = self.optimizer.state[values[place]]
            for name, value in saved.items():
                if isinstance(value, Tensor) and own[name].dtype != value.dtype:
                    own[name] = value.to(own[name].device)
        self._steps = state["steps"]
        if self._schedule is not None:
            self._schedule.load_state_dict(state["schedule"])
            if rates != [float(group["lr"]) for group in groups]:
                raise ValueError(f"the schedule gives another learning rate at step {self._steps}")

    def _rates(self, steps: int) -> list[float]:
        """Return the learning rates after `steps` by the schedule from its start: its functions are not in its state.

        Before the first step this moves the own schedule, which is then loaded: the user may hold it.
        """
        optimizer, schedule = self.optimizer, self._schedule
        if self._steps and self._spec.schedule is not None:
            optimizer = self._spec.build(self._params)
            schedule = _scheduled(self._spec.schedule, optimizer)
        if schedule is None:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, that no step of the optimiser came before
            for _ in range(steps):
                schedule.step()
        return [float(group["lr"]) for group in optimizer.param_groups]


def gradients_of(loss: Tensor, values: list[Tensor]) -> list[Tensor | None]:
    """Return the gradients of a loss, as optimisers take them, w.r.t. leaves; None where it does not depend on one.

    Their `grad` is None before and after.
    """
    for value in values:
        value.grad = None  # of a loss that calls backward, or of a step that failed
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [value.grad for value in values]
    for value in values:
        value.grad = None
    return gradients


def check_spec(value: object, what: str) -> None:
    """Raise ConfigError if the argument `what` is no OptimizerSpec."""
    if not isinstance(value, OptimizerSpec):
        raise ConfigError(
            f"{what} is {kind(value)}; legal: an OptimizerSpec, such as OptimizerSpec('SGD', {{'lr': 0.1}})"
        )


def kind(value: object) -> str:
    """Return in words what kind of a thing a value is.

    >>> kind(0.1), kind(float)
    ('a float', 'the class float')
    """
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def plain(value: Any) -> Any:
    """Return a value with Python's numbers in place of NumPy's, in itself and in lists, tuples and dictionaries."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(plain(each) for each in value)
    if type(value) in (dict, Counter):
        return type(value)({plain(key): plain(each) for key, each in value.items()})
    return value


def _own(value: Any) -> Any:
    """Return settings with copies of their tensors, and without NumPy."""
    if isinstance(value, Mapping):
        return {key: _own(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.clone() if isinstance(value, Tensor) else plain(value)


def _scheduled(schedule: Schedule, optimizer: torch.optim.Optimizer) -> LRScheduler:
    """Return the schedule of an optimiser. Raises ConfigError as `Stepper`."""
    try:
        made = schedule(optimizer)
    except Exception as error:  # of the user's function, whatever it is
        raise ConfigError(
            f"schedule can't be called with an optimiser ({type(error).__name__}: {error}); legal: {_SCHEDULE}"
        ) from error
    if not isinstance(made, LRScheduler) or isinstance(made, ReduceLROnPlateau):
        raise ConfigError(f"schedule returns {kind(made)}; legal: {_SCHEDULE}")
    if made.optimizer is not optimizer:
        raise ConfigError(f"schedule returns a {type(made).__name__} of another optimiser; legal: {_SCHEDULE}")
    return made


@cache
def without_compiler(kind: Callable[..., torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """Return a subclass of an optimiser of `torch.optim` that computes the same without torch's compiler.

    torch wraps the methods of optimisers for `torch.compile`. At the first call the wrappers import the compiler: 2.0 s
    of CPU time and 70 MB in each job, beside 2.3 s for torch itself.
    """
    wrapped = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in wrapped}
    step = inspect.unwrap(kind.step)  # type: ignore[attr-defined]

    def plain_step(self: torch.optim.Optimizer, closure: Any = None) -> Any:
        with torch.set_grad_enabled(self.defaults.get("differentiable", False)):
            return step(self, closure)

    return type(kind.__name__, (kind,), methods | {"step": plain_step})  # type: ignore[arg-type]


def _names() -> list[str]:
    """Return the names of the optimisers whose step needs only gradients."""
    return sorted(
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name not in {"Optimizer", *_UNFIT}
    )
