"""A clock for work that is done once in a while."""

from __future__ import annotations

import time

from metapt.training.interruption import told_to_end


class Every:
    """A function that returns True if at least `seconds` have passed since it last did, by the monotonic clock.

    It also returns True when the job was told to end, so that a periodic save happens at once.
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
