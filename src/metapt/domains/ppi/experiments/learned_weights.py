"""Experiment `learned_weights`: the task weights at the end of PT."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from metapt.domains.ppi.config import ArmsSection, Names, PpiSettings, learns_weights
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.labels import task_names
from metapt.domains.ppi.quantities import OTHERS, PLANTED, QUANTILES, RELATIVES
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.settings import FULL_ACCESS
from metapt.domains.ppi.weights import (
    EDGES,
    FOUND,
    Panel,
    agreement_panels,
    agrees,
    drawn,
    finds,
    number_text,
    relatives,
    strips,
    weight_row,
    weights_by_arm,
)
from metapt.evaluation import figures
from metapt.evaluation.comparisons import NOT_BELOW, Comparison
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import Tables, mean_and_error, published
from metapt.sections import key
from metapt.twostage.quantities import PRETRAINING
from metapt.twostage.tables import numbers_of

COMPARED = ("meta", "cotrain_learned_weights")  # the arms whose weights the paper compares
PAPERS_ROW = ("meta vs cotrain_learned_weights", "median absolute difference of the 5000 weights")
PAPERS_HALF_IQR = 0.09
TERMS = 8
"""Number of terms shown with the highest, and with the lowest, weights of an arm."""


class LearnedTaskWeights(ArmsSection):
    """The task weights at the end of PT."""

    arms: Names = key(
        ["meta", "cotrain_learned_weights", "meta-stable"],
        "arms, keys of `ppi.arms`, that learn weights; meta-stable is not in the paper",
        min_length=1,
    )

    def check(self, domain: PpiSettings) -> None:
        """Raise ValueError as `ArmsSection.check`, and if no arm learns task weights."""
        super().check(domain)
        if not any(learns_weights(domain.arms[name]) for name in self.arms):
            raise ValueError(f".arms names {', '.join(self.arms)}; legal: at least one arm that learns task weights")


def needs(jobs: PpiJobs, section: LearnedTaskWeights) -> Needs:
    """Return the PT runs of each arm, and the names of the tasks."""
    return Needs(jobs.encoders(section.arms, FULL_ACCESS), files={"tasks": jobs.prepared().outputs["tasks"]})


def tables(results: PpiResults) -> Tables:
    """Return statistics of the learned weights, their comparison between arms, and the terms with extreme weights."""
    rows = [weight_row(results, arm) for arm in results.learners]
    blocks, parts = {}, [pd.DataFrame(rows)]
    if any(row["seeds"] for row in rows):
        blocks[_CAPTION] = pd.DataFrame([_shown(results, row) for row in rows]).fillna("")
    compared = comparison(results)
    if compared is not None:
        caption = (
            f"Absolute difference between the weights that {results.label(COMPARED[0])} and "
            f"{results.label(COMPARED[1])} give a task: median and half of the interquartile range over tasks, "
            "mean ± standard error over PT seeds"
        )
        blocks[caption] = _wide_comparison(results, compared)
        parts.append(compared)
    for arm, weights in weights_by_arm(results).items():
        table = ranked(results, weights)
        parts.append(table.assign(arm=arm))
        caption = (
            f"PT tasks of the highest and of the lowest weight, {results.label(arm)}: mean over PT seeds, and its range"
        )
        blocks[caption] = _ends(table)
    return Tables(blocks or {_CAPTION: pd.DataFrame({"arm": []})}, numbers_of(results.name, parts))


_CAPTION = (
    "Learned weights (1 at the start, at most 2). Shares: mean over PT seeds. Correlation: Spearman's, mean over "
    "pairs of PT seeds ± its jackknife standard error over seeds. Relatives: mean weight of the PT tasks that an FT "
    "task implies minus that of the others, mean ± standard error over PT seeds. AUROC: of weight against the planted "
    "use of a task"
)


def comparison(results: PpiResults) -> pd.DataFrame | None:
    """Return the absolute difference between the weights of the two `COMPARED` arms: median and half_iqr per PT seed.

    The result is None if one of them was not run.
    """
    try:
        ours, others = (results.weights(arm) for arm in COMPARED)
    except (NotMeasuredError, KeyError):
        return None
    rows = []
    for seed in ours.columns.intersection(others.columns):
        apart = (ours[seed] - others[seed]).abs().to_numpy(dtype=float)
        low, median, high = np.quantile(apart, [0.25, 0.5, 0.75])
        row = {"arm": COMPARED[0], "minus": COMPARED[1], "seed": int(seed), "median": median}
        rows.append(row | {"half_iqr": (high - low) / 2})
    return pd.DataFrame(rows) if rows else None


def ranked(results: PpiResults, weights: pd.DataFrame) -> pd.DataFrame:
    """Return PT tasks by weight, the highest first: task, term, weight (mean over PT seeds), lowest, highest.

    Tasks with a weight that is not finite come last.
    """
    names = task_names(results.tasks, "coarse")
    table = pd.DataFrame(
        {
            "task": weights.index.to_numpy(dtype=int),
            "term": [names.get(int(task), f"task {task}") for task in weights.index],
            "weight": weights.mean(axis=1, skipna=False).to_numpy(),
            "lowest": weights.min(axis=1, skipna=False).to_numpy(),
            "highest": weights.max(axis=1, skipna=False).to_numpy(),
        }
    )
    return table.sort_values("weight", ascending=False, kind="stable", na_position="last").reset_index(drop=True)


def figure(results: PpiResults) -> Figure:
    """Draw histograms of the weights, the arms that the paper compares, the weights over PT, and their agreement."""
    arms, panels, weights = results.learners, list[Panel](), weights_by_arm(results)
    if weights:
        panels.append(partial(_histograms, results, weights))
    compared = comparison(results)
    if compared is not None:
        panels.append(partial(_scatter, results, weights[COMPARED[0]], weights[COMPARED[1]], compared))
    bands = {arm: band for arm in arms if (band := _band(results, arm)) is not None}
    if bands:
        panels.append(partial(_trajectories, results, bands))
    panels += strips(
        results,
        arms,
        lambda arm: results.pretraining(arm, RELATIVES, FULL_ACCESS) - results.pretraining(arm, OTHERS, FULL_ACCESS),
        "FT tasks' relatives",
        "mean weight of relatives minus others",
        0.0,
    )
    panels += agreement_panels(results, weights)
    panels += strips(
        results,
        arms,
        lambda arm: results.pretraining(arm, PLANTED, FULL_ACCESS),
        "planted tasks",
        "AUROC of weight against planted use",
        FOUND,
    )
    return drawn(panels)


def comparisons(results: PpiResults) -> Iterator[Comparison]:
    """Yield claims on planted use (if any), on agreement between PT seeds, and on the FT tasks' relatives."""
    planted = results.metrics[results.metrics["metric"] == PLANTED]
    for arm in results.learners:
        if results.config.source == "simulated" or (planted["arm"] == arm).any():
            yield finds(results, arm, "the PT tasks of planted use", PLANTED)
    for arm in results.learners:
        yield agrees(results, arm)
    for arm in results.learners:
        text = f"{arm} gives PT tasks that an FT task implies more weight than the others"
        measure = partial(relatives, results, arm)
        yield Comparison(text, arm, "", RELATIVES, NOT_BELOW, measure, PRETRAINING)


def _shown(results: PpiResults, row: dict[str, float | str]) -> dict[str, object]:
    shown: dict[str, object] = {"arm": results.label(str(row["arm"])), "PT seeds": row["seeds"]}
    if not row["seeds"]:
        return shown
    shown |= {
        "below 0.5 (%)": f"{float(row['below_half']):.0f}",
        "above 1.5 (%)": f"{float(row['above_one_and_a_half']):.0f}",
        "median": f"{float(row['median']):.2f}",
        "correlation between PT seeds": number_text(row, "agreement"),
        "relatives minus others": number_text(row, "relatives"),
    }
    return shown | ({"AUROC against planted use": number_text(row, "planted")} if "planted" in row else {})


def _wide_comparison(results: PpiResults, compared: pd.DataFrame) -> pd.DataFrame:
    rows = []
    half_iqr = math.nan if results.config.stand_in else PAPERS_HALF_IQR
    papers = {"median": results.papers_number(*PAPERS_ROW), "half_iqr": half_iqr}
    for column, paper in papers.items():
        e = estimate_mean(compared[column].to_numpy(dtype=float))
        row = {"": column.replace("_iqr", " IQR"), "PT seeds": e.n, "ours": mean_and_error(e.mean, e.standard_error)}
        rows.append(row | {"paper": published(paper)})
    return pd.DataFrame(rows)


def _ends(table: pd.DataFrame) -> pd.DataFrame:
    """Return the terms with the highest and with the lowest weights side by side."""
    known = table.dropna(subset="weight")
    count = min(TERMS, len(known) // 2)
    high, low = known.head(count), known.tail(count).iloc[::-1]
    return pd.DataFrame(
        {
            "highest": list(high["term"]),
            "weight": [_weight(row) for row in high.to_dict("records")],
            "lowest": list(low["term"]),
            "its weight": [_weight(row) for row in low.to_dict("records")],
        }
    )


def _weight(row: Mapping[Any, float]) -> str:
    return f"{row['weight']:.2f} ({row['lowest']:.2f} to {row['highest']:.2f})"


def _histograms(results: PpiResults, weights: Mapping[str, pd.DataFrame], axis: Axes) -> None:
    look = results.looks()
    with figures.style():
        for arm, table in weights.items():
            values = table.to_numpy(dtype=float).ravel()
            figures.histogram(axis, values, EDGES, look[arm].label, look[arm].colour, alpha=0.12, linewidth=1.8)
        axis.set(xlabel="learned weight", ylabel="share of PT tasks (%)")
    figures.title(axis, "weights at the end, all PT seeds")


def _scatter(results: PpiResults, ours: pd.DataFrame, others: pd.DataFrame, compared: pd.DataFrame, axis: Axes) -> None:
    colour, limits = results.looks()[COMPARED[0]].colour, (-0.05, 2.05)
    with figures.style():
        for seed in compared["seed"]:
            axis.scatter(others[seed], ours[seed], s=6, color=colour, alpha=0.3, linewidths=0, rasterized=True)
        axis.axline((1, 1), slope=1, color=figures.QUIET, linewidth=1.2, linestyle="--", zorder=1.5)
        xlabel, ylabel = (f"weight, {results.label(arm)}" for arm in reversed(COMPARED))
        axis.set(xlabel=xlabel, ylabel=ylabel, xlim=limits, ylim=limits)
    apart, papers = compared["median"].mean(skipna=False), results.papers_number(*PAPERS_ROW)
    beside = "" if math.isnan(papers) else f", paper {papers:.2f}"
    figures.title(axis, f"weights of each task; median of\n|difference| {apart:.2f}{beside}")


def _band(results: PpiResults, arm: str) -> pd.DataFrame | None:
    """Return quantiles of the weights over meta-iterations, means over PT seeds: lower, centre, upper."""
    try:
        found = [results.by_seed(arm, name, FULL_ACCESS).mean(axis=1, skipna=False) for name in QUANTILES]
    except NotMeasuredError:
        return None
    return pd.DataFrame(dict(zip(("lower", "centre", "upper"), found, strict=True)))


def _trajectories(results: PpiResults, bands: Mapping[str, pd.DataFrame], axis: Axes) -> None:
    look = results.looks()
    with figures.style():
        for arm, band in bands.items():
            axis.plot(band.index, band["centre"], color=look[arm].colour, linewidth=2.2, label=look[arm].label)
            for end in ("lower", "upper"):
                axis.plot(band.index, band[end], color=look[arm].colour, linewidth=1.1, linestyle="--")
        axis.set(xlabel="meta-iteration", ylabel="weight: median, and\n10 % and 90 % (dashed)", ylim=(-0.05, 2.05))
        axis.margins(x=0)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    figures.title(axis, "weights in PT, mean over PT seeds")


EXPERIMENT = Experiment(
    title="The learned weights of PT tasks",
    figure_title="The learned weights of PT tasks, and of two arms against each other",
    section=LearnedTaskWeights,
    order=7,
    needs=needs,
    results=PpiResults,
    tables=tables,
    figure=figure,
    comparisons=comparisons,
)
