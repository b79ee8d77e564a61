"""The memory of this process, in bytes."""

from __future__ import annotations

import ctypes
import resource
import sys
from contextlib import suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_before_resets = 0  # the largest peak before a reset, which the system forgets


def in_use() -> int:
    """Return the memory in use; 0 on systems without /proc."""
    try:
        return _status("VmRSS")
    except OSError:
        return 0


def peak() -> int:
    """Return the largest memory since `reset_peak`; on systems without /proc that since the start of the process."""
    try:
        return _status("VmHWM")
    except OSError:
        return peak_since_start()


def peak_since_start() -> int:
    """Return the largest memory since the start of the process, whatever was reset."""
    units = 1 if sys.platform == "darwin" else 1024
    return max(_before_resets, units * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def reset_peak() -> int:
    """Reset the peak to the memory in use, and return that; 0 if the system can't reset it."""
    global _before_resets
    _before_resets = peak_since_start()
    try:
        _RESET.write_text("5")  # proc(5): resets the peak resident set size
    except OSError:
        return 0
    return in_use()


def release_free() -> None:
    """Give memory that was freed back to the system, so that it counts as new when it is taken again.

    The GNU C library keeps such memory. Other C libraries have no function for it, and nothing is done there.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _status(key: str) -> int:
    """Return an entry of /proc/self/status. Raises OSError where there is none."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024
