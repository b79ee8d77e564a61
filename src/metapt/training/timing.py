"""Clocks."""

from __future__ import annotations

import time

from metapt.training.interruption import told_to_end


class Every:
    """True once in a while: called, it is true when at least `seconds` have passed since it was last true (monotonic clock).

    Always true when the job has been told to end, so that what is saved now and then is saved at once.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._last = time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._last < self.seconds and not told_to_end():
            return False
        self._last = now
        return True
