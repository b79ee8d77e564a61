"""Loops that show their progress: a bar with a time estimate on a terminal, a line every 30 seconds in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator

from tqdm import tqdm

from metapt.training.rehearsal import Kind, present

log = logging.getLogger(__name__)
_SECONDS_BETWEEN_LINES = 30.0


def steps(
    first: int,
    last: int,
    label: str | None = None,
    *,
    kind: Kind | None = None,
    ends_rehearsal: bool = False,
    time_limit: float | None = None,
) -> Iterator[int]:
    """Count from `first` up to, but not including, `last`, and show progress.

    Each long loop counts by this function, also an inner one. A rehearsal (see `metapt.training.rehearsal`) leaves
    steps out, so that the body of a loop takes the number of its step from here.

    Args:
        first: first number.
        last: the number after the last one.
        label: the name of the progress; without one nothing is shown.
        kind: returns the same value for steps that take equally long; by default all do.
        ends_rehearsal: whether what follows the loop needs all its steps, so that a rehearsal ends the job after it.
        time_limit: wall time (seconds) after which no step but the step 0 begins.
    """
    rehearsal = present()
    if rehearsal is not None:
        yield from rehearsal.steps(range(first, last), label or "", kind, ends_rehearsal, time_limit)
        return
    start = last_line = time.monotonic()
    hidden = True if label is None else None
    with tqdm(
        total=last, initial=first, desc=label, file=sys.stderr, disable=hidden, dynamic_ncols=True, leave=False
    ) as bar:
        for step in range(first, last):
            if time_limit is not None and step > 0 and time.monotonic() - start >= time_limit:
                return
            yield step
            bar.update()
            now = time.monotonic()
            if label is not None and now - last_line > _SECONDS_BETWEEN_LINES:
                last_line = now
                left = (now - start) / (step + 1 - first) * (last - step - 1)
                log.info("%s: %d of %d, about %.0f s left", label, step + 1, last, left)


def seconds_left_out() -> float:
    """Return the seconds of the steps that a rehearsal has left out so far; 0 outside of one."""
    rehearsal = present()
    return 0.0 if rehearsal is None else rehearsal.left_out
