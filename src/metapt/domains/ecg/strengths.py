"""Strengths of the warp: results of PT with fixed ones, hypergradients at these, and the strengths that are learned.

Error bars and bands of figures are standard errors of the PT seeds' means. With a single PT seed, that of a
hypergradient is the standard error over its draws, and the others have none.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.ecg.looks import looks
from metapt.domains.ecg.quantities import (
    DISPLACEMENT,
    HORIZON,
    HYPERGRADIENT,
    MEAN,
    NOT_FINITE,
    OLD_HEAD,
    POSITIVE,
    REFITTED_HEAD,
    STANDARD_DEVIATION,
)
from metapt.domains.ecg.results import EcgResults, setting_words
from metapt.evaluation import figures
from metapt.evaluation.looks import Look
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import estimate_mean
from metapt.twostage.quantities import AUROC_LABEL, EVALUATIONS
from metapt.twostage.seeds import over_seeds

_ZERO: Any = {"y": 0.0, "color": figures.QUIET, "linewidth": 1, "linestyle": "--", "zorder": 1.5}


def fixed_arm(warp: str, initial: float) -> str:
    """Return the name of the arm whose warp has a fixed strength, as in `fixed-stable-0.5`."""
    return f"fixed-{warp}-{initial:g}"


def start_arm(arm: str, initial: float) -> str:
    """Return the name of an arm that starts from a given strength, as in `meta-from-4`."""
    return f"{arm}-from-{initial:g}"


def strength_table(results: EcgResults) -> pd.DataFrame:
    """Return a row per fixed strength, and per arm whose warp has its parametrisation.

    Columns: warp, initial, displacement; {evaluation}_mean and {evaluation}_standard_error over PT seeds (NaN where not
    run); arm, hypergradient_mean, hypergradient_standard_error, t, positive ("" and NaN where there is no such arm).
    """
    study, rows = results.section, []
    for name, strengths in study.strengths.items():
        warp = study.warps[name]
        arms = [arm for arm in study.starts if warp.alike(results.config.arms[arm].warp)]
        for initial in strengths:
            row = {"warp": name, "initial": initial} | _fixed(results, fixed_arm(name, initial))
            rows += [row | {"arm": arm} | _hypergradient(results, arm, initial) for arm in arms] or [row | {"arm": ""}]
    return pd.DataFrame(rows)


def _fixed(results: EcgResults, arm: str) -> dict[str, float]:
    numbers = {"displacement": math.nan}
    with suppress(NotMeasuredError):
        numbers["displacement"] = float(results.pretraining(arm, DISPLACEMENT).mean())
    for evaluation in results.config.evaluations:
        with suppress(NotMeasuredError):
            e = over_seeds(results.runs(arm, results.section.finetune_size, evaluation))
            numbers |= {f"{evaluation}_mean": e.mean, f"{evaluation}_standard_error": e.standard_error}
    return numbers


def _hypergradient(results: EcgResults, arm: str, initial: float) -> dict[str, float]:
    try:
        mean, deviation, positive, lost = (
            results.values(arm, metric, f"initial={initial:g}", HYPERGRADIENT)
            for metric in (MEAN, STANDARD_DEVIATION, POSITIVE, NOT_FINITE)
        )
    except NotMeasuredError:
        return {}
    e = estimate_mean(mean.to_numpy(dtype=float))
    finite = results.section.draws * (1 - float(lost.iloc[0]))
    error = e.standard_error
    if e.n == 1:
        error = float(deviation.iloc[0]) / math.sqrt(finite) if finite else math.nan
    numbers = {"hypergradient_mean": e.mean, "hypergradient_standard_error": error}
    return numbers | {"t": float((mean / deviation).mean()), "positive": float(positive.mean())}


def draw(results: EcgResults) -> Figure:
    """Draw the hypergradient at each strength, the learned strengths, and AUROC after PT with fixed strengths."""
    study, arms, evaluations = results.section, list(results.section.starts), results.config.evaluations
    strengths, look = strength_table(results), looks(arms)
    figure, axes = figures.panels(2, -(-(2 * len(arms) + 2 + len(evaluations)) // 2), width=5.2, height=3.3)
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


def draw_trajectories(axis: Axes, results: EcgResults, runs: dict[str, str]) -> None:
    """Draw the displacement over meta-iterations, a line per PT seed; a dashed line for an arm without a trajectory.

    `runs` maps an arm that was run to the arm whose look it has.
    """
    look = looks(list(dict.fromkeys(runs.values())))
    with figures.style():
        for run, arm in runs.items():
            style: dict[str, Any] = {"color": look[arm].colour, "linewidth": 1.2}
            trajectories = results.trajectories(run)
            for each in trajectories.values():
                steps, values = each["step"], each["value"]
                axis.plot(steps, values, alpha=0.8, label=figures.once(axis, look[arm].label), **style)
                axis.plot(steps.iloc[0], values.iloc[0], look[arm].marker, color=look[arm].colour, markersize=4.5)
            with suppress(NotMeasuredError):
                if not trajectories:
                    constant = float(results.pretraining(run, DISPLACEMENT).mean())
                    axis.axhline(constant, linestyle="--", label=figures.once(axis, look[arm].label), **style)
        axis.set(xlabel="meta-iteration", ylabel=DISPLACEMENT)
        axis.margins(x=0.02)
    log_scale(axis, "y")


def log_scale(axis: Axes, which: str) -> None:
    """Give an axis ("x" or "y") a logarithmic scale."""
    with figures.style():
        axis.set(**{f"{which}scale": "log"})
        figures.plain_log_ticks(axis.xaxis if which == "x" else axis.yaxis)


def _signals(axis: Axes, strengths: pd.DataFrame, look: dict[str, Look]) -> None:
    """Draw the mean over the standard deviation of the hypergradient's draws at each displacement."""
    for arm, looked in look.items():
        part = _known(strengths, "t", arm)
        if len(part):
            axis.plot(part["displacement"], part["t"], color=looked.colour, marker=looked.marker, label=looked.label)
    axis.axhline(**_ZERO)
    axis.set(ylabel="t of one draw\n(mean / standard deviation)", xlabel=DISPLACEMENT)
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
            error = part["hypergradient_standard_error"].fillna(0.0)
            style: Any = {"color": look.colour, "marker": look.marker, "elinewidth": 1.4}
            axis.errorbar(part["displacement"], part["hypergradient_mean"], error, **style)
        axis.axhline(**_ZERO)
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
            for metric, line, name in ((REFITTED_HEAD, "-", "refitted"), (OLD_HEAD, ":", "old head")):
                part = rows[(rows["steps"] == steps) & (rows["metric"] == metric)]
                table = part.pivot(index="initial", columns="replicate", values="value").sort_index()
                change = table - table.iloc[0]
                mean, error = change.mean(axis=1, skipna=False), change.sem(axis=1).fillna(0.0)
                name = f"{steps} step{'s' if steps > 1 else ''}, {name}"
                x = place.loc[change.index]
                axis.fill_between(x, mean - error, mean + error, color=colour, alpha=0.15, linewidth=0)
                axis.plot(x, mean, color=colour, linestyle=line, marker="o", markersize=3.5, linewidth=1.5, label=name)
        axis.axhline(**_ZERO)
        axis.set(xlabel=DISPLACEMENT, ylabel="FT loss minus that at the\nlowest strength, mean ± SE")
    log_scale(axis, "x")


def _worth(axis: Axes, results: EcgResults, strengths: pd.DataFrame, evaluation: str) -> None:
    """Draw AUROC over the fixed displacement, a line per parametrisation, and mark where the learned warps ended."""
    size, column = results.section.finetune_size, f"{evaluation}_mean"
    with figures.style():
        for number, (name, points) in enumerate(strengths.groupby("warp", sort=False) if column in strengths else []):
            part = points.drop_duplicates("initial").dropna(subset=[column, "displacement"]).sort_values("displacement")
            mean, error = part[column], part[f"{evaluation}_standard_error"].fillna(0.0)
            colour = figures.colour((0, 3, 4, 5, 6)[number % 5])
            figures.band(axis, part["displacement"], mean - error, mean, mean + error, f"{name} warp", colour)
            axis.plot(part["displacement"], mean, figures.MARKERS[number % len(figures.MARKERS)], color=colour)
        for arm, (name, colour, marker, _) in looks(list(results.section.starts)).items():
            runs = [start_arm(arm, start) for start in results.section.starts[arm]]
            with suppress(NotMeasuredError):
                ends = [float(results.pretraining(run, DISPLACEMENT).mean()) for run in runs]
                scores = [over_seeds(results.runs(run, size, evaluation)).mean for run in runs]
                axis.plot(ends, scores, marker, color=colour, markersize=8, label=f"{name}, where it ended")
        axis.set(xlabel=DISPLACEMENT, ylabel=f"{AUROC_LABEL}, |$D_{{FT}}$| = {size},\nmean ± SE over PT seeds")
    log_scale(axis, "x")
