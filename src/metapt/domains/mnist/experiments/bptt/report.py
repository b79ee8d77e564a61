"""Experiment `bptt`: the cost of the approximations in accuracy, and their savings in time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.mnist.config import BpttStudy
from metapt.domains.mnist.quantities import ACCURACY, PEAK_MEMORY, WALL_TIME
from metapt.domains.mnist.results import MnistResults, experiment
from metapt.evaluation import figures
from metapt.evaluation.comparisons import NOT_BELOW, Comparison, Measurement, Sanity, at_least, at_most, machines_doubt
from metapt.evaluation.statistics import Estimate, paired_difference, paired_ratio, summarise

START = "initial_augmentation"  # the arm that is left where the others start


def figure(results: MnistResults) -> Figure:
    """Draw accuracy beside the paper's, and the means of wall time and peak memory, a row for each arm."""
    table, paper = results.metrics, results.own_papers
    summary = summarise(table[table["metric"] == ACCURACY]).rename(columns={"arm": "label"})
    paper = paper[(paper["experiment"] == results.name) & paper["arm"].isin(summary["label"])]
    names = {"arm": "label", "paper_mean": "mean", "paper_standard_error": "standard_error"}
    whole, (left, middle, right) = figures.panels(columns=3, height=max(2.2, 0.45 * len(summary) + 1.1))
    xlabel = f"{ACCURACY}, mean ± standard error"
    figures.bars_with_error(summary, paper.rename(columns=names), xlabel=xlabel, axis=left)
    for axis, metric in ((middle, WALL_TIME), (right, PEAK_MEMORY)):
        values = table[table["metric"] == metric].groupby("arm", sort=False)["value"].mean()
        _costs(axis, values, f"{metric}, mean", least=1.0 if axis is right else 0.0)
    if left.get_legend() is not None:
        left.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)
    return whole


def _costs(axis: Axes, values: pd.Series[float], xlabel: str, least: float) -> None:
    """Draw a dot and its number for each arm on a logarithmic axis; a value below `least` is drawn at `least`."""
    for place, value in enumerate(values):
        text = f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= least else f"< {least:g}"
        axis.plot(max(value, least), place, "o", color=figures.colour(0), clip_on=False)
        figures.note(axis, text, (max(value, least), place), 7)
    axis.set_xscale("log")
    figures.named_rows(axis, [""] * len(values), xlabel)
    axis.margins(x=0.2)
    axis.grid(axis="y", visible=True)
    figures.plain_log_ticks(axis.xaxis)


def comparisons(results: MnistResults) -> Iterator[Comparison]:
    """Yield each claim for separate heads and, if its arms are run, for a shared one (arms named `-shared`).

    Backpropagation must end better than it starts before anything is claimed against it.
    """
    for end in ("", "-shared"):
        if f"meta{end}" in results.arms:
            yield from _claims(results, end)


def _claims(results: MnistResults, end: str) -> Iterator[Comparison]:
    """Yield the claims about the arms whose names end with `end`."""

    def gain(arm: str, control: str) -> Estimate:
        return paired_difference(results.values(arm, ACCURACY), results.values(control, ACCURACY))

    def loss(arm: str, control: str) -> Estimate:
        return gain(control, arm)

    def in_time(arm: str, control: str) -> Measurement:
        return Measurement(gain(arm, control), doubt=machines_doubt(results.machines, arm, control))

    def speed(arm: str, control: str) -> Measurement:
        ratio = paired_ratio(results.values(control, WALL_TIME), results.values(arm, WALL_TIME))
        return Measurement(ratio, doubt=machines_doubt(results.machines, arm, control))

    arm, start, exact, limited, best = (
        f"{name}{end}" for name in ("meta", START, "bptt", "bptt_limited", "optimal_augmentation")
    )
    works = {each: Sanity(f"{each} beats {start}, its start", partial(gain, each, start)) for each in (exact, limited)}
    claims = (
        (exact, "comes within 1 point of {}", ACCURACY, at_most(1.0), loss, "87.6 against 88.0 %"),
        (best, "comes within 1 point of {}", ACCURACY, at_most(1.0), loss, "87.6 against 88.3 %"),
        (start, "is at least 4 points better than {}", ACCURACY, at_least(4.0), gain, "87.6 against 80.1 %"),
        (limited, "beats {}, at the same wall time", ACCURACY, NOT_BELOW, in_time, "87.6 against 83.4 %"),
        (exact, "is at least 20 times faster than {}", WALL_TIME, at_least(20.0), speed, "30 minutes against 20 hours"),
    )
    for control, words, metric, criterion, measure, paper in claims:
        text, measured = f"{arm} {words.format(control)}", partial(measure, arm, control)
        paper = results.paper_says(arm, paper, control)
        yield Comparison(text, arm, control, metric, criterion, measured, paper=paper, sanity=works.get(control))


EXPERIMENT = experiment(
    "bptt",
    BpttStudy,
    4,
    figure,
    comparisons,
    caption="The paper's method against backpropagation through PT and FT",
    title="The paper's method against backpropagation through training: accuracy, wall time and memory",
    figure_title="Accuracy, wall time and memory of the paper's method and of backpropagation through pre-training and "
    "fine-tuning",
)
