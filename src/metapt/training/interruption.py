"""Signals that tell a job to end: it saves its state at the next step, ends, and continues from there when it is rerun.

Schedulers send SIGTERM, or another signal such as SIGUSR1, before they stop a job: at a time limit, when it is
cancelled, or for a job of higher priority. Ctrl-C sends SIGINT.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import active_children
from types import FrameType
from typing import Any

from metapt.errors import MetaptError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_received: list[str] = []


class Interrupted(MetaptError):
    """The run was told to end and has saved its state."""


def noticed() -> AbstractContextManager[None]:
    """Record `SIGNALS` inside the context, so that they do not end the process; a second SIGINT does.

    In a thread other than the main thread this does nothing.
    """
    return _handled(_note)


@contextmanager
def passed_on() -> Iterator[None]:
    """Record `SIGNALS` inside the context as `noticed` does, and tell all child processes to end.

    The children are those of `multiprocessing`. A child that starts later is not told. A second SIGINT kills them.
    """

    def tell(number: int, frame: FrameType | None) -> None:
        try:
            _note(number, frame)
        except KeyboardInterrupt:
            for child in active_children():
                child.kill()
            raise
        if number == signal.SIGINT:
            print("Jobs save their state and end; Ctrl-C again ends them at once.", file=sys.stderr)
        for child in active_children():
            child.terminate()

    with _handled(tell):
        yield


def told_to_end() -> bool:
    """Return whether a signal has arrived, so that a job should save its state now, and no other job should start."""
    return bool(_received)


def end_if_told() -> None:
    """End the job if a signal has arrived; the caller has saved the state.

    Raises:
        Interrupted: a signal has arrived.
    """
    if _received:
        raise Interrupted(
            f"{_received[0]} told this job to end: its state is saved, and it goes on from there when it is rerun."
        )


class Every:
    """A function that returns True if at least `seconds` have passed since it last did, by the monotonic clock.

    It also returns True when the job was told to end, so that a periodic save happens at once. Processes that share a
    run (see `Processes.gather`) get one answer, and are all told to end if one is.
    """

    def __init__(self, seconds: float, gather: Callable[[Any], list[Any]] = lambda own: [own]) -> None:
        self.seconds, self._gather = seconds, gather
        self._last = time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        late, told = zip(*self._gather((now - self._last >= self.seconds, told_to_end())), strict=True)
        if any(told) and not told_to_end():
            _received.append("A signal to another process")
        if not any((*late, *told)):
            return False
        self._last = now
        return True


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
        _received.clear()


def _note(number: int, frame: FrameType | None) -> None:
    name = signal.Signals(number).name
    if number == signal.SIGINT and name in _received:
        raise KeyboardInterrupt
    _received.append(name)
