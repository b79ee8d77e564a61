"""Records of numbers during a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from metapt.errors import ConfigError

_OBSERVE = "a function that returns a dictionary of tensors; torch.tensor(...) makes one of a number or a list"


class Recorder:
    """Numbers of every `every`-th step of a run, for all replicates.

    Args:
        observe: takes no argument and returns named tensors, such as scalars, or of shape [replicates].
        every: steps between two observations.
        log: is called with the number of the step and what was observed, copied to the CPU. A resumed run logs only the
            steps that it takes, and those after its last checkpoint a second time.

    Attributes:
        seconds: wall time of all observations in this process.

    Raises:
        ConfigError: `every` is below 1, or `observe` is no function; at a call, it returns something else.
    """

    def __init__(
        self,
        observe: Callable[[], dict[str, Tensor]],
        every: int = 1,
        log: Callable[[int, dict[str, Tensor]], object] | None = None,
    ) -> None:
        if not callable(observe):
            raise ConfigError(f"a Recorder is given a {type(observe).__name__}; legal: {_OBSERVE}")
        if every < 1:
            raise ConfigError(f"a Recorder observes every {every} steps; legal: every=1 or more")
        self.observe = observe
        self.every = every
        self.log = log
        self.seconds = 0.0
        self._steps: list[int] = []
        self._values: list[dict[str, Tensor]] = []

    def __call__(self, step: int) -> None:
        """Observe, if `step` is a multiple of `every`."""
        if step % self.every == 0:
            start = time.monotonic()
            self._steps.append(step)
            self._values.append({name: value.detach().clone().cpu() for name, value in self._observed().items()})
            if self.log is not None:
                self.log(step, self._values[-1])
            self.seconds += time.monotonic() - start

    def _observed(self) -> dict[str, Tensor]:
        seen = self.observe()
        if not isinstance(seen, Mapping):
            raise ConfigError(f"the function of a Recorder returns a {type(seen).__name__}; legal: {_OBSERVE}")
        for name, value in seen.items():
            if not isinstance(value, Tensor):
                raise ConfigError(
                    f"the function of a Recorder returns a {type(value).__name__} for {name!r}; legal: {_OBSERVE}"
                )
        return seen

    def rows(self) -> list[dict[str, Any]]:
        """Return rows of a series table, with keys replicate (the index of the element), step, name and value."""
        return [
            {"replicate": replicate, "step": step, "name": name, "value": number}
            for step, values in zip(self._steps, self._values, strict=True)
            for name, tensor in values.items()
            for replicate, number in enumerate(tensor.flatten().tolist())
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the records so far, as tensors and plain values."""
        return {"steps": list(self._steps), "values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the records in `state`."""
        self._steps, self._values = list(state["steps"]), list(state["values"])
