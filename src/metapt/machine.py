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
    """Return the name of the GPU; if `device` is `cpu`, of the processor and the vector instructions that torch uses.

    Processors of one name can differ in their instructions, and then in the last digits of what they compute. A process
    that has not imported torch gives the name alone.
    """
    if device == "cuda":
        return str(sys.modules["torch"].cuda.get_device_name())
    instructions = sys.modules["torch"].backends.cpu.get_cpu_capability() if "torch" in sys.modules else "DEFAULT"
    return _processor() if instructions == "DEFAULT" else f"{_processor()} with {instructions}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
