"""Comparisons of arms by their FT runs, paired by PT seed."""

from __future__ import annotations

from metapt.evaluation.comparisons import BEYOND_THE_PAPER, Comparison, at_least
from metapt.twostage.seeds import difference
from metapt.twostage.tables import Runs


def better(
    text: str,
    arm: str,
    control: str,
    metric: str,
    evaluation: str,
    runs: tuple[Runs, Runs],
    *,
    paper: str = BEYOND_THE_PAPER,
    margin: float = 0.0,
) -> Comparison:
    """Return the claim that an arm is better than its control, or at most `margin` percentage points worse.

    `runs` return the FT runs of the arm and of the control, measured by `metric` under `evaluation`.
    """
    a, b = runs
    return Comparison(
        text=text,
        arm=arm,
        control=control,
        metric=metric,
        criterion=at_least(0.0 - margin, "difference"),
        measure=lambda: difference(a(), b()),
        evaluation=evaluation,
        paper=paper,
        least_seeds=2,
    )
