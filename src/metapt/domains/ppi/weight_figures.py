"""The figures of the learned task weights: what they are, and whether they find the tasks that they should."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from metapt.domains.ppi.figures import dots
from metapt.domains.ppi.labels import label, looks
from metapt.domains.ppi.results import (
    INTACT,
    OTHERS,
    PERMUTED,
    PLANTED,
    QUANTILES,
    RELATIVES,
    Results,
    auroc_cells,
    correlations,
    papers_number,
)
from metapt.domains.ppi.settings import FULL_ACCESS, PERMUTED_TASKS
from metapt.domains.ppi.weight_tables import COMPARED, PAPERS_ROW, comparison
from metapt.errors import DataError
from metapt.evaluation import figures
from metapt.evaluation.looks import EVALUATIONS
from metapt.evaluation.metrics import NotMeasuredError

FOUND = 0.9
EDGES = np.linspace(0.0, 2.0, 26)

Panel = Callable[[Axes], None]
Values = NDArray[np.floating[Any]]


def learned_weights(results: Results) -> Figure:
    """Histograms, the arms that the paper compares, the way of the weights, and what they agree with."""
    arms = results.learners
    panels: list[Panel] = []
    weights = {arm: found for arm in arms if (found := _weights(results, arm)) is not None}
    if weights:
        panels.append(partial(_histograms, results, {arm: table.to_numpy(dtype=float).ravel() for arm, table in weights.items()}))
    compared = comparison(results)
    if compared is not None:
        panels.append(partial(_scatter, weights[COMPARED[0]], weights[COMPARED[1]], compared))
    ways = {arm: way for arm in arms if (way := _way(results, arm)) is not None}
    if ways:
        panels.append(partial(_ways, results, ways))
    gaps = _measured(results, arms, lambda arm: results.pretraining(arm, RELATIVES) - results.pretraining(arm, OTHERS))
    if gaps:
        panels.append(
            partial(strip, "FT tasks' relatives, a dot per PT seed", "mean weight of relatives minus others", gaps, 0.0)
        )
    panels += _agreement(weights)
    planted = _measured(results, arms, lambda arm: results.pretraining(arm, PLANTED))
    if planted:
        panels.append(partial(strip, "planted tasks, a dot per PT seed", "AUROC of weight against planted use", planted, FOUND))
    return _drawn(results, panels)


def known_answer(results: Results) -> Figure:
    """Weights of intact and of permuted tasks, and AUROC after FT with and without the permuted ones."""
    panels: list[Panel] = []
    for arm in results.learners:
        with suppress(NotMeasuredError):
            weights, permuted = results.weights(arm, PERMUTED_TASKS), results.by_seed(arm, PERMUTED, PERMUTED_TASKS)
            panels.append(partial(_intact_and_permuted, arm, weights, permuted.reindex_like(weights)))
    found = _measured(results, results.learners, lambda arm: results.pretraining(arm, INTACT, PERMUTED_TASKS))
    if found:
        panels.append(partial(strip, "intact tasks, a dot per PT seed", "AUROC of weight against intact labels", found, FOUND))
    panels += _agreement({arm: table for arm in results.learners if (table := _weights(results, arm)) is not None})
    cells = auroc_cells(results, [FULL_ACCESS, PERMUTED_TASKS])
    for evaluation in results.config.evaluations:
        part = cells[cells["evaluation"] == evaluation]
        if len(part):
            panels.append(partial(_with_and_without, part, evaluation))
    return _drawn(results, panels)


def strip(title: str, xlabel: str, values: Mapping[str, Values], target: float, axis: Axes) -> None:
    """A row per arm: its values as dots, their mean as a bar; a dashed line at the target."""
    look = looks(list(values))
    with figures.style():
        axis.axvline(target, color=figures.QUIET, linewidth=1.2, linestyle="--", zorder=1.5)
        for place, (arm, numbers) in enumerate(values.items()):
            x = np.asarray(numbers, dtype=float)
            axis.plot(x, np.full(x.size, place), look[arm].marker, color=look[arm].colour, alpha=0.8)
            axis.plot([np.mean(x)] * 2, [place - 0.25, place + 0.25], color=figures.INK, linewidth=1.8)
            if not np.isfinite(x).all():
                axis.annotate(
                    "not finite in all", (0.98, place), xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=9
                )
        axis.set_yticks(range(len(values)), [look[arm].label for arm in values])
        axis.set_ylim(len(values) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", visible=False)
        axis.margins(x=0.1)
        axis.set_xlabel(xlabel)
    figures.title(axis, title)


def _drawn(results: Results, panels: list[Panel]) -> Figure:
    if not panels:
        raise DataError(f"{results.experiment} has no arm that learns task weights; name one in its arms.")
    columns = min(len(panels), 3 if len(panels) != 4 else 2)
    figure, axes = figures.panels(columns=columns, rows=-(-len(panels) // columns), width=4.9, height=3.4)
    for axis, panel in zip(axes, panels, strict=False):
        panel(axis)
    for axis in axes[len(panels) :]:
        axis.remove()
    figures.legend_above(figure, axes[: len(panels)], columns=4)
    return figure


def _weights(results: Results, arm: str) -> pd.DataFrame | None:
    try:
        return results.weights(arm)
    except NotMeasuredError:
        return None


def _measured(results: Results, arms: list[str], measure: Callable[[str], pd.Series[float]]) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for arm in arms:
        with suppress(NotMeasuredError):
            found[arm] = measure(arm).to_numpy(dtype=float)
    return found


def _agreement(weights: Mapping[str, pd.DataFrame]) -> list[Panel]:
    pairs = {arm: correlations(table)[np.triu_indices(table.shape[1], 1)] for arm, table in weights.items() if table.shape[1] > 1}
    title, xlabel = "agreement, a dot per pair of PT seeds", "rank correlation of weights"
    return [partial(strip, title, xlabel, pairs, 0.0)] if pairs else []


def _histograms(results: Results, values: Mapping[str, Values], axis: Axes) -> None:
    look = looks(results.arms)
    with figures.style():
        for arm, x in values.items():
            share, looked = np.full(x.size, 100 / x.size), look[arm]
            axis.hist(x, EDGES.tolist(), weights=share, color=looked.colour, alpha=0.12)
            axis.hist(x, EDGES.tolist(), weights=share, color=looked.colour, histtype="step", linewidth=1.8, label=looked.label)
        axis.set(xlabel="learned weight", ylabel="share of PT tasks (%)")
        axis.grid(axis="x", visible=False)
    figures.title(axis, "weights at the end, all PT seeds")


def _scatter(ours: pd.DataFrame, others: pd.DataFrame, compared: pd.DataFrame, axis: Axes) -> None:
    look, limits = looks(list(COMPARED)), (-0.05, 2.05)
    with figures.style():
        for seed in compared["seed"]:
            axis.scatter(others[seed], ours[seed], s=6, color=look[COMPARED[0]].colour, alpha=0.3, linewidths=0, rasterized=True)
        axis.axline((1, 1), slope=1, color=figures.QUIET, linewidth=1.2, linestyle="--", zorder=1.5)
        axis.set(xlabel=f"weight, {label(COMPARED[1])}", ylabel=f"weight, {label(COMPARED[0])}", xlim=limits, ylim=limits)
    apart = compared["median"].mean(skipna=False)
    figures.title(axis, f"weights of each task; median of\n|difference| {apart:.2f}, paper {papers_number(*PAPERS_ROW):.2f}")


def _way(results: Results, arm: str) -> pd.DataFrame | None:
    """Quantiles of the weights over meta-iterations, means over PT seeds: lower, centre, upper."""
    try:
        tables = [results.by_seed(arm, name) for name in QUANTILES]
    except NotMeasuredError:
        return None
    return pd.DataFrame(dict(zip(("lower", "centre", "upper"), (t.mean(axis=1, skipna=False) for t in tables), strict=True)))


def _ways(results: Results, ways: Mapping[str, pd.DataFrame], axis: Axes) -> None:
    look = looks(results.arms)
    with figures.style():
        for arm, way in ways.items():
            axis.plot(way.index, way["centre"], color=look[arm].colour, linewidth=2.2, label=look[arm].label)
            for end in ("lower", "upper"):
                axis.plot(way.index, way[end], color=look[arm].colour, linewidth=1.1, linestyle="--")
        axis.set(xlabel="meta-iteration", ylabel="weight: median, and\n10 % and 90 % (dashed)", ylim=(-0.05, 2.05))
        axis.margins(x=0)
    figures.title(axis, "weights in PT, mean over PT seeds")


def _intact_and_permuted(arm: str, weights: pd.DataFrame, permuted: pd.DataFrame, axis: Axes) -> None:
    values, broken = weights.to_numpy(dtype=float), permuted.to_numpy(dtype=float) > 0
    with figures.style():
        for place, (name, part) in enumerate((("intact PT tasks", values[~broken]), ("permuted PT tasks", values[broken]))):
            share = np.full(part.size, 100 / max(1, part.size))
            colour = figures.colour(place)
            axis.hist(part, EDGES.tolist(), weights=share, color=colour, alpha=0.3)
            axis.hist(part, EDGES.tolist(), weights=share, color=colour, histtype="step", linewidth=1.6, label=name)
        axis.set(xlabel="learned weight", ylabel="share of the PT tasks\nof a kind (%)")
        axis.grid(axis="x", visible=False)
    figures.title(axis, f"weights of {label(arm)}, all PT seeds")


def _with_and_without(cells: pd.DataFrame, evaluation: str, axis: Axes) -> None:
    intact, permuted = (cells[cells["setting"] == setting] for setting in (FULL_ACCESS, PERMUTED_TASKS))
    dots(axis, intact, permuted, names=("FT after PT on intact tasks", "FT after PT on tasks of which half are permuted"))
    figures.title(axis, EVALUATIONS[evaluation])
