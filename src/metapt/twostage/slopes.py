"""Slopes along hyperparameters in the metrics table of a study."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from metapt.evaluation import metrics

if TYPE_CHECKING:
    from metapt.hypergrad import Params
    from metapt.training.estimators import Slope

COST = "cost (plain PT runs)"
SLOPE = "slope along {}"
HORIZON = ", horizon "
"""Between problem and horizon in the setting of a slope."""


def rows(
    experiment: str, problem: str, seed: int, found: Iterable[Slope], along: Callable[[Params], Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Return rows of the metrics table for the estimates of a PT seed.

    Args:
        experiment: as in the metrics table.
        problem: as in the table of runs.
        seed: the PT seed.
        found: slopes, see `metapt.training.estimators.Slope`.
        along: returns d(FT loss) / d(coordinate) by hyperparameter, given the gradient of a slope.
    """
    made: list[dict[str, Any]] = []
    for slope in found:
        numbers = {SLOPE.format(name): -value for name, value in along(slope.gradient).items()} | {COST: slope.cost}
        words = {"replicate": seed, "setting": f"{problem}{HORIZON}{slope.horizon}"}
        made += metrics.rows_of(experiment, slope.estimator, numbers, **words)
    return made
