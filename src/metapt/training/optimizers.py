"""Optimisers of `torch.optim` by name, with settings per group of parameters."""

from __future__ import annotations

import copy
import fnmatch
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from metapt.errors import ConfigError
from metapt.hypergrad import Params

_UNFIT = {
    "LBFGS": "needs its loss again within each step (a closure)",
    "SparseAdam": "takes sparse gradients only",
}


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimiser before it has parameters.

    Args:
        name: a class of `torch.optim`.
        settings: its keyword arguments.
        groups: keyword arguments that differ for some parameters, by shell pattern of parameter names. The first
            pattern that a parameter matches counts.
        schedule: takes the optimiser and returns its learning-rate schedule, of `torch.optim.lr_scheduler`, which is
            asked for its next step after each step of the optimiser; None: the learning rates stay.
    """

    name: str = "Adam"
    settings: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    schedule: Callable[[torch.optim.Optimizer], LRScheduler] | None = None

    def stepper(self, params: Params) -> Stepper:
        """Return the optimiser of `params` with its schedule. Raises ConfigError as `build`."""
        return Stepper(self.build(params), self.schedule)

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
            return without_compiler(getattr(torch.optim, self.name))(params, **settings)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the optimiser {self.name} can't be made with {settings}: {error}") from error


class Stepper:
    """An optimiser that follows its learning-rate schedule.

    Args:
        optimizer: the optimiser.
        schedule: see `OptimizerSpec`.

    Raises:
        ConfigError: `schedule` returns no schedule, or one that depends on a metric.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, schedule: Callable[[torch.optim.Optimizer], LRScheduler] | None
    ) -> None:
        self.optimizer = optimizer
        self._schedule = None if schedule is None else schedule(optimizer)
        if schedule is not None and (
            not isinstance(self._schedule, LRScheduler) or isinstance(self._schedule, ReduceLROnPlateau)
        ):
            raise ConfigError(
                f"schedule returns a {type(self._schedule).__name__}; legal: a schedule of torch.optim.lr_scheduler "
                "that depends on the number of the step only, such as CosineAnnealingLR(optimizer, T_max)"
            )

    def step(self) -> None:
        """Take one step with the gradients of the parameters, free them, and set the next learning rates."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self._schedule is not None:
            self._schedule.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of optimiser and schedule; the tensors are not copied."""
        schedule = {} if self._schedule is None else self._schedule.state_dict()
        return {"optimizer": self.optimizer.state_dict(), "schedule": schedule}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken. It is copied, since torch would go on with its tensors."""
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        if self._schedule is not None:
            self._schedule.load_state_dict(state["schedule"])


@cache
def without_compiler(kind: Callable[..., torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """Return a subclass of an optimiser of `torch.optim` that computes the same without torch's compiler.

    torch wraps the methods of optimisers for `torch.compile`. At the first call the wrappers import the compiler, which
    takes as long as the import of torch itself.
    """
    wrapped = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in wrapped}
    step = inspect.unwrap(kind.step)  # type: ignore[attr-defined]

    def plain_step(self: torch.optim.Optimizer, closure: Any = None) -> Any:
        with torch.set_grad_enabled(self.defaults.get("differentiable", False)):
            return step(self, closure)

    name = kind.__name__
    made: Callable[..., torch.optim.Optimizer] = type(name, (kind,), methods | {"step": plain_step})  # type: ignore[arg-type]
    return made


def _names() -> list[str]:
    """Return the names of the optimisers whose step needs only gradients."""
    return sorted(
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name not in {"Optimizer", *_UNFIT}
    )
