"""Statistics of learned task weights: their values, agreement between PT seeds, and detection of useful tasks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from metapt.domains.ppi.quantities import INTACT, OTHERS, PLANTED, RELATIVES, WEIGHT
from metapt.domains.ppi.results import PpiResults
from metapt.evaluation.comparisons import Comparison, at_least
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate, estimate_mean, paired_difference
from metapt.evaluation.tables import mean_and_error
from metapt.twostage.quantities import PRETRAINING

FOUND = 0.9
"""Least AUROC of weight against truth at which weights are said to find the useful tasks."""
AGREED = 0.5
"""Least rank correlation between PT seeds at which their weights are said to agree."""


def weight_row(results: PpiResults, arm: str, setting: str) -> dict[str, float | str]:
    """Return statistics of an arm's weights, without those that were not measured; `seeds` is 0 without weights."""
    row: dict[str, float | str] = {"arm": arm, "setting": setting, "seeds": 0}
    try:
        weights = results.weights(arm, setting)
    except NotMeasuredError:
        return row
    values = weights.to_numpy(dtype=float)
    finite = bool(np.isfinite(values).all())
    row |= {
        "seeds": weights.shape[1],
        "below_half": 100 * float((values < 0.5).mean()) if finite else math.nan,
        "above_one_and_a_half": 100 * float((values > 1.5).mean()) if finite else math.nan,
        "median": float(np.median(values)),
    }
    measures: tuple[tuple[str, Callable[[], Estimate]], ...] = (
        ("agreement", lambda: agreement(weights)),
        ("relatives", lambda: relatives(results, arm, setting)),
        ("planted", lambda: over_pretraining(results, arm, PLANTED, setting)),
        ("intact", lambda: over_pretraining(results, arm, INTACT, setting)),
    )
    for name, measure in measures:
        try:
            e = measure()
        except NotMeasuredError:
            continue
        row |= {name: e.mean, f"{name}_standard_error": e.standard_error}
    return row


def number_text(row: dict[str, float | str], name: str) -> str:
    """Return mean ± standard error of a number of `weight_row`; "" if it was not measured."""
    return mean_and_error(float(row[name]), float(row[f"{name}_standard_error"])) if name in row else ""


def relatives(results: PpiResults, arm: str, setting: str) -> Estimate:
    """Return the mean weight of the FT tasks' relatives minus that of the other PT tasks, over PT seeds.

    Raises NotMeasuredError if the PT runs did not compare the two.
    """
    return paired_difference(results.pretraining(arm, RELATIVES, setting), results.pretraining(arm, OTHERS, setting))


def over_pretraining(results: PpiResults, arm: str, metric: str, setting: str) -> Estimate:
    """Return a metric of the PT runs, over PT seeds. Raises NotMeasuredError if no run has measured it."""
    return estimate_mean(results.pretraining(arm, metric, setting).to_numpy(dtype=float))


def agreement(weights: pd.DataFrame) -> Estimate:
    """Return the mean Spearman correlation of the weights [tasks, PT seeds] over the pairs of PT seeds.

    Pairs share seeds, so the standard error is the jackknife's over seeds (Efron and Stein 1981), and `n` is the number
    of seeds. Two seeds make one pair, which has no standard error, and `n` is 1. The correlation of constant weights is
    NaN. Raises NotMeasuredError if there is only one seed.
    """
    count = weights.shape[1]
    if count < 2:
        raise NotMeasuredError("A correlation between PT seeds needs two of them.")
    r = correlations(weights)
    pairs = r[np.triu_indices(count, 1)]
    if count == 2:
        return Estimate(float(pairs[0]), math.nan, 1, math.nan, math.nan)
    total = float(pairs.sum())
    without = [(total - float(np.delete(r[i], i).sum())) / (len(pairs) - count + 1) for i in range(count)]
    # Pseudo-values have the jackknife's standard error, and the mean of the pairs as theirs: it has no bias to remove.
    return estimate_mean(count * total / len(pairs) - (count - 1) * np.array(without))


def correlations(weights: pd.DataFrame) -> NDArray[np.float64]:
    """Return Spearman's correlations [PT seeds, PT seeds] of weights [tasks, PT seeds]; NaN for non-finite weights."""
    ranks = weights.where(np.isfinite(weights)).rank().to_numpy(dtype=float)
    with np.errstate(all="ignore"):
        return np.atleast_2d(np.corrcoef(ranks, rowvar=False))


def finds(results: PpiResults, arm: str, what: str, metric: str, setting: str) -> Comparison:
    """Return the claim that an arm's weights find `what`, by an AUROC of weight against truth."""
    return Comparison(
        text=f"{arm}'s weights find {what}",
        arm=arm,
        control="",
        metric=metric,
        criterion=at_least(FOUND),
        measure=partial(over_pretraining, results, arm, metric, setting),
        evaluation=PRETRAINING,
        least_seeds=2,
    )


def agrees(results: PpiResults, arm: str, setting: str) -> Comparison:
    """Return the claim that an arm's weights agree between PT seeds."""
    return Comparison(
        text=f"{arm}'s weights agree between PT seeds (rank correlation at least {AGREED:g})",
        arm=arm,
        control="",
        metric=WEIGHT,
        criterion=at_least(AGREED),
        measure=lambda: agreement(results.weights(arm, setting)),
        evaluation=PRETRAINING,
        least_seeds=2,
        unit="pair of PT seeds",
    )
