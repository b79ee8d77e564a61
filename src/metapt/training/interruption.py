"""A job that is told to end: it saves its state at the next step, ends, and goes on from there when it is started again.

Schedulers send SIGTERM, or a signal of choice such as SIGUSR1, before they take a node away: at a time limit, on a cancellation,
for a job of higher priority.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from metapt.errors import MetaptError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_received: list[str] = []


class Interrupted(MetaptError):
    """The run was told to end, and has saved its state."""


@contextmanager
def noticed() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGUSR1 are noted instead of ending the process. Only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _note) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received.clear()


def told_to_end() -> bool:
    """Whether a signal has come: a state that can be saved is to be saved now."""
    return bool(_received)


def end_if_told() -> None:
    """To be called when the state is saved. Raises Interrupted where a signal has come."""
    if _received:
        raise Interrupted(f"{_received[0]} told this job to end: its state is saved, and it goes on from there when it is rerun.")


def _note(number: int, frame: FrameType | None) -> None:
    _received.append(signal.Signals(number).name)
