"""Loops that show their progress: a bar on a terminal, and lines in the log.

A line comes after 5 seconds, then every 30 seconds, and at the end. After 30 seconds a job shows them
on stderr, too.

The bar is tqdm's. Where tqdm is not installed there is none.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

log = logging.getLogger(__name__)
_SECONDS_TO_FIRST_LINE = 5.0
_SECONDS_BETWEEN_LINES = 30.0


def steps(
    first: int,
    last: int,
    label: str | None = None,
    *,
    time_limit: float | None = None,
    status: Mapping[str, Tensor | Sequence[Tensor]] | None = None,
) -> Iterator[int]:
    """Count from `first` up to, but not including, `last`, and show progress.

    Args:
        label: the name of the progress; without one nothing is shown.
        time_limit: wall time (seconds) after which no step but the step 0 begins.
        status: numbers for the log, which the loop keeps up to date. Of several values under a name the norm is shown.
            They are read for a line only, since reading waits for the device.
    """
    start = time.monotonic()
    next_line = start + _SECONDS_TO_FIRST_LINE
    with _bar(label, first, last) as bar:
        for step in range(first, last):
            if time_limit is not None and step > 0 and time.monotonic() - start >= time_limit:
                return
            yield step
            if bar is not None:
                bar.update()
            now = time.monotonic()
            if label is not None and (step + 1 == last or now > next_line):
                next_line = now + _SECONDS_BETWEEN_LINES
                left = (now - start) / (step + 1 - first) * (last - step - 1)
                numbers = "".join(_number(name, value) for name, value in (status or {}).items())
                time_left = f", about {left:.0f} s left" if step + 1 < last else ""
                long = {"of_a_long_loop": now - start > _SECONDS_BETWEEN_LINES}
                log.info("%s: step %d of %d%s%s", label, step + 1, last, numbers, time_left, extra=long)


def _bar(label: str | None, first: int, last: int) -> AbstractContextManager[Any]:
    """Return a progress bar, or None in its place without a label or without tqdm."""
    if label is None:
        return nullcontext()
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return nullcontext()
    return tqdm(total=last, initial=first, desc=label, file=sys.stderr, disable=None, dynamic_ncols=True, leave=False)


def _number(name: str, value: Tensor | Sequence[Tensor]) -> str:
    tensors = [value] if isinstance(value, Tensor) else value
    if sum(each.numel() for each in tensors) == 1:
        return f", {name} {float(next(each for each in tensors if each.numel()).detach()):.4g}"
    return f", |{name}| {math.hypot(*(float(each.detach().norm()) for each in tensors)):.4g}"
