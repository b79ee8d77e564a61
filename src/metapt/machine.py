"""The device and the threads of a job, and the machine that it runs on: caches, name, memory of this process."""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import resource
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from metapt.errors import MachineError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables that numerical libraries read when they are first imported."""
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt(3)
_peak_before_resets = 0  # bytes; the system forgets the peak when it is reset


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


def memory_in_use() -> int:
    """Return the memory of this process, bytes; 0 on systems without /proc."""
    return _status("VmRSS", otherwise=0)


def peak_memory() -> int:
    """Return the largest memory since `reset_peak_memory`, bytes; without /proc that since the process began."""
    return _status("VmHWM", otherwise=peak_memory_since_start())


def peak_memory_since_start() -> int:
    """Return the largest memory since the process began, bytes, whatever was reset."""
    units = 1 if sys.platform == "darwin" else 1024
    # not where there is /proc, since on Linux it is that of the parent, if that is larger
    largest = units * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max(_peak_before_resets, _status("VmHWM", otherwise=largest))


def reset_peak_memory() -> int:
    """Reset the peak to the memory in use, and return that, bytes; 0 if the system can't reset it."""
    global _peak_before_resets
    _peak_before_resets = peak_memory_since_start()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak resident set size
    except OSError:
        return 0
    return memory_in_use()


def keep_freed_memory() -> None:
    """Let the GNU C library keep the memory of freed tensors for new ones, until `release_free_memory`.

    By itself it gives large ones back to the system, which fills them with zeros for the next: a sixth of the time of a
    step on large minibatches. Other C libraries have no function for it, and nothing is done there.
    """
    with suppress(AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, -1)
        library.mallopt(_MMAP_MAX, 0)


def release_free_memory() -> None:
    """Give freed memory, which the GNU C library keeps, back to the system, so that it counts when it is taken again.

    Other C libraries have no function for it, and nothing is done there.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _status(key: str, otherwise: int) -> int:
    """Return an entry of /proc/self/status, bytes; `otherwise` on systems without that file."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return otherwise
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
