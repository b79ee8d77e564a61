"""A rehearsal of a job: each loop takes a few of its steps, from whose time follows what all of them would take."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from metapt import process_memory

Kind = Callable[[int], object]

_MOST_STEPS = 8
"""Steps of a kind that are taken at most."""
_LONG = 3.0
"""Seconds of a first step after which there is no second one, whatever the allowance."""


class Enough(BaseException):
    """The rest of the job repeats what has been measured. No `except Exception` catches it."""


class TooSlow(BaseException):
    """A step took longer than the rehearsal allows."""


@dataclass(eq=False)
class _Loop:
    """A loop in progress.

    Attributes:
        label: its name.
        left: number of steps that have been neither taken nor left out.
        time_limit: see `metapt.training.progress.steps`.
        seconds: of the steps of the present kind that were taken.
        begin: time at which the step in progress began.
        first: whether the present kind is the first one.
        innermost: whether no loop has begun inside it.
    """

    label: str
    left: int
    time_limit: float | None
    seconds: list[float] = field(default_factory=list)
    begin: float = 0.0
    first: bool = True
    innermost: bool = True


@dataclass(frozen=True)
class LoopTime:
    """The time of a loop: seconds per step, the number of steps taken, and the number left out."""

    label: str
    taken: int
    left_out: int
    seconds_per_step: float


class Rehearsal:
    """The measurements of a rehearsed job.

    Time is CPU time, which other jobs on the machine hardly change: of the process in the main thread, of the thread in
    others. On a GPU it is wall time.
    A step of an outer loop takes as long as if all steps of the loops inside it were taken.

    Args:
        device: `cpu` or `cuda`.
        allowance: seconds after which a loop takes no more steps of a kind. One step of each kind is always taken, and
            a second one where the first step of the loop is not long.
        slowest: longest time of a step, seconds; `TooSlow` is raised after a step that takes longer.

    Attributes:
        loops: what each loop took, in the order in which they ended.
        opened: `clock` when the first loop began; memory of the process or the GPU (bytes) then, and its maximum.
    """

    def __init__(self, device: str = "cpu", allowance: float = 0.5, slowest: float = math.inf) -> None:
        self.device = device
        self.allowance = allowance
        self.slowest = slowest
        self.loops: list[LoopTime] = []
        self.opened: tuple[float, int, int] | None = None
        self._in_progress: defaultdict[int, list[_Loop]] = defaultdict(list)  # by thread, the innermost last
        self._left_out: defaultdict[int, float] = defaultdict(float)  # seconds by thread

    @property
    def left_out(self) -> float:
        """Return the seconds that the steps would take that were left out, in all threads."""
        return sum(self._left_out.values())

    def steps(
        self, numbers: Sequence[int], label: str, kind: Kind | None, ends_rehearsal: bool, time_limit: float | None
    ) -> Iterator[int]:
        """Yield a few numbers of each kind; see `metapt.training.progress.steps`."""
        kinds: dict[object, list[int]] = {}
        for number in numbers:
            kinds.setdefault(kind(number) if kind else None, []).append(number)
        if self.opened is None:
            self.opened = (self.clock(), *memory(self.device))
        loop, loops = _Loop(label, len(numbers), time_limit), self._in_progress[threading.get_ident()]
        if loops:
            loops[-1].innermost = False
        loops.append(loop)
        skipped = False
        try:
            for same in kinds.values():
                start = self._clock()
                loop.seconds = []
                for number in same:
                    begin = self._clock()
                    loop.begin = self._now()
                    yield number
                    self._take(loop)
                    if loop.innermost and self._clock() - begin > self.slowest:
                        raise TooSlow
                    spent = self._clock() - start
                    once = (
                        loop.first and len(loop.seconds) == 1 and spent < (_LONG if time_limit is None else time_limit)
                    )
                    if (spent > self.allowance and not once) or len(loop.seconds) == _MOST_STEPS:
                        break
                skipped |= len(loop.seconds) < len(same)
                self._leave_out(loop, len(same) - len(loop.seconds))
            loops.remove(loop)
        finally:
            self._end(loop)
        if skipped and ends_rehearsal:
            raise Enough

    def end(self) -> None:
        """End the loops that are still in progress, after `Enough`.

        Each of their remaining steps counts as long as the present one.
        """
        for loop in reversed(self._in_progress[threading.get_ident()].copy()):
            self._end(loop)

    def _end(self, loop: _Loop) -> None:
        loops = self._in_progress[threading.get_ident()]
        if loop in loops:
            self._take(loop)
            self._leave_out(loop, loop.left)
            loops.remove(loop)

    def _take(self, loop: _Loop) -> None:
        loop.seconds.append(self._now() - loop.begin)
        loop.left -= 1

    def _leave_out(self, loop: _Loop, count: int) -> None:
        """Count steps as left out, each as long as the mean of `loop.seconds`.

        The first step of a loop is not in that mean if there are others.
        """
        counted = loop.seconds[1:] if loop.first and len(loop.seconds) > 1 else loop.seconds
        mean, taken = sum(counted) / len(counted), len(loop.seconds)
        loop.first = False
        loop.left -= count
        if loop.time_limit is not None:
            count = min(count, max(0, math.ceil(loop.time_limit / max(mean, 1e-9)) - taken))
        self._left_out[threading.get_ident()] += count * mean
        self.loops.append(LoopTime(loop.label, taken, count, mean))

    def _now(self) -> float:
        """Return the time as if no step of this thread had been left out."""
        return self._clock() + self._left_out[threading.get_ident()]

    def clock(self) -> float:
        """Return CPU time of the process, or wall time after what the GPU has been given to do, seconds."""
        if self.device == "cpu":
            return time.process_time()
        sys.modules["torch"].cuda.synchronize()
        return time.monotonic()

    def _clock(self) -> float:
        own = self.device == "cpu" and threading.current_thread() is not threading.main_thread()
        return time.thread_time() if own else self.clock()


_rehearsal: Rehearsal | None = None


def present() -> Rehearsal | None:
    """Return the rehearsal in progress, if there is one."""
    return _rehearsal


@contextmanager
def rehearsed(rehearsal: Rehearsal) -> Iterator[Rehearsal]:
    """Let all loops inside take a few steps only, measured by `rehearsal`. `Enough` ends the context."""
    global _rehearsal
    _rehearsal = rehearsal
    try:
        with suppress(Enough):
            yield rehearsal
    finally:
        rehearsal.end()
        _rehearsal = None


def memory(device: str) -> tuple[int, int]:
    """Return memory in use and its maximum so far, bytes: of the process, or of the GPU."""
    if device != "cpu":
        cuda = sys.modules["torch"].cuda
        return cuda.memory_allocated(), cuda.max_memory_allocated()
    return process_memory.in_use(), process_memory.peak()
