"""Any optimiser of `torch.optim`, by name, with its own settings per group of parameters."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import Any

import torch

from metapt.errors import ConfigError
from metapt.hypergrad import Params


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimiser before it has parameters.

    Args:
        name: a class of `torch.optim`.
        settings: its keyword arguments.
        groups: shell pattern of parameter names -> keyword arguments that differ for them. A parameter belongs to the first pattern that it matches.
    """

    name: str = "Adam"
    settings: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)

    def build(self, params: Params) -> torch.optim.Optimizer:
        """The optimiser of `params`, which must be leaves that require a gradient.

        Raises:
            ConfigError: no such optimiser, a setting that it does not have, or a pattern that matches nothing.
        """
        kind = getattr(torch.optim, self.name, None)
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)) or kind is torch.optim.Optimizer:
            raise ConfigError(f"{self.name!r} is no optimiser; legal: {', '.join(_names())}")
        members: dict[str, list[torch.Tensor]] = {pattern: [] for pattern in [*self.groups, "*"]}
        for name, value in params.items():
            members[next(pattern for pattern in members if fnmatch.fnmatchcase(name, pattern))].append(value)
        for pattern in self.groups:
            if not members[pattern]:
                raise ConfigError(f"the optimiser group {pattern!r} matches no parameter; there are: {', '.join(params)}")
        groups = [{"params": values, **self.groups.get(pattern, {})} for pattern, values in members.items() if values]
        try:
            optimizer: torch.optim.Optimizer = kind(groups, **self.settings)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the optimiser {self.name} can't be made with {self.settings}: {error}") from error
        return optimizer


def _names() -> list[str]:
    kinds = vars(torch.optim).items()
    return sorted(
        name
        for name, kind in kinds
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    )
