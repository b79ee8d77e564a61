"""Panels of figures that show learned task weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from metapt.domains.ppi.labels import looks
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.settings import FULL_ACCESS
from metapt.domains.ppi.weights import correlations
from metapt.errors import DataError
from metapt.evaluation import figures
from metapt.evaluation.metrics import NotMeasuredError

EDGES = np.linspace(0.0, 2.0, 26)
"""Edges of the bins of weights."""

Panel = Callable[[Axes], None]
Values = NDArray[np.floating[Any]]


def drawn(results: PpiResults, panels: list[Panel]) -> Figure:
    """Return the figure of some panels. Raises DataError if there are no panels."""
    if not panels:
        raise DataError(f"{results.name} has no arm that learns task weights; name one in its arms.")
    columns = min(len(panels), 3 if len(panels) != 4 else 2)
    figure, axes = figures.panels(columns=columns, rows=-(-len(panels) // columns), width=4.9, height=3.4)
    for axis, panel in zip(axes, panels, strict=False):
        panel(axis)
    for axis in axes[len(panels) :]:
        axis.remove()
    figures.legend_above(figure, axes[: len(panels)], columns=4)
    return figure


def strip(title: str, xlabel: str, values: Mapping[str, Values], target: float, axis: Axes) -> None:
    """Draw a row per arm, its values as dots and their mean as a bar, and a dashed line at `target`."""
    look = looks(list(values))
    with figures.style():
        axis.axvline(target, color=figures.QUIET, linewidth=1.2, linestyle="--", zorder=1.5)
        for place, (arm, numbers) in enumerate(values.items()):
            x = np.asarray(numbers, dtype=float)
            axis.plot(x, np.full(x.size, place), look[arm].marker, color=look[arm].colour, alpha=0.8)
            axis.plot([np.mean(x)] * 2, [place - 0.25, place + 0.25], color=figures.INK, linewidth=1.8)
            if not np.isfinite(x).all():
                axis.annotate(
                    "not finite in all",
                    (0.98, place),
                    xycoords=("axes fraction", "data"),
                    ha="right",
                    va="center",
                    fontsize=9,
                )
        axis.set_yticks(range(len(values)), [look[arm].label for arm in values])
        axis.set_ylim(len(values) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", visible=False)
        axis.margins(x=0.1)
        axis.set_xlabel(xlabel)
    figures.title(axis, title)


def strips(
    arms: Sequence[str], measure: Callable[[str], pd.Series[float]], title: str, xlabel: str, target: float
) -> list[Panel]:
    """Return a panel with a dot per PT seed of the arms that were measured, or none if no arm was."""
    found: dict[str, Values] = {}
    for arm in arms:
        with suppress(NotMeasuredError):
            found[arm] = measure(arm).to_numpy(dtype=float)
    return [partial(strip, title, xlabel, found, target)] if found else []


def weights_by_arm(results: PpiResults) -> dict[str, pd.DataFrame]:
    """Return the weights under full access [tasks, PT seeds] of each arm that has learned some."""
    found: dict[str, pd.DataFrame] = {}
    for arm in results.learners:
        with suppress(NotMeasuredError):
            found[arm] = results.weights(arm, FULL_ACCESS)
    return found


def agreement_panels(weights: Mapping[str, pd.DataFrame]) -> list[Panel]:
    """Return a panel with a dot per pair of PT seeds, or none if no arm has two seeds."""
    pairs = {
        arm: correlations(table)[np.triu_indices(table.shape[1], 1)]
        for arm, table in weights.items()
        if table.shape[1] > 1
    }
    title, xlabel = "agreement, a dot per pair of PT seeds", "rank correlation of weights"
    return [partial(strip, title, xlabel, pairs, 0.0)] if pairs else []
