"""The estimate of what is left: exact where jobs of a kind take equally long."""

from __future__ import annotations

import pytest

from metapt.engine.jobs import Job
from metapt.engine.remaining import Remaining


def job(entry: str, arm: str | None = None, stage: str = "pretrain") -> Job:
    return Job(stage=stage, name=f"{entry}/{arm}", entry=entry, config={} if arm is None else {"arm": arm})


def known() -> Remaining:
    remaining = Remaining()
    remaining.finished(job("prepare", stage="prepare"), 1.0)
    remaining.finished(job("pt", "simclr"), 10.0)
    remaining.finished(job("pt", "meta"), 20.0)
    remaining.finished(job("pt", "meta"), 30.0)
    return remaining


@pytest.mark.parametrize(
    ("of", "seconds"),
    [
        (job("pt", "meta"), 25.0),
        (job("pt", "simclr"), 10.0),
        (job("pt", "other"), 20.0),  # as all PT
        (job("ft", "meta"), 20.0),  # as all training
        (job("collect", stage="collect"), 1.0),  # as all that train nothing
    ],
)
def test_a_job_takes_as_long_as_the_most_similar_ones(of: Job, seconds: float) -> None:
    assert known().seconds([(of, 1.0, 0.0)]) == seconds


def test_nothing_is_said_before_a_job_of_the_sort_has_finished() -> None:
    remaining = Remaining()
    remaining.finished(job("prepare", stage="prepare"), 1.0)
    assert remaining.seconds([(job("pt", "meta"), 1.0, 0.0)]) is None
    assert remaining.seconds([]) == 0


def test_jobs_side_by_side_fill_the_machine_and_the_longest_one_bounds_them() -> None:
    meta = job("pt", "meta")
    assert known().seconds([(meta, 0.5, 0.0)] * 4) == 50
    assert known().seconds([(meta, 0.25, 0.0)] * 2) == 25
    assert known().seconds([(meta, 0.5, 20.0), (meta, 0.5, 100.0)]) == 5
