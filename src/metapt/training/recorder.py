"""What is recorded of a run: numbers of its steps, its wall time and its peak memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ClassVar

import torch
from torch import Tensor

from metapt import machine
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


class Measured:
    """A context manager that measures the work inside it.

    Args:
        device: "cpu", or a name that starts with "cuda".

    Attributes:
        seconds: wall time.
        peak_bytes: the largest memory in use, less that in use at the start: of the GPU if the device is one, else of
            the process. There an inner block does not count memory that the block around it has used and freed before.
            On systems other than Linux, which can't reset the maximum, the largest memory of the process so far.
        whole: False if an earlier process did a part of the work, so that `seconds` and `peak_bytes` are those of the
            rest (see `goes_on`).
    """

    _open: ClassVar[list[Measured]] = []  # the blocks that run, the outer ones first; each begins with a new maximum

    def __init__(self, device: str) -> None:
        self.on_gpu = device.startswith("cuda")
        self.seconds = 0.0
        self.peak_bytes = 0
        self.whole = True
        self._highest = 0

    def __enter__(self) -> Measured:
        self._keep_peak()
        self._open.append(self)
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            if len(self._open) == 1:
                machine.release_free_memory()
            self._before = machine.reset_peak_memory()
        self._start = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()
        self.seconds = time.monotonic() - self._start
        self._keep_peak()
        self._open.remove(self)
        self.peak_bytes = max(0, self._highest - self._before)

    def _keep_peak(self) -> None:
        """Remember the peak in each block that runs, before another block resets it."""
        if self._open:
            peak = torch.cuda.max_memory_allocated() if self.on_gpu else machine.peak_memory()
            for block in self._open:
                block._highest = max(block._highest, peak)


def goes_on() -> None:
    """Note in each block that runs that an earlier process did a part of its work."""
    for block in Measured._open:
        block.whole = False
