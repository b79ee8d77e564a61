"""The device and the threads of a job, and the machine that it runs on."""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from metapt.errors import MachineError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables that numerical libraries read when they are first imported."""


@dataclass(frozen=True)
class Machine:
    """What a job computes on: a torch device (`cpu` or `cuda`) and a number of CPU threads."""

    device: str = "cpu"
    threads: int = 1


def find_caches() -> None:
    """Name a temporary folder for the caches of Snakemake and matplotlib where the home folder can't be written.

    Both are told by environment variables, which other processes inherit. Raises MachineError if there is no temporary
    folder either.
    """
    matplotlib = os.environ.get("MPLCONFIGDIR") or os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    if _writable(os.environ.get("XDG_CACHE_HOME") or "~/.cache") and _writable(matplotlib):
        return
    try:
        folder = tempfile.mkdtemp(prefix="metapt-")
    except OSError as error:
        raise MachineError(
            "neither the home folder nor a temporary folder can be written, and Snakemake and matplotlib need one for "
            "their caches: set HOME or TMPDIR to a folder that can be written."
        ) from error
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["XDG_CACHE_HOME"] = os.environ["MPLCONFIGDIR"] = folder
    print(f"the home folder can't be written, so that caches are kept in {folder} until the end", file=sys.stderr)


def _writable(path: str) -> bool:
    try:
        folder = Path(path).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # of a user without a home
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def machine_name(device: str) -> str:
    """Return the name of the GPU, or of the processor if `device` is `cpu`."""
    if device == "cuda":
        return str(sys.modules["torch"].cuda.get_device_name())
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
