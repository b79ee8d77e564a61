"""Figures of test AUROC.

Error bars and bands are standard errors of the PT seeds' means. With a single PT seed there are none.
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

from metapt.domains.ecg.auroc_tables import arm_differences, auroc_cells, papers_cells
from metapt.domains.ecg.looks import label, looks
from metapt.domains.ecg.results import CONTROL, EcgResults
from metapt.evaluation import figures
from metapt.twostage.quantities import AUROC_LABEL, EVALUATIONS


def over_sizes(results: EcgResults) -> Figure:
    """Draw AUROC of each arm over |D_FT| and its paired difference to SimCLR; with a single |D_FT|, a dot per arm."""
    cells = auroc_cells(results)
    papers = papers_cells(results)
    evaluations = results.config.evaluations
    if cells["size"].nunique() == 1:
        return _dots(results, cells, papers[papers["size"].isin(cells["size"])])
    differences = arm_differences(results)
    differences = differences[differences["minus"] == CONTROL] if len(differences) else differences
    figure, axes = figures.panels(columns=len(evaluations), rows=2 if len(differences) else 1, width=5.4, height=3.6)
    above, below = axes[: len(evaluations)], axes[len(evaluations) :]
    for axis, evaluation in zip(above, evaluations, strict=True):
        _lines(axis, _of(cells, evaluation), results.arms)
        for arm, look in looks(results.arms).items():
            part = _of(papers[papers["size"].isin(cells["size"])], evaluation)
            part = part[part["arm"] == arm]
            if len(part):
                places = _dodged(part["size"], results.arms, arm)
                axis.plot(
                    places, part["mean"], look.marker, color=look.colour, markersize=8, markerfacecolor="none", zorder=3
                )
        axis.set_ylabel(AUROC_LABEL)
        figures.title(axis, EVALUATIONS[evaluation])
    for axis, evaluation in zip(below, evaluations, strict=True):
        _lines(axis, _of(differences, evaluation), results.arms)
        axis.axhline(0.0, color=figures.QUIET, linewidth=1, linestyle="--", zorder=1.5)
        axis.set_ylabel(f"AUROC minus {label(CONTROL)}'s\n(points ± SE, paired)")
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


def _of(cells: pd.DataFrame, evaluation: str) -> pd.DataFrame:
    return cells[cells["evaluation"] == evaluation]


def _dodged(sizes: pd.Series[int], arms: Sequence[str], arm: str) -> NDArray[np.float64]:
    """Return positions on a logarithmic axis, shifted so that error bars of different arms don't overlap."""
    shift = (arms.index(arm) - (len(arms) - 1) / 2) * min(0.03, 0.18 / len(arms))
    return np.asarray(sizes, dtype=float) * math.exp(shift)


def _lines(axis: Axes, cells: pd.DataFrame, arms: Sequence[str]) -> None:
    """Draw a line with error bars per arm over |D_FT|."""
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


def _dots(results: EcgResults, cells: pd.DataFrame, papers: pd.DataFrame) -> Figure:
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
