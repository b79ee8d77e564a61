"""Experiment `bptt`: the cost of the approximations in accuracy, and their savings in time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.mnist.config import BpttStudy
from metapt.domains.mnist.quantities import ACCURACY, PEAK_MEMORY, WALL_TIME
from metapt.domains.mnist.results import MnistResults
from metapt.evaluation import figures
from metapt.evaluation.comparisons import NOT_BELOW, Comparison, Sanity, at_least, at_most
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.statistics import Difference, Ratio, paired_difference, paired_ratio, summarise

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
        with figures.style():
            left.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)
    return whole


def _costs(axis: Axes, values: pd.Series[float], xlabel: str, least: float) -> None:
    """Draw a dot and its number for each arm on a logarithmic axis; a value below `least` is drawn at `least`."""
    with figures.style():
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

    def gain(arm: str, control: str) -> Difference:
        return paired_difference(results.values(arm, ACCURACY), results.values(control, ACCURACY))

    def speedup(arm: str, control: str) -> Ratio:
        return paired_ratio(results.values(control, WALL_TIME), results.values(arm, WALL_TIME))

    says = results.paper_says
    for end in ("", "-shared"):
        arm = f"meta{end}"
        if arm not in results.arms:
            continue
        start, exact, limited, best = (
            f"{name}{end}" for name in (START, "bptt", "bptt_limited", "optimal_augmentation")
        )
        works = {
            each: Sanity(f"{each} beats {start}, its start", partial(gain, each, start)) for each in (exact, limited)
        }
        for other, paper in ((exact, "87.6 against 88.0 %"), (best, "87.6 against 88.3 %")):
            text, loss = f"{arm} comes within 1 point of {other}", partial(gain, other, arm)
            paper = says(arm, paper, other)
            yield Comparison(text, arm, other, ACCURACY, at_most(1.0), loss, paper=paper, sanity=works.get(other))
        text, won = f"{arm} is at least 4 points better than {start}", partial(gain, arm, start)
        paper = says(arm, "87.6 against 80.1 %", start)
        yield Comparison(text, arm, start, ACCURACY, at_least(4.0), won, paper=paper)
        text, paper = f"{arm} beats {limited}, at the same wall time", says(arm, "87.6 against 83.4 %", limited)
        won, works_too = partial(gain, arm, limited), works[limited]
        yield Comparison(text, arm, limited, ACCURACY, NOT_BELOW, won, paper=paper, sanity=works_too)
        text = f"{arm} is at least 20 times faster than {exact}"
        paper = says(arm, "30 minutes against 20 hours", exact)
        faster = partial(speedup, arm, exact)
        yield Comparison(text, arm, exact, WALL_TIME, at_least(20.0), faster, paper=paper, sanity=works[exact])


EXPERIMENT = Experiment(
    title="The paper's method against backpropagation through training: accuracy, wall time and memory",
    figure_title="Accuracy, wall time and memory of the paper's method and of backpropagation through pre-training and "
    "fine-tuning",
    section=BpttStudy,
    order=4,
    needs=lambda jobs, section: Needs(jobs.studies("bptt")),
    results=MnistResults,
    tables=lambda results: results.beside_paper("The paper's method against backpropagation through PT and FT"),
    figure=figure,
    comparisons=comparisons,
)
