"""Time and memory of PT, as measured in the PT runs, their ratios to those of plain PT, and the time of FT."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.evaluation import figures
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, Comparison, Measurement, at_most, machines_doubt
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.figures import Look
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate, paired_ratio
from metapt.evaluation.tables import Tables
from metapt.sections import ExperimentSection
from metapt.twostage.quantities import (
    EVALUATIONS,
    FT_TIME,
    PEAK_MEMORY,
    PRETRAINING,
    TIME_PER_STEP,
    WALL_TIME,
    pretrain_seed,
)
from metapt.twostage.results import TwoStageResults

PAPERS_RATIOS = {TIME_PER_STEP: 2.0, PEAK_MEMORY: 8.5 / 4.5}
"""The paper's cost of meta-PT over plain PT, of memory that of the midpoints of its ranges (appendix "Implementation
details")."""
LEARNED = "meta"  # the arm to which the ratios belong


@dataclass(frozen=True)
class Cost:
    """The cost of the PT runs of an experiment's arms."""

    experiment: str  # name of the experiment
    looks: Mapping[str, Look]  # looks of the arms, in their order
    # returns the values of a metric, indexed by PT seed, given arm and metric; raises NotMeasuredError if there are
    # none
    measured: Callable[[str, str], pd.Series[float]]
    machines: Mapping[str, list[str]]  # names of the machines that PT ran on, by arm
    plain: str | None  # the arm to whose cost ratios are formed; None if it is not run
    papers: Mapping[str, str]  # the paper's cost in words, by arm; none on other data than its
    # time (s) of the first arm's FT runs by evaluation, indexed by pair of seeds
    finetuning: Mapping[str, pd.Series[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Limit:
    """A claim on each meta arm: a number is at most a multiple of that of plain PT."""

    metric: str  # name of the number
    words: str  # used as in "at most {words} of simclr"
    times: float  # the multiple
    paper: str  # what the paper reports on its arm, in words


def experiment(
    section: type[ExperimentSection],
    *,
    order: int,
    setting: Callable[[Any], str],
    results: type[TwoStageResults],
    plain: Callable[[Any], str | None],
    papers: Mapping[str, str],
    limits: tuple[Limit, ...],
    problem: str,
) -> Experiment:
    """Return the record of an experiment on the cost of PT on a `problem`, which is named in words.

    `setting` returns that of the runs, given the section. `papers` is the paper's cost in words, by arm, of plain PT
    first. Ratios are those to this arm or, where it is not run, to the results' arm that `plain` returns; the paper
    then says nothing of them.
    """

    def needs(jobs: Any, own: Any) -> Needs:
        # FT of the first arm alone, since that of all arms takes equally long.
        return Needs([*jobs.encoders(own.arms, setting(own)), *jobs.finetunes([(own.arms[0], setting(own))])])

    def measured(found: TwoStageResults) -> Cost:
        first = next(iter(papers))
        arm = first if first in found.arms else plain(found)
        words = papers if found.config.papers_data else {}
        rows = found.metrics[found.metrics["metric"] == FT_TIME].set_index("replicate")
        finetuning = {str(name): part["value"] for name, part in rows.groupby("evaluation")}
        whole = partial(whole_runs, found)
        return Cost(found.name, found.looks(), whole, found.machines, arm, words, finetuning)

    def compared(found: TwoStageResults) -> Iterator[Comparison]:
        cost = measured(found)
        beyond = tuple(replace(limit, paper=BEYOND_THE_PAPER) for limit in limits)
        return comparisons(cost, found.meta_arms, limits if cost.plain in papers else beyond)

    title = f"Time and memory of PT on {problem}"
    return Experiment(
        title=title,
        figure_title=f"{title}, for each arm",
        section=section,
        order=order,
        needs=needs,
        results=results,
        tables=lambda found: tables(measured(found)),
        figure=lambda found: figure(measured(found)),
        comparisons=compared,
    )


def whole_runs(results: TwoStageResults, arm: str, metric: str) -> pd.Series[float]:
    """Return a number of the PT runs of an arm that were not interrupted, indexed by PT seed.

    Raises NotMeasuredError if there is none.
    """
    values = results.pretraining(arm, metric).dropna()
    if values.empty:
        raise NotMeasuredError(f"All PT runs of {arm} were interrupted, so that none has {metric!r}.")
    return values


def ratio(cost: Cost, arm: str, metric: str) -> Estimate:
    """Return the mean ratio of an arm to plain PT over the PT seeds that both have, see `paired_ratio`.

    Raises NotMeasuredError if there are none.
    """
    if cost.plain is None:
        raise NotMeasuredError(f"{cost.experiment} has no plain PT to compare {arm} to.")
    ours, plain = (cost.measured(each, metric) for each in (arm, cost.plain))
    both = ours.index.intersection(plain.index)
    if both.empty:
        raise NotMeasuredError(f"{arm} and {cost.plain} have {metric!r} with no common PT seed.")
    return paired_ratio(ours[both], plain[both])


def tables(cost: Cost) -> Tables:
    """Return the table of costs, with a row for each arm, and that of FT, with a row for each evaluation."""
    rows, shown = [], []
    for arm, look in cost.looks.items():
        machine = "; ".join(cost.machines.get(arm, []))
        row: dict[str, object] = {"experiment": cost.experiment, "arm": arm, "machine": machine}
        texts: dict[str, str] = {"arm": look.label, "PT runs": ""}
        for metric, factor, name, what in (
            (TIME_PER_STEP, 1e3, "ms per PT step", "time"),
            (WALL_TIME, 1 / 3600, "whole PT (h)", ""),
            (PEAK_MEMORY, 1.0, "memory (GB)", "memory"),
        ):
            with suppress(NotMeasuredError):
                values = cost.measured(arm, metric).to_numpy(dtype=float)
                for word, statistic in (("median", np.median), ("min", np.min), ("max", np.max)):
                    row[f"{metric}, {word}"] = float(statistic(values))
                texts |= {"PT runs": str(len(values)), name: f"{factor * float(np.median(values)):.3g}"}
                if what and cost.plain is not None:
                    r = ratio(cost, arm, metric)
                    row |= {f"{metric}, ratio": r.mean, f"{metric}, ratio low": r.low, f"{metric}, ratio high": r.high}
                    interval = "" if math.isnan(r.low) else f" ({r.low:.2f} to {r.high:.2f})"
                    texts[f"ratio to {cost.looks[cost.plain].label} ({what})"] = f"{r.mean:.2f}{interval}"
        rows.append(row)
        shown.append(texts | ({"paper": cost.papers.get(arm, "")} if cost.papers else {}))
    machines = "; ".join(dict.fromkeys(name for names in cost.machines.values() for name in names))
    caption = (
        f"Cost of PT on {machines or 'an unknown machine'}: medians over PT seeds, and geometric means of the ratios "
        "of the same PT seed with 95% t intervals. Runs that were interrupted are left out"
    )
    caption += ". Column paper: time and memory of whole PT on one V100" if cost.papers else ""
    blocks, lines, first = {caption: pd.DataFrame(shown)}, [], next(iter(cost.looks))
    for evaluation, seconds in cost.finetuning.items():
        run, of_pt = float(seconds.median()), _median(cost, first, WALL_TIME) or math.nan
        encoder = float(seconds.groupby([pretrain_seed(int(each)) for each in seconds.index]).sum().median())
        rows[0] |= {f"{FT_TIME}, {evaluation}, median": run, f"{FT_TIME}, {evaluation}, over PT": encoder / of_pt}
        line = {"FT": EVALUATIONS[evaluation], "FT runs": str(len(seconds)), "a run (s)": f"{run:.3g}"}
        line |= {"all runs of an encoder (h)": f"{encoder / 3600:.3g}"}
        lines.append(line | {"ratio to the time of its PT": f"{encoder / of_pt:.2g}"})
    if lines:
        title = f"Cost of FT from {cost.looks[first].label}: medians over FT runs, and over PT seeds"
        blocks[title] = pd.DataFrame(lines)
    return Tables(blocks, pd.DataFrame(rows))


def figure(cost: Cost) -> Figure:
    """Return the figure of time per PT step and peak memory: medians, PT runs, and ratios to plain PT."""
    measures = ((TIME_PER_STEP, 1e3, "time per PT step (ms)"), (PEAK_MEMORY, 1.0, "peak memory of PT (GB)"))
    height = max(2.2, 0.55 * len(cost.looks) + 1.3)
    drawn, axes = figures.panels(columns=2, width=5.4, height=height)
    for axis, (metric, factor, xlabel) in zip(axes, measures, strict=True):
        _bars(axis, cost, metric, factor)
        figures.named_rows(axis, [look.label for look in cost.looks.values()], xlabel)
        axis.set_ylim(len(cost.looks) - 0.4, -0.6)
        axis.set_xlim(0, 1.25 * axis.get_xlim()[1])
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0, fontsize=9)
    return drawn


def comparisons(cost: Cost, meta_arms: list[str], limits: tuple[Limit, ...]) -> Iterator[Comparison]:
    """Yield the claims on the cost of meta arms; none if plain PT is not run."""
    if cost.plain is None:
        return
    for arm in meta_arms:
        for limit in limits:
            yield Comparison(
                text=f"{arm} takes at most {limit.words} of {cost.plain}",
                arm=arm,
                control=cost.plain,
                metric=limit.metric,
                criterion=at_most(limit.times),
                measure=partial(_compared, cost, arm, limit.metric),
                evaluation=PRETRAINING,
                paper=limit.paper if arm == LEARNED else BEYOND_THE_PAPER,
            )


def _compared(cost: Cost, arm: str, metric: str) -> Measurement:
    """Return the ratio to plain PT; it decides nothing if the runs were on several machines."""
    return Measurement(ratio(cost, arm, metric), doubt=machines_doubt(cost.machines, arm, cost.plain or ""))


def _bars(axis: Axes, cost: Cost, metric: str, factor: float) -> None:
    for place, (arm, look) in enumerate(cost.looks.items()):
        try:
            values = factor * cost.measured(arm, metric).to_numpy(dtype=float)
        except NotMeasuredError:
            continue
        text = f"{np.median(values):.3g}"
        if cost.plain not in (None, arm):
            with suppress(NotMeasuredError):
                text += f"  ({ratio(cost, arm, metric).mean:.2f}×)"
        axis.barh(place, np.median(values), height=0.55, color=look.colour, alpha=0.85)
        runs: Any = {"color": figures.INK, "markersize": 9, "label": figures.once(axis, "PT runs")}
        axis.plot(values, np.full(len(values), place), "|", **runs)
        figures.note(axis, text, (values.max(), place), 8)
    if cost.plain is not None and LEARNED in cost.looks and cost.plain in cost.papers:
        papers = PAPERS_RATIOS[metric]
        mark: Any = {"color": figures.QUIET, "markerfacecolor": "white", "label": f"the paper's ratio ({papers:.1f}×)"}
        value = factor * _median(cost, cost.plain, metric) * papers
        axis.plot(value, list(cost.looks).index(LEARNED) + 0.38, "D", **mark)


def _median(cost: Cost, arm: str, metric: str) -> float:
    """Return the median of a number over the PT runs of an arm, NaN if it was not measured."""
    try:
        return float(cost.measured(arm, metric).median())
    except NotMeasuredError:
        return math.nan
