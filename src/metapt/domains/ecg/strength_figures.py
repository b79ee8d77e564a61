"""The figure of the experiment `warp_study`.

Error bars and bands are standard errors of the PT seeds' means. With a single PT seed there are none.
"""

from __future__ import annotations

from contextlib import suppress

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.ecg.looks import label, looks
from metapt.domains.ecg.quantities import DISPLACEMENT, HORIZON, OLD_HEAD, REFITTED_HEAD
from metapt.domains.ecg.results import EcgResults, setting_words
from metapt.domains.ecg.strengths import start_arm, strength_table
from metapt.domains.ecg.trajectories import draw_trajectories, log_scale
from metapt.evaluation import figures
from metapt.evaluation.looks import Look
from metapt.evaluation.metrics import NotMeasuredError
from metapt.twostage.quantities import AUROC_LABEL, EVALUATIONS
from metapt.twostage.seeds import over_seeds


def draw(results: EcgResults) -> Figure:
    """Draw the hypergradient at each strength, the learned strengths, and AUROC after PT with fixed strengths."""
    study, arms, evaluations = results.section, list(results.section.starts), results.config.evaluations
    strengths, look = strength_table(results), looks(arms)
    figure, axes = figures.panels(
        columns=2, rows=-(-(2 * len(arms) + 2 + len(evaluations)) // 2), width=5.2, height=3.3
    )
    free = iter(axes)
    for arm in arms:
        _hypergradients(axis := next(free), strengths, look[arm], arm)
        figures.title(axis, f"hypergradient of {look[arm].label}")
        _horizon(axis := next(free), results, arm)
        figures.title(axis, f"more PT steps, {look[arm].label}'s warp")
    _signals(axis := next(free), strengths, look)
    figures.title(axis, "how much one draw says")
    runs = {start_arm(arm, start): arm for arm, starts in study.starts.items() for start in starts}
    draw_trajectories(axis := next(free), results, runs)
    figures.title(axis, "trajectories from several starts, a line per PT seed")
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
    """Draw the mean over the standard deviation of the hypergradient's draws at each displacement."""
    for arm, looked in look.items():
        part = _known(strengths, "t", arm)
        if len(part):
            axis.plot(part["displacement"], part["t"], color=looked.colour, marker=looked.marker, label=looked.label)
    axis.axhline(0.0, color=figures.QUIET, linewidth=1, linestyle="--", zorder=1.5)
    axis.set(ylabel="t of one draw (mean / standard deviation)", xlabel=DISPLACEMENT)
    log_scale(axis, "x")


def _known(strengths: pd.DataFrame, column: str, arm: str) -> pd.DataFrame:
    """Return the rows of an arm that have a number, sorted by displacement; none if the column is missing."""
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
        axis.set(xlabel=DISPLACEMENT, ylabel="d FT loss / dm, mean ± SE\n(above 0: less warp)")
    log_scale(axis, "x")


def _horizon(axis: Axes, results: EcgResults, arm: str) -> None:
    """Draw the FT loss after further PT steps at each strength, minus that at the lowest one.

    Lines of old heads are dotted, those of refitted heads solid.
    """
    rows = results.metrics[(results.metrics["arm"] == arm) & (results.metrics["evaluation"] == HORIZON)]
    settings = [setting_words(setting) for setting in rows["setting"]]
    rows = rows.assign(initial=[float(s["initial"]) for s in settings], steps=[int(s["steps"]) for s in settings])
    place = rows[rows["metric"] == DISPLACEMENT].groupby("initial")["value"].mean()
    counts = sorted(rows["steps"].unique())
    with figures.style():
        for steps, colour in zip(counts, figures.ramp(len(counts)), strict=True):
            for metric, line in ((REFITTED_HEAD, "-"), (OLD_HEAD, ":")):
                part = rows[(rows["steps"] == steps) & (rows["metric"] == metric)]
                table = part.pivot(index="initial", columns="replicate", values="value").sort_index()
                change = table - table.iloc[0]
                mean, error = change.mean(axis=1, skipna=False), change.sem(axis=1).fillna(0.0)
                name = f"{steps} step{'s' if steps > 1 else ''}" + (", old head" if line == ":" else ", refitted")
                x = place.loc[change.index]
                axis.fill_between(x, mean - error, mean + error, color=colour, alpha=0.15, linewidth=0)
                axis.plot(x, mean, color=colour, linestyle=line, marker="o", markersize=3.5, linewidth=1.5, label=name)
        axis.axhline(0.0, color=figures.QUIET, linewidth=1, linestyle="--", zorder=1.5)
        axis.set(xlabel=DISPLACEMENT, ylabel="FT loss minus that\nat the lowest strength")
    log_scale(axis, "x")


def _worth(axis: Axes, results: EcgResults, strengths: pd.DataFrame, evaluation: str) -> None:
    """Draw AUROC over the fixed displacement, a line per parametrisation, and mark where the learned warps ended."""
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
                axis,
                part["displacement"],
                part[column] - error,
                part[column],
                part[column] + error,
                f"{name} warp",
                colour,
            )
            axis.plot(part["displacement"], part[column], figures.MARKERS[number], color=colour)
        for arm, look in looks(list(results.section.starts)).items():
            runs = [start_arm(arm, start) for start in results.section.starts[arm]]
            with suppress(NotMeasuredError):
                ends = [float(results.pretraining(run, DISPLACEMENT).mean()) for run in runs]
                scores = [over_seeds(results.runs(run, size, evaluation)).mean for run in runs]
                axis.plot(
                    ends, scores, look.marker, color=look.colour, markersize=8, label=f"{look.label}, where it ended"
                )
        with suppress(NotMeasuredError):
            nothing = over_seeds(results.runs("no_pt", size, evaluation))
            axis.axhline(
                nothing.mean, color=figures.QUIET, linewidth=1.2, linestyle="--", label=label("no_pt"), zorder=1.5
            )
        axis.set(xlabel=DISPLACEMENT, ylabel=f"{AUROC_LABEL}, |$D_{{FT}}$| = {size}")
    log_scale(axis, "x")
