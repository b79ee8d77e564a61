"""An estimate of the time that the jobs of a workflow still need, from the wall times of those that have finished."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from statistics import fmean

from metapt.engine.jobs import Job


class Remaining:
    """The wall times of finished jobs, by kind. A job takes as long as the most similar ones on average."""

    def __init__(self) -> None:
        self._seconds: defaultdict[Hashable, list[float]] = defaultdict(list)

    def finished(self, job: Job, seconds: float) -> None:
        """Note the wall time of a job."""
        for kind in _kinds(job):
            self._seconds[kind].append(seconds)

    def seconds(self, jobs: Iterable[tuple[Job, float, float]]) -> float | None:
        """Return the wall time (s) that jobs still need; None where none of a job's sort has finished yet.

        Each comes with the share of the machine that it holds, above 0 to 1, and the seconds that it has run. They are
        taken to fill the machine; the longest one is a lower bound.
        """
        rest = []
        for job, share, elapsed in jobs:
            known = next((self._seconds[kind] for kind in _kinds(job) if kind in self._seconds), None)
            if known is None:
                return None
            rest.append((max(fmean(known) - elapsed, 0.0), share))
        return max(sum(seconds * share for seconds, share in rest), max((seconds for seconds, _ in rest), default=0.0))


def duration(seconds: float) -> str:
    """Return a duration in words, in two units at most.

    >>> duration(3.4), duration(119.7), duration(7500)
    ('3 s', '2 min 0 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _kinds(job: Job) -> list[Hashable]:
    """Return names of the kinds of a job, the most special first."""
    return [(job.entry, job.config.get("arm")), job.entry, job.trains]
