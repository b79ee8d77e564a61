"""Experiment `fidelity`: agreement of the paper's hypergradient with the exact one. Not in the paper."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.mnist.config import Fidelity
from metapt.domains.mnist.quantities import COSINE, NORM_RATIO
from metapt.domains.mnist.results import MnistResults, experiment
from metapt.evaluation import figures
from metapt.evaluation.comparisons import Comparison, at_least
from metapt.evaluation.statistics import Estimate, paired_difference, summarise

ROWS = {
    COSINE: ("cosine to the exact one,\nmean ± standard error", "linear"),
    NORM_RATIO: ("norm over that of the exact one,\nmean ± standard error", "log"),
}
"""Metric -> label and scale of its row of panels."""


def figure(results: MnistResults) -> Figure:
    """Draw cosine and norm ratio over Neumann terms, a column for each arm and a line for each number of PT steps."""
    numbers = _numbers(results)
    whole, axes = figures.panels(columns=len(results.arms), rows=2)
    k = 1 if 1 in results.section.unroll_steps else results.section.unroll_steps[0]
    for row, (metric, (ylabel, scale)) in enumerate(ROWS.items()):
        panels = axes[row * len(results.arms) : (row + 1) * len(results.arms)]
        for axis, arm in zip(panels, results.arms, strict=True):
            shown = numbers[(numbers["metric"] == metric) & (numbers["arm"] == arm) & (numbers["k"] == k)]
            shown = shown.assign(label=[f"{steps} PT step{'s' if steps > 1 else ''}" for steps in shown["steps"]])
            _draw_lines(axis, shown, scale)
            axis.axhline(1.0, color=figures.QUIET, linewidth=1, linestyle="--", zorder=1.5)
            axis.set_title(f"{arm}, K = {k}")
        panels[0].set_ylabel(ylabel)
        figures.same_range(panels, "y")
        if scale == "log":
            for axis in panels:
                figures.plain_log_ticks(axis.yaxis)
    figures.legend_above(whole, axes)
    return whole


def _draw_lines(axis: Axes, table: pd.DataFrame, scale: str) -> None:
    """Draw mean and standard error over Neumann terms, with a line for each label; no bar where the error is NaN."""
    for place, (label, part) in enumerate(table.groupby("label", sort=False)):
        line = part.sort_values("terms")
        style: Any = {"color": figures.colour(place), "marker": figures.MARKERS[place % len(figures.MARKERS)]}
        style |= {"elinewidth": 1.4, "linestyle": figures.line_style(line), "label": str(label)}
        axis.errorbar(line["terms"], line["mean"], line["standard_error"].fillna(0.0), **style)
    axis.set_xscale("symlog")
    axis.set_yscale(scale)
    ticks = np.unique(table["terms"].to_numpy(dtype=float))
    if ticks.size <= 8:
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_xticks([], minor=True)
    axis.set_xlabel("Neumann terms")


def _numbers(results: MnistResults) -> pd.DataFrame:
    """Return the summary of the metrics with the settings as columns: steps, k, terms."""
    section: Fidelity = results.section
    cases = itertools.product(section.pretrain_steps, section.unroll_steps, section.neumann_terms)
    rows = [(section.setting(*case), *case) for case in cases]
    settings = pd.DataFrame(rows, columns=["setting", "steps", "k", "terms"])
    return summarise(results.metrics).merge(settings, on="setting")


def comparisons(results: MnistResults) -> Iterator[Comparison]:
    """Yield a claim for each arm: most Neumann terms against fewest, after most PT and FT steps."""
    section: Fidelity = results.section
    most, fewest = max(section.neumann_terms), min(section.neumann_terms)
    steps, k = max(section.pretrain_steps), max(section.unroll_steps)

    def gain(arm: str) -> Estimate:
        many, few = (results.values(arm, COSINE, section.setting(steps, k, terms)) for terms in (most, fewest))
        return paired_difference(many, few)

    terms = f"{most} Neumann terms point nearer to the exact hypergradient than {fewest}"
    for arm in results.arms if most != fewest else []:
        text = f"{arm}: after {steps} PT steps, K = {k}, {terms}"
        yield Comparison(text, arm, arm, COSINE, at_least(0.0), partial(gain, arm))


EXPERIMENT = experiment(
    "fidelity",
    Fidelity,
    5,
    figure,
    comparisons,
    caption="Our hypergradient beside the exact one",
    title="How near the paper's hypergradient is to the exact one",
    figure_title="Cosine and norm ratio of the paper's hypergradient to the exact one",
)
