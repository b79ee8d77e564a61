"""Records of numbers during a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Recorder:
    """Numbers of every `every`-th step of a run, for all replicates.

    Args:
        observe: takes no argument and returns named tensors of shape [replicates].
        every: steps between two observations.
    """

    def __init__(self, observe: Callable[[], dict[str, Tensor]], every: int = 1) -> None:
        self.observe = observe
        self.every = every
        self._steps: list[int] = []
        self._values: list[dict[str, Tensor]] = []

    def __call__(self, step: int) -> None:
        """Observe, if `step` is a multiple of `every`."""
        if step % self.every == 0:
            self._steps.append(step)
            self._values.append({name: value.detach().clone().cpu() for name, value in self.observe().items()})

    def rows(self) -> list[dict[str, Any]]:
        """Return rows of a series table, with keys replicate, step, name and value."""
        return [
            {"replicate": replicate, "step": step, "name": name, "value": number}
            for step, values in zip(self._steps, self._values, strict=True)
            for name, tensor in values.items()
            for replicate, number in enumerate(tensor.tolist())
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the records so far, as tensors and plain values."""
        return {
            "steps": list(self._steps),
            "values": [torch.stack(list(values.values())) for values in self._values],
            "names": self._names(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the records in `state`."""
        self._steps = list(state["steps"])
        self._values = [dict(zip(state["names"], values, strict=True)) for values in state["values"]]

    def _names(self) -> list[str]:
        return list(self._values[0]) if self._values else []
