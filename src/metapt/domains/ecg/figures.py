"""The figures of AUROC; those of the warp are in `metapt.domains.ecg.warp_figures`.

Error bars and bands are standard errors over the PT seeds' means, which none are known of where there is a single PT seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray

from metapt.domains.ecg.labels import label, looks
from metapt.domains.ecg.results import Results, auroc_cells, first_size, papers_cells
from metapt.domains.ecg.tables import BASELINE, arm_differences
from metapt.evaluation import figures
from metapt.evaluation.looks import AUROC_LABEL, EVALUATIONS, Look


def over_sizes(results: Results) -> Figure:
    """AUROC of each arm over |D_FT|, and its paired difference to SimCLR's; with a single |D_FT| a dot per arm."""
    cells = auroc_cells(results)
    papers = papers_cells(results.key, results.arms)
    evaluations = results.config.evaluations
    if cells["size"].nunique() == 1:
        return _dots(results, cells, papers[papers["size"].isin(cells["size"])])
    differences = arm_differences(results)
    differences = differences[differences["minus"] == BASELINE] if len(differences) else differences
    figure, axes = figures.panels(columns=len(evaluations), rows=2 if len(differences) else 1, width=5.4, height=3.6)
    above, below = axes[: len(evaluations)], axes[len(evaluations) :]
    for axis, evaluation in zip(above, evaluations, strict=True):
        _lines(axis, _of(cells, evaluation), results.arms)
        for arm, look in looks(results.arms).items():
            part = _of(papers[papers["size"].isin(cells["size"])], evaluation)
            part = part[part["arm"] == arm]
            if len(part):
                places = _dodged(part["size"], results.arms, arm)
                axis.plot(places, part["mean"], look.marker, color=look.colour, markersize=8, markerfacecolor="none", zorder=3)
        axis.set_ylabel(AUROC_LABEL)
        figures.title(axis, EVALUATIONS[evaluation])
    for axis, evaluation in zip(below, evaluations, strict=True):
        _lines(axis, _of(differences, evaluation), results.arms)
        axis.axhline(0.0, color=figures.QUIET, linewidth=1, linestyle="--", zorder=1.5)
        axis.set_ylabel(f"AUROC minus {label(BASELINE)}'s\n(points ± SE, paired)")
    for axis in axes:
        _size_axis(axis, sorted(cells["size"].unique()), "|$D_{FT}$|, labelled ECGs in FT")
    figures.same_range(above, "y")
    if below:
        figures.same_range(below, "y")
    if len(papers) and set(papers["evaluation"]) & set(evaluations):
        above[0].errorbar(
            [], [], fmt="o", color=figures.QUIET, markersize=8, markerfacecolor="none", label="the paper's (hollow)"
        )
    figures.legend_above(figure, axes, columns=5 if len(evaluations) > 1 else 3)
    return figure


def over_meta_sizes(results: Results) -> Figure:
    """AUROC over the FT ECGs at meta-PT time: of all arms at one |D_FT|, then for each arm at all of them."""
    cells, evaluations = auroc_cells(results), results.config.evaluations
    base, learners = results.section.baseline, results.section.arms
    papers = papers_cells(results.key, results.arms)
    focus = first_size(results)
    places = {meta_size: place for place, meta_size in enumerate(sorted(cells["meta_size"].unique()))}
    sizes = sorted(cells["size"].unique())
    figure, axes = figures.panels(columns=1 + len(learners), rows=len(evaluations), width=4.4, height=3.4)
    look, ramp = looks(results.arms), figures.ramp(len(sizes))
    for row, evaluation in enumerate(evaluations):
        first, *others = axes[row * (1 + len(learners)) : (row + 1) * (1 + len(learners))]
        part = _of(cells, evaluation)
        for arm, axis in zip(learners, others, strict=True):
            curve = _curve(part, base, arm, focus, places)
            _band(first, curve, look[arm], look[arm].colour, look[arm].label)
            for size, colour in zip(sizes, ramp, strict=True):
                _band(axis, _curve(part, base, arm, size, places), look[arm], colour, f"|$D_{{FT}}$| = {size}")
            figures.title(axis, f"{look[arm].label}, {EVALUATIONS[evaluation]}")
        theirs = _of(papers, evaluation)
        theirs = theirs[(theirs["size"] == focus) & theirs["meta_size"].isin(places)]
        for arm, found in theirs.groupby("arm", sort=False):
            with figures.style():
                first.errorbar(
                    [places[m] + 0.12 for m in found["meta_size"]],
                    found["mean"],
                    found["standard_error"],
                    color=look[str(arm)].colour,
                    fmt=look[str(arm)].marker,
                    markerfacecolor="white",
                    elinewidth=1.2,
                    label=f"{look[str(arm)].label}, the paper's",
                )
        figures.title(first, f"|$D_{{FT}}$| = {focus}, {EVALUATIONS[evaluation]}")
        first.set_ylabel(AUROC_LABEL)
    with figures.style():
        for number, axis in enumerate(axes):
            first_column, first_row = number % (1 + len(learners)) == 0, number <= len(learners)
            shown = {m: place for m, place in places.items() if m <= focus or not first_column}
            axis.set_xticks(list(shown.values()), [f"{m:g}" for m in shown])
            axis.set_xlabel(f"labelled ECGs at meta-PT time (0: {label(base)})")
            if first_row or first_column:
                axis.legend(fontsize=9)
    for row in range(len(evaluations)):
        figures.same_range(axes[row * (1 + len(learners)) + 1 : (row + 1) * (1 + len(learners))], "y")
    return figure


def _of(cells: pd.DataFrame, evaluation: str) -> pd.DataFrame:
    return cells[cells["evaluation"] == evaluation]


def _dodged(sizes: pd.Series[int], arms: Sequence[str], arm: str) -> NDArray[np.float64]:
    """Places on a logarithmic axis, a little beside one another so that error bars of different arms can be told apart."""
    shift = (arms.index(arm) - (len(arms) - 1) / 2) * min(0.03, 0.18 / len(arms))
    return np.asarray(sizes, dtype=float) * math.exp(shift)


def _lines(axis: Axes, cells: pd.DataFrame, arms: Sequence[str]) -> None:
    """A line with error bars per arm over |D_FT|."""
    for arm, look in looks(arms).items():
        part = cells[cells["arm"] == arm].sort_values("size")
        if len(part):
            with figures.style():
                axis.errorbar(
                    _dodged(part["size"], arms, arm),
                    part["mean"],
                    part["seed_standard_error"].fillna(0.0),
                    color=look.colour,
                    marker=look.marker,
                    linestyle=look.line,
                    linewidth=1.5,
                    elinewidth=1.2,
                    label=look.label,
                )


def _size_axis(axis: Axes, sizes: Sequence[int], xlabel: str) -> None:
    with figures.style():
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(FixedLocator([float(size) for size in sizes]))
        axis.set_xticks([float(size) for size in sizes], [str(size) for size in sizes])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel(xlabel)


def _dots(results: Results, cells: pd.DataFrame, papers: pd.DataFrame) -> Figure:
    evaluations = results.config.evaluations
    two = len(papers) > 0
    height = max(2.0, (0.55 if two else 0.4) * len(results.arms) + 1.2)
    figure, axes = figures.panels(columns=len(evaluations), width=5.6, height=height)
    size = int(cells["size"].iloc[0])
    for axis, evaluation in zip(axes, evaluations, strict=True):
        ours, theirs = _of(cells, evaluation), _of(papers, evaluation)
        shown = pd.DataFrame(
            {
                "label": [label(arm) for arm in ours["arm"]],
                "mean": ours["mean"].to_numpy(),
                "standard_error": ours["seed_standard_error"].to_numpy(),
            }
        )
        theirs = theirs.assign(label=[label(arm) for arm in theirs["arm"]])
        theirs = theirs[theirs["label"].isin(shown["label"])]
        figures.bars_with_error(shown, theirs, xlabel=f"{AUROC_LABEL}, |$D_{{FT}}$| = {size}", axis=axis)
        figures.title(axis, EVALUATIONS[evaluation])
    figures.legend_above(figure, axes)
    return figure


def _curve(cells: pd.DataFrame, base: str, arm: str, size: int, places: dict[float, int]) -> pd.DataFrame:
    """place, mean and seed_standard_error over the meta-PT sizes, the baseline at 0."""
    part = cells[(cells["size"] == size) & cells["arm"].isin([base, arm])].sort_values("meta_size")
    return part.assign(place=[places[m] for m in part["meta_size"]])


def _band(axis: Axes, curve: pd.DataFrame, look: Look, colour: str, name: str) -> None:
    error = curve["seed_standard_error"].fillna(0.0)
    with figures.style():
        figures.band(axis, curve["place"], curve["mean"] - error, curve["mean"], curve["mean"] + error, name, colour)
        axis.plot(curve["place"], curve["mean"], look.marker, color=colour, markersize=4.5)
