"""Learned task weights: their values, agreement between PT seeds, detection of useful tasks, and panels of these."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from metapt.domains.ppi.quantities import OTHERS, PLANTED, RELATIVES, WEIGHT
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.settings import FULL_ACCESS
from metapt.evaluation import figures
from metapt.evaluation.comparisons import Comparison, at_least
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate, estimate_mean, paired_difference
from metapt.evaluation.tables import mean_and_error
from metapt.twostage.quantities import PRETRAINING

FOUND = 0.9  # least AUROC of weight against truth at which weights are said to find the useful tasks
AGREED = 0.5  # least rank correlation between PT seeds at which their weights are said to agree

EDGES = np.linspace(0.0, 2.0, 26)  # edges of the bins of weights

Panel = Callable[[Axes], None]
Values = NDArray[np.floating[Any]]


def weight_row(results: PpiResults, arm: str) -> dict[str, float | str]:
    """Return statistics of an arm's weights, without those that were not measured; `seeds` is 0 without weights."""
    row: dict[str, float | str] = {"arm": arm, "setting": FULL_ACCESS, "seeds": 0}
    try:
        weights = results.weights(arm)
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
        ("relatives", lambda: relatives(results, arm)),
        ("planted", lambda: over_pretraining(results, arm, PLANTED)),
    )
    for name, measure in measures:
        with suppress(NotMeasuredError):
            e = measure()
            row |= {name: e.mean, f"{name}_standard_error": e.standard_error}
    return row


def number_text(row: dict[str, float | str], name: str) -> str:
    """Return mean ± standard error of a number of `weight_row`; "" if it was not measured."""
    return mean_and_error(float(row[name]), float(row[f"{name}_standard_error"])) if name in row else ""


def relatives(results: PpiResults, arm: str) -> Estimate:
    """Return the mean weight of the FT tasks' relatives minus that of the other PT tasks, over PT seeds.

    Raises NotMeasuredError if the PT runs did not compare the two.
    """
    return paired_difference(*(results.pretraining(arm, metric, FULL_ACCESS) for metric in (RELATIVES, OTHERS)))


def over_pretraining(results: PpiResults, arm: str, metric: str) -> Estimate:
    """Return a metric of the PT runs, over PT seeds. Raises NotMeasuredError if no run has measured it."""
    return estimate_mean(results.pretraining(arm, metric, FULL_ACCESS).to_numpy(dtype=float))


def agreement(weights: pd.DataFrame) -> Estimate:
    """Return the mean Spearman correlation of the weights [tasks, PT seeds] over the pairs of PT seeds.

    Pairs share seeds, so the standard error is the jackknife's over seeds (Efron and Stein 1981), and `n` is the number
    of seeds. Two seeds make one pair, which has no standard error. The correlation of constant weights is NaN. Raises
    NotMeasuredError if there is only one seed.
    """
    count = weights.shape[1]
    if count < 2:
        raise NotMeasuredError("A correlation between PT seeds needs two of them.")
    r = correlations(weights)
    pairs = r[np.triu_indices(count, 1)]
    if count == 2:
        return Estimate(float(pairs[0]), math.nan, count, math.nan, math.nan)
    total = float(pairs.sum())
    without = [(total - float(np.delete(r[i], i).sum())) / (len(pairs) - count + 1) for i in range(count)]
    # Pseudo-values have the jackknife's standard error, and the mean of the pairs as theirs: it has no bias to remove.
    return estimate_mean(count * total / len(pairs) - (count - 1) * np.array(without))


def correlations(weights: pd.DataFrame) -> NDArray[np.float64]:
    """Return Spearman's correlations [PT seeds, PT seeds] of weights [tasks, PT seeds]; NaN for non-finite weights."""
    ranks = weights.where(np.isfinite(weights)).rank().to_numpy(dtype=float)
    with np.errstate(all="ignore"):
        return np.atleast_2d(np.corrcoef(ranks, rowvar=False))


def finds(results: PpiResults, arm: str, what: str, metric: str) -> Comparison:
    """Return the claim that an arm's weights find `what`, by an AUROC of weight against truth."""
    text, measure = f"{arm}'s weights find {what}", partial(over_pretraining, results, arm, metric)
    return Comparison(text, arm, "", metric, at_least(FOUND), measure, PRETRAINING)


def agrees(results: PpiResults, arm: str) -> Comparison:
    """Return the claim that an arm's weights under full access agree between PT seeds."""
    text = f"{arm}'s weights agree between PT seeds (rank correlation at least {AGREED:g})"

    def measure() -> Estimate:
        return agreement(results.weights(arm))

    return Comparison(text, arm, "", WEIGHT, at_least(AGREED), measure, PRETRAINING)


def drawn(panels: list[Panel]) -> Figure:
    """Return the figure of some panels."""
    columns = min(len(panels), 3 if len(panels) != 4 else 2)
    figure, axes = figures.panels(columns, -(-len(panels) // columns), width=4.9, height=3.4)
    for axis, panel in zip(axes, panels, strict=False):
        panel(axis)
    for axis in axes[len(panels) :]:
        axis.remove()
    figures.legend_above(figure, axes[: len(panels)], columns=4)
    return figure


def strip(
    results: PpiResults, title: str, xlabel: str, values: Mapping[str, Values], target: float, axis: Axes
) -> None:
    """Draw a row per arm, its values as dots and their mean as a bar, and a dashed line at `target`."""
    look = results.looks()
    with figures.style():
        axis.axvline(target, color=figures.QUIET, linewidth=1.2, linestyle="--", zorder=1.5)
        for place, (arm, x) in enumerate(values.items()):
            axis.plot(x, np.full(x.size, place), look[arm].marker, color=look[arm].colour, alpha=0.8)
            axis.plot([np.mean(x)] * 2, [place - 0.25, place + 0.25], color=figures.INK, linewidth=1.8)
            if not np.isfinite(x).all():
                where: Any = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "center"}
                axis.annotate("some not finite", (0.98, place), fontsize=9, **where)
        figures.named_rows(axis, [look[arm].label for arm in values], f"{xlabel}\n(bar: mean; dashed: {target:g})")
        axis.margins(x=0.1)
    figures.title(axis, title)


def strips(
    results: PpiResults,
    arms: Sequence[str],
    measure: Callable[[str], pd.Series[float]],
    title: str,
    xlabel: str,
    target: float,
) -> list[Panel]:
    """Return one panel with a dot per PT seed of each arm that was measured; an empty list if no arm was."""
    found: dict[str, Values] = {}
    for arm in arms:
        with suppress(NotMeasuredError):
            found[arm] = measure(arm).to_numpy(dtype=float)
    return [partial(strip, results, f"{title}, a dot per PT seed", xlabel, found, target)] if found else []


def weights_by_arm(results: PpiResults) -> dict[str, pd.DataFrame]:
    """Return the weights under full access [tasks, PT seeds] of each arm that has learned some."""
    found: dict[str, pd.DataFrame] = {}
    for arm in results.learners:
        with suppress(NotMeasuredError):
            found[arm] = results.weights(arm)
    return found


def agreement_panels(results: PpiResults, weights: Mapping[str, pd.DataFrame]) -> list[Panel]:
    """Return one panel with a dot per pair of PT seeds of each arm; an empty list if no arm has two seeds."""
    many = {arm: table for arm, table in weights.items() if table.shape[1] > 1}
    pairs = {arm: correlations(table)[np.triu_indices(table.shape[1], 1)] for arm, table in many.items()}
    title, xlabel = "agreement, a dot per pair of PT seeds", "rank correlation of weights"
    return [partial(strip, results, title, xlabel, pairs, 0.0)] if pairs else []
