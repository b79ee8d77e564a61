"""Progress of a loop: a bar with a time estimate on a terminal, a line every 30 seconds in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator

from tqdm import tqdm

log = logging.getLogger(__name__)
_SECONDS_BETWEEN_LINES = 30.0


def steps(first: int, last: int, label: str) -> Iterator[int]:
    """Count from `first` up to, but not including, `last`, and show progress and remaining time under `label`."""
    last_line = time.monotonic()
    with tqdm(total=last, initial=first, desc=label, file=sys.stderr, disable=None, dynamic_ncols=True, leave=False) as bar:
        for step in range(first, last):
            yield step
            bar.update()
            now = time.monotonic()
            if now - last_line > _SECONDS_BETWEEN_LINES:
                last_line = now
                rate = bar.format_dict["elapsed"] / max(step + 1 - first, 1) if not bar.disable else None
                log.info(
                    "%s: %d of %d%s",
                    label,
                    step + 1,
                    last,
                    f", about {rate * (last - step - 1):.0f} s left" if rate else "",
                )
