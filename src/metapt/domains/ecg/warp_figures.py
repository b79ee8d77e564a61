"""The figures of what the warp does and of how it is learned: the experiments `augmentations` and `warp_study`.

Error bars and bands are standard errors over the PT seeds' means, which none are known of where there is a single PT seed.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from metapt.domains.ecg import quantities
from metapt.domains.ecg.config import start_arm
from metapt.domains.ecg.data.sources import CLASSES
from metapt.domains.ecg.labels import label, looks
from metapt.domains.ecg.results import Results, words
from metapt.domains.ecg.tables import strength_table
from metapt.evaluation import figures
from metapt.evaluation.looks import AUROC_LABEL, EVALUATIONS, Look
from metapt.evaluation.metrics import NotMeasuredError
from metapt.twostage.seeded import over_seeds


def augmentations(results: Results) -> Figure:
    """One ECG and its views, the learned strength by diagnosis, and the way there."""
    arms, look = results.arms, looks(results.arms)
    with figures.style():
        figure = Figure(figsize=(4.2 * len(arms), 8.6))
        upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[1.35, 1.0]).flat
        grid = upper.subplots(2, len(arms), squeeze=False, sharex=True, sharey=True)
        left, right = lower.subplots(1, 2)
    for column, arm in enumerate(arms):
        for row, when in enumerate(("initial", "learned")):
            _views(grid[row, column], results, results.views[f"{arm}/{when}"], look[arm].colour)
            figures.title(grid[row, column], f"{look[arm].label}, {when} strength")
        grid[1, column].set_xlabel("time (s)")
    _by_diagnosis(left, results)
    _ways(right, results, {arm: arm for arm in arms}, look)
    with figures.style():
        right.legend(fontsize=9)
    figures.title(left, "strength of each ECG's warp, by diagnosis")
    figures.title(right, "way of the warp, a line per PT seed")
    return figure


def warp(results: Results) -> Figure:
    """What the hypergradient says at each strength, where it leads, and what PT with that strength is worth."""
    study, arms, evaluations = results.section, list(results.section.starts), results.config.evaluations
    strengths, look = strength_table(results), looks(arms)
    figure, axes = figures.panels(columns=2, rows=-(-(2 * len(arms) + 2 + len(evaluations)) // 2), width=5.2, height=3.3)
    free = iter(axes)
    for arm in arms:
        _hypergradients(axis := next(free), strengths, look[arm], arm)
        figures.title(axis, f"hypergradient of {look[arm].label}")
        _horizon(axis := next(free), results, arm)
        figures.title(axis, f"more PT steps, {look[arm].label}'s warp")
    _signals(axis := next(free), strengths, look)
    figures.title(axis, "how much one draw says")
    runs = {start_arm(arm, start): arm for arm, starts in study.starts.items() for start in starts}
    _ways(axis := next(free), results, runs, look)
    figures.title(axis, "ways from several starts, a line per PT seed")
    for evaluation in evaluations:
        _worth(axis := next(free), results, strengths, evaluation)
        figures.title(axis, f"fixed strength, {EVALUATIONS[evaluation]}")
    for axis in free:
        axis.remove()
    for axis in figure.axes:
        if axis.get_legend_handles_labels()[1]:
            with figures.style():
                axis.legend(fontsize=9)
    return figure


def _signals(axis: Axes, strengths: pd.DataFrame, look: dict[str, Look]) -> None:
    """Mean over deviation of the hypergradient's draws at each displacement."""
    for arm, looked in look.items():
        part = _known(strengths, "t", arm)
        if len(part):
            axis.plot(part["displacement"], part["t"], color=looked.colour, marker=looked.marker, label=looked.label)
    axis.axhline(0.0, color=figures.QUIET, linewidth=1, linestyle="--", zorder=1.5)
    axis.set(ylabel="t of one draw (mean / deviation)", xlabel=quantities.DISPLACEMENT)
    _log(axis, "x")


def _views(axis: Axes, results: Results, views: NDArray[np.float64], colour: str) -> None:
    """The ECG and two views of it below one another."""
    time, original = results.views["time"], results.views["original"]
    step = 1.15 * max(float(np.ptp(trace)) for trace in (original, *views))
    with figures.style():
        for place, (trace, ink) in enumerate(zip((original, *views), (figures.INK, colour, colour), strict=True)):
            axis.plot(time, trace - np.median(trace) - place * step, color=ink, linewidth=0.7)
        axis.set_yticks([-place * step for place in range(3)], ["original", "view 1", "view 2"])
        axis.tick_params(axis="y", length=0)
        axis.grid(visible=False)
        axis.margins(x=0)
        right = float(time[-1])
        axis.plot([right, right], [0.35 * step, 0.35 * step + 1.0], color=figures.INK, linewidth=2, clip_on=False)
        axis.annotate("1 mV", (right, 0.35 * step + 0.5), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)


def _by_diagnosis(axis: Axes, results: Results) -> None:
    """Boxes (quartiles, and whiskers from the 5th to the 95th percentile) of the ECGs' displacements."""
    arms, look = results.arms, looks(results.arms)
    width = 0.8 / len(arms)
    with figures.style():
        for number, arm in enumerate(arms):
            strength, labels = results.views[f"{arm}/strength"], results.views[f"{arm}/labels"]
            groups = [strength[labels[:, i] > 0] for i in range(len(CLASSES))]
            places = np.arange(len(CLASSES)) + (number - (len(arms) - 1) / 2) * width
            axis.boxplot(
                groups,
                positions=places.tolist(),
                widths=0.8 * width,
                whis=(5, 95),
                showfliers=False,
                patch_artist=True,
                manage_ticks=False,
                boxprops={"facecolor": look[arm].colour, "edgecolor": look[arm].colour, "alpha": 0.45},
                medianprops={"color": figures.INK, "linewidth": 1.6},
                whiskerprops={"color": look[arm].colour},
                capprops={"color": look[arm].colour},
            )
        axis.set_xticks(range(len(CLASSES)), CLASSES)
        axis.grid(axis="x", visible=False)
        axis.set(ylabel=quantities.DISPLACEMENT)
        handles = [Patch(facecolor=look[arm].colour, alpha=0.6, label=look[arm].label) for arm in arms]
        axis.legend(handles=handles, fontsize=9)
    _log(axis, "y")


def _ways(axis: Axes, results: Results, runs: dict[str, str], look: dict[str, Look]) -> None:
    """The displacement over meta-iterations, a line per PT seed; `runs`: arm that ran -> arm whose look it has.

    An arm that learns nothing is a dashed line.
    """
    with figures.style():
        for run, arm in runs.items():
            found = sorted({int(seed) for seed in results.series.loc[results.series["arm"] == run, "seed"]})
            drawn = [way for seed in found if len(way := results.trajectory(run, seed))]
            for way in drawn:
                axis.plot(
                    way["step"],
                    way["value"],
                    color=look[arm].colour,
                    linewidth=1.2,
                    alpha=0.8,
                    label=figures.once(axis, look[arm].label),
                )
                axis.plot(way["step"].iloc[0], way["value"].iloc[0], look[arm].marker, color=look[arm].colour, markersize=4.5)
            if not drawn:
                try:
                    still = float(results.pretraining(run, quantities.DISPLACEMENT).mean())
                except NotMeasuredError:
                    continue
                axis.axhline(
                    still, color=look[arm].colour, linewidth=1.2, linestyle="--", label=figures.once(axis, look[arm].label)
                )
        axis.set(xlabel="meta-iteration", ylabel=quantities.DISPLACEMENT)
        axis.margins(x=0.02)
    _log(axis, "y")


def _known(strengths: pd.DataFrame, column: str, arm: str) -> pd.DataFrame:
    """The rows of an arm that have a number, by displacement; none where the column is missing."""
    if column not in strengths:
        return strengths.iloc[:0]
    part = strengths[(strengths["arm"] == arm) & strengths[column].notna() & strengths["displacement"].notna()]
    return part.sort_values("displacement")


def _hypergradients(axis: Axes, strengths: pd.DataFrame, look: Look, arm: str) -> None:
    part = _known(strengths, "hypergradient_mean", arm)
    with figures.style():
        if len(part):
            axis.errorbar(
                part["displacement"],
                part["hypergradient_mean"],
                part["hypergradient_standard_error"].fillna(0.0),
                color=look.colour,
                marker=look.marker,
                elinewidth=1.4,
            )
        axis.axhline(0.0, color=figures.QUIET, linewidth=1, linestyle="--", zorder=1.5)
        axis.set(xlabel=quantities.DISPLACEMENT, ylabel="d FT loss / dm, mean ± SE\n(above 0: less warp)")
    _log(axis, "x")


def _horizon(axis: Axes, results: Results, arm: str) -> None:
    """FT loss after some more PT steps at each strength, minus that at the lowest one: old heads dashed, refitted ones solid."""
    rows = results.metrics[(results.metrics["arm"] == arm) & (results.metrics["evaluation"] == "horizon")]
    settings = [words(setting) for setting in rows["setting"]]
    rows = rows.assign(initial=[float(s["initial"]) for s in settings], steps=[int(s["steps"]) for s in settings])
    place = rows[rows["metric"] == quantities.DISPLACEMENT].groupby("initial")["value"].mean()
    counts = sorted(rows["steps"].unique())
    with figures.style():
        for steps, colour in zip(counts, figures.ramp(len(counts)), strict=True):
            for metric, line in ((quantities.REFITTED_HEAD, "-"), (quantities.OLD_HEAD, ":")):
                part = rows[(rows["steps"] == steps) & (rows["metric"] == metric)]
                table = part.pivot(index="initial", columns="replicate", values="value").sort_index()
                change = table - table.iloc[0]
                mean, error = change.mean(axis=1, skipna=False), change.sem(axis=1).fillna(0.0)
                name = f"{steps} step{'s' if steps > 1 else ''}" + (", old head" if line == ":" else ", refitted")
                x = place.loc[change.index]
                axis.fill_between(x, mean - error, mean + error, color=colour, alpha=0.15, linewidth=0)
                axis.plot(x, mean, color=colour, linestyle=line, marker="o", markersize=3.5, linewidth=1.5, label=name)
        axis.axhline(0.0, color=figures.QUIET, linewidth=1, linestyle="--", zorder=1.5)
        axis.set(xlabel=quantities.DISPLACEMENT, ylabel="FT loss minus that\nat the lowest strength")
    _log(axis, "x")


def _worth(axis: Axes, results: Results, strengths: pd.DataFrame, evaluation: str) -> None:
    """AUROC over the fixed displacement, a line per parametrisation of the warp, and marks where the learned warps ended."""
    size = results.section.finetune_size
    with figures.style():
        for number, (name, points) in enumerate(strengths.groupby("warp", sort=False)):
            column = f"{evaluation}_mean"
            if column not in points:
                continue
            part = points.drop_duplicates("initial").dropna(subset=[column, "displacement"]).sort_values("displacement")
            error = part[f"{evaluation}_standard_error"].fillna(0.0)
            colour = figures.colour((0, 3, 4, 5, 6)[number % 5])
            figures.band(
                axis, part["displacement"], part[column] - error, part[column], part[column] + error, f"{name} warp", colour
            )
            axis.plot(part["displacement"], part[column], figures.MARKERS[number], color=colour)
        for arm, look in looks(list(results.section.starts)).items():
            runs = [start_arm(arm, start) for start in results.section.starts[arm]]
            with suppress(NotMeasuredError):
                ends = [float(results.pretraining(run, quantities.DISPLACEMENT).mean()) for run in runs]
                scores = [over_seeds(results.runs(run, size, evaluation)).mean for run in runs]
                axis.plot(ends, scores, look.marker, color=look.colour, markersize=8, label=f"{look.label}, where it ended")
        with suppress(NotMeasuredError):
            nothing = over_seeds(results.runs("no_pt", size, evaluation))
            axis.axhline(nothing.mean, color=figures.QUIET, linewidth=1.2, linestyle="--", label=label("no_pt"), zorder=1.5)
        axis.set(xlabel=quantities.DISPLACEMENT, ylabel=f"{AUROC_LABEL}, |$D_{{FT}}$| = {size}")
    _log(axis, "x")


def _log(axis: Axes, which: str) -> None:
    with figures.style():
        axis.set(**{f"{which}scale": "log"})
        figures.plain_log_ticks(axis.xaxis if which == "x" else axis.yaxis)
