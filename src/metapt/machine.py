"""The device and the threads of a job."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from pathlib import Path

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables that numerical libraries read when they are first imported."""


@dataclass(frozen=True)
class Machine:
    """What a job computes on: a torch device (`cpu` or `cuda`) and a number of CPU threads."""

    device: str = "cpu"
    threads: int = 1


def machine_name(device: str) -> str:
    """Return the name of the GPU, or of the processor if `device` is `cpu`."""
    if device == "cuda":
        return str(sys.modules["torch"].cuda.get_device_name())
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
