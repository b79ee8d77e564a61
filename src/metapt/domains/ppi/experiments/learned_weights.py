"""Experiment `learned_weights`: the task weights at the end of PT.

Their values, the agreement between PT seeds, and whether they find tasks that are known to be useful.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from metapt.domains.ppi.config import ArmsSection, Names, PpiSettings, learns_weights
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.results import PpiResults, task_names
from metapt.domains.ppi.stages import FULL_ACCESS, OTHERS, PLANTED, QUANTILES, RELATIVES, WEIGHT
from metapt.evaluation import figures
from metapt.evaluation.comparisons import NOT_BELOW, Comparison, at_least
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate, estimate_mean, paired_difference
from metapt.evaluation.tables import Tables, mean_and_error, published
from metapt.sections import key
from metapt.twostage.quantities import PRETRAINING
from metapt.twostage.tables import numbers_of

COMPARED = ("meta", "cotrain_learned_weights")  # the arms whose weights the paper compares
PAPERS_ROW = ("meta vs cotrain_learned_weights", "median absolute difference of the 5000 weights")
PAPERS_HALF_IQR = 0.09
TERMS = 8
"""Number of terms shown with the highest, and with the lowest, weights of an arm."""
FOUND = 0.9  # least AUROC of weight against truth at which weights are said to find the useful tasks
AGREED = 0.5  # least rank correlation between PT seeds at which their weights are said to agree
EDGES = np.linspace(0.0, 2.0, 26)  # edges of the bins of weights

Panel = Callable[[Axes], None]


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


def weight_runs(jobs: PpiJobs, section: LearnedTaskWeights) -> Needs:
    """Return the PT runs of each arm, and the names of the tasks."""
    return Needs(jobs.encoders(section.arms, FULL_ACCESS), files={"tasks": jobs.prepared().outputs["tasks"]})


def weight_row(results: PpiResults, arm: str) -> dict[str, float | str]:
    """Return statistics of an arm's weights, without those that were not measured."""
    weights = results.weights(arm)
    values = weights.to_numpy(dtype=float)
    finite = bool(np.isfinite(values).all())
    row: dict[str, float | str] = {
        "arm": arm,
        "setting": FULL_ACCESS,
        "seeds": weights.shape[1],
        "below_half": 100 * float((values < 0.5).mean()) if finite else math.nan,
        "above_one_and_a_half": 100 * float((values > 1.5).mean()) if finite else math.nan,
        "median": float(np.median(values)),
    }
    for name, measure in (("agreement", _agreed), ("relatives", relatives), ("planted", _planted)):
        with suppress(NotMeasuredError):
            e = measure(results, arm)
            row |= {name: e.mean, f"{name}_standard_error": e.standard_error}
    return row


def relatives(results: PpiResults, arm: str) -> Estimate:
    """Return the mean weight of the FT tasks' relatives minus that of the other PT tasks, over PT seeds.

    Raises NotMeasuredError if the PT runs did not compare the two.
    """
    return paired_difference(*(results.pretraining(arm, metric, FULL_ACCESS) for metric in (RELATIVES, OTHERS)))


def _planted(results: PpiResults, arm: str) -> Estimate:
    return estimate_mean(results.pretraining(arm, PLANTED, FULL_ACCESS).to_numpy(dtype=float))


def _agreed(results: PpiResults, arm: str) -> Estimate:
    return agreement(results.weights(arm))


def agreement(weights: pd.DataFrame) -> Estimate:
    """Return the mean Spearman correlation of the weights [tasks, PT seeds] over the pairs of PT seeds.

    Pairs share seeds, so the standard error is the jackknife's over seeds (Efron and Stein 1981), and `n` is the number
    of seeds. Two seeds make one pair, which has no standard error. The correlation of constant weights is NaN, and so
    is that of weights that are not finite. Raises NotMeasuredError if there is only one seed.
    """
    count = weights.shape[1]
    if count < 2:
        raise NotMeasuredError("A correlation between PT seeds needs two of them.")
    with np.errstate(all="ignore"):
        r = np.corrcoef(weights.where(np.isfinite(weights)).rank().to_numpy(dtype=float), rowvar=False)
    pairs = r[np.triu_indices(len(r), 1)]
    if count == 2:
        return Estimate(float(pairs[0]), math.nan, count, math.nan, math.nan)
    total = float(pairs.sum())
    without = [(total - float(np.delete(r[i], i).sum())) / (len(pairs) - count + 1) for i in range(count)]
    # Pseudo-values have the jackknife's standard error, and the mean of the pairs as theirs: it has no bias to remove.
    return estimate_mean(count * total / len(pairs) - (count - 1) * np.array(without))


def weight_tables(results: PpiResults) -> Tables:
    """Return statistics of the learned weights, their comparison between arms, and the terms with extreme weights."""
    rows = [weight_row(results, arm) for arm in results.learners]
    blocks = {_CAPTION: pd.DataFrame([_shown(results, row) for row in rows]).fillna("")}
    parts = [pd.DataFrame(rows)]
    compared = comparison(results)
    if compared is not None:
        caption = (
            f"Absolute difference between the weights that {results.label(COMPARED[0])} and "
            f"{results.label(COMPARED[1])} give a task: median and half of the interquartile range over tasks, "
            "mean ± standard error over PT seeds"
        )
        blocks[caption] = _wide_comparison(results, compared)
        parts.append(compared)
    for arm in results.learners:
        table = ranked(results, results.weights(arm))
        parts.append(table.assign(arm=arm))
        caption = (
            f"PT tasks of the highest and of the lowest weight, {results.label(arm)}: mean over PT seeds, and its range"
        )
        blocks[caption] = _ends(table)
    return Tables(blocks, numbers_of(results.name, parts))


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
        ours, others = map(results.weights, COMPARED)
    except NotMeasuredError:
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


def draw_weights(results: PpiResults) -> Figure:
    """Draw histograms of the weights, the arms that the paper compares, and the weights over PT."""
    panels: list[Panel] = [partial(_histograms, results)]
    compared = comparison(results)
    if compared is not None:
        panels.append(partial(_scatter, results, compared))
    panels.append(partial(_trajectories, results))
    drawn, axes = figures.panels(len(panels), width=4.9, height=3.4)
    for axis, panel in zip(axes, panels, strict=True):
        panel(axis)
    figures.legend_above(drawn, axes, columns=4)
    return drawn


def weight_claims(results: PpiResults) -> Iterator[Comparison]:
    """Yield claims on planted use (if any), on agreement between PT seeds, and on the FT tasks' relatives."""
    planted = results.metrics[results.metrics["metric"] == PLANTED]
    agree = f"{{}}'s weights agree between PT seeds (rank correlation at least {AGREED:g})"
    for metric, text, target, measure in (
        (PLANTED, "{}'s weights find the PT tasks of planted use", at_least(FOUND), _planted),
        (WEIGHT, agree, at_least(AGREED), _agreed),
        (RELATIVES, "{} gives PT tasks that an FT task implies more weight than the others", NOT_BELOW, relatives),
    ):
        for arm in results.learners:
            if metric != PLANTED or results.config.source == "simulated" or (planted["arm"] == arm).any():
                yield Comparison(text.format(arm), arm, "", metric, target, partial(measure, results, arm), PRETRAINING)


def _shown(results: PpiResults, row: dict[str, float | str]) -> dict[str, object]:
    """Return a row of `weight_row` as it stands in the table."""
    shown: dict[str, object] = {
        "arm": results.label(str(row["arm"])),
        "PT seeds": row["seeds"],
        "below 0.5 (%)": f"{float(row['below_half']):.0f}",
        "above 1.5 (%)": f"{float(row['above_one_and_a_half']):.0f}",
        "median": f"{float(row['median']):.2f}",
    }
    columns = {
        "correlation between PT seeds": "agreement",
        "relatives minus others": "relatives",
        "AUROC against planted use": "planted",
    }
    for column, name in columns.items():
        if name in row:
            shown[column] = mean_and_error(float(row[name]), float(row[f"{name}_standard_error"]))
        elif name != "planted":
            shown[column] = ""
    return shown


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
    texts = [
        [f"{row['weight']:.2f} ({row['lowest']:.2f} to {row['highest']:.2f})" for row in part.to_dict("records")]
        for part in (high, low)
    ]
    columns = {"highest": list(high["term"]), "weight": texts[0], "lowest": list(low["term"]), "its weight": texts[1]}
    return pd.DataFrame(columns)


def _histograms(results: PpiResults, axis: Axes) -> None:
    look = results.looks()
    for arm in results.learners:
        values = results.weights(arm).to_numpy(dtype=float).ravel()
        label, colour, _, line = look[arm]
        figures.histogram(axis, values, EDGES, label, colour, alpha=0.12, linewidth=1.8, linestyle=line)
    axis.set(xlabel="learned weight", ylabel="share of PT tasks (%)")
    axis.set_title("weights at the end, all PT seeds")


def _scatter(results: PpiResults, compared: pd.DataFrame, axis: Axes) -> None:
    ours, others = map(results.weights, COMPARED)
    colour, limits = results.looks()[COMPARED[0]].colour, (-0.05, 2.05)
    for seed in compared["seed"]:
        axis.scatter(others[seed], ours[seed], s=6, color=colour, alpha=0.3, linewidths=0, rasterized=True)
    axis.axline((1, 1), slope=1, color=figures.QUIET, linewidth=1.2, linestyle="--", zorder=1.5)
    xlabel, ylabel = (f"weight, {results.label(arm)}" for arm in reversed(COMPARED))
    axis.set(xlabel=xlabel, ylabel=ylabel, xlim=limits, ylim=limits)
    apart, papers = compared["median"].mean(skipna=False), results.papers_number(*PAPERS_ROW)
    beside = "" if math.isnan(papers) else f", paper {papers:.2f}"
    axis.set_title(f"weights of each task; median of\n|difference| {apart:.2f}{beside}")


def _trajectories(results: PpiResults, axis: Axes) -> None:
    look = results.looks()
    for arm, (name, share) in product(results.learners, QUANTILES.items()):
        label, colour, _, line = look[arm]
        mean = results.by_seed(arm, name, FULL_ACCESS).mean(axis=1, skipna=False)
        own: Any = {"linewidth": 2.2, "label": label} if share == 0.5 else {"linewidth": 0.9}
        axis.plot(mean.index, mean, color=colour, linestyle=line, **own)
    axis.set(xlabel="meta-iteration", ylabel="weight: median, and\n10 % and 90 % (thin)", ylim=(-0.05, 2.05))
    axis.margins(x=0)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_title("weights in PT, mean over PT seeds")


EXPERIMENT = Experiment(
    title="The learned weights of PT tasks",
    figure_title="The learned weights of PT tasks, and of two arms against each other",
    section=LearnedTaskWeights,
    order=7,
    needs=weight_runs,
    results=PpiResults,
    tables=weight_tables,
    figure=draw_weights,
    comparisons=weight_claims,
)
