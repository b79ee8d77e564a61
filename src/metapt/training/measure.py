"""Measurement of wall time and peak memory."""

from __future__ import annotations

import time
from types import TracebackType
from typing import ClassVar

import torch

from metapt import machine


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
