"""A clock for tests about times: it stands still until some work is done, so that every measured time is exact."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field


@dataclass
class Clock:
    """A stand-in for the module `time`: all its clocks show the seconds of work done so far.

    Attributes:
        seconds: of work in all threads.
    """

    seconds: float = 0.0
    _own: threading.local = field(default_factory=threading.local)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, seconds: float) -> None:
        """Let this thread have worked so long."""
        with self._lock:
            self.seconds += seconds
        self._own.seconds = self.thread_time() + seconds
        time.sleep(0)  # other threads may go on, as in real work

    def process_time(self) -> float:
        """Return the seconds of work in all threads."""
        return self.seconds

    monotonic = process_time

    def thread_time(self) -> float:
        """Return the seconds of work in this thread."""
        return float(getattr(self._own, "seconds", 0.0))
