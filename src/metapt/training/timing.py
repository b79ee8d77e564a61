"""Clocks."""

from __future__ import annotations

import time


class Every:
    """True once in a while: called, it is true when at least `seconds` have passed since it was last true (monotonic clock)."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._last = time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True
