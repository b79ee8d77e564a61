"""What the runs of each experiment become: tables beside the paper's numbers, a figure, and verdicts on claims."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from metapt.domains.mnist import quantities
from metapt.domains.mnist.config import RotationMeanStd
from metapt.evaluation import figures, metrics
from metapt.evaluation.claims import Claim, Verdict, at_least, at_most, judge, within
from metapt.evaluation.paper import beside_paper, paper_numbers
from metapt.evaluation.statistics import Difference, estimate, estimate_mean, paired_difference
from metapt.evaluation.statistics import summarise as over_replicates
from metapt.evaluation.tables import ours_and_papers, write_tables
from metapt.files import atomic_path

Series = Mapping[str, pd.DataFrame]
KINDS = ("clean", "noisy")


@dataclass(frozen=True)
class Experiment:
    """What an experiment's results are made into.

    Attributes:
        caption: of its table.
        figure: all metrics, the arms' series, the experiment's settings -> its figure.
        claims: the settings, the arms -> what is claimed.
    """

    caption: str
    figure: Callable[[pd.DataFrame, Series, dict[str, Any]], Figure]
    claims: Callable[[dict[str, Any], list[str]], list[Claim]]


def summarise(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path]) -> None:
    """Makes an experiment's tables, figure and claims; see `metapt.registry.Domain`."""
    arms, settings = config["arms"], config["settings"]
    table = metrics.read([inputs[f"{arm}/metrics"] for arm in arms])
    series = {arm: metrics.read_series(inputs[f"{arm}/series"]) for arm in arms}
    experiment = EXPERIMENTS[config["experiment"]]
    metrics.write(table, outputs["metrics"])
    joined = beside_paper(over_replicates(table[table["evaluation"] != "diagnosis"]))
    write_tables(ours_and_papers(joined), outputs["table_csv"].with_suffix(""), experiment.caption, numbers=joined)
    figures.save(experiment.figure(table, series, settings), outputs["figure_svg"].with_suffix(""))
    with atomic_path(outputs["claims"]) as path:
        judge(experiment.claims(settings, arms), table).to_csv(path, index=False)


def _cell(table: pd.DataFrame, experiment: str, arm: str, metric: str, setting: str | None = None) -> pd.Series[float]:
    return metrics.select(table, experiment=experiment, arm=arm, metric=metric, setting=setting)


def _legend_above(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, above them, instead of one in each."""
    handles, labels = axes[0].get_legend_handles_labels()
    for axis in axes:
        legend = axis.get_legend()
        if legend is not None:
            legend.remove()
    with figures.style():
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)


def _same_range(axes: Sequence[Axes], which: Literal["x", "y"]) -> None:
    """Lets panels compare: all get the range that holds all of their data."""
    ranges = [axis.get_xlim() if which == "x" else axis.get_ylim() for axis in axes]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    for axis in axes:
        axis.set(**{f"{which}lim": (low, high)})


def _plain_log_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis as plain numbers where these are short, and within decades where the axis spans few."""
    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 30 * low else (1.0,), numticks=8))
    if low >= 1e-4 and high < 1e5:
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())


def _title(axis: Axes, text: str) -> None:
    with figures.style():
        axis.set_title(text)


def _rotation_mean_figure(table: pd.DataFrame, series: Series, settings: dict[str, Any]) -> Figure:
    figure, axes = figures.panels(columns=len(series))
    for axis, (arm, frame) in zip(axes, series.items(), strict=True):
        with figures.style():
            for number, (_, part) in enumerate(frame[frame["name"] == "mean"].groupby("replicate")):
                label = "learned mean, a line per initialisation" if number == 0 else None
                axis.plot(part["step"], part["value"], color=figures.colour(0), alpha=0.6, linewidth=1, label=label)
            axis.axhline(settings["target"], color=figures.INK, linewidth=1.2, linestyle="--", label="target")
        axis.set(xlabel="meta-iteration")
        axis.margins(x=0)
        _title(axis, arm)
    axes[0].set_ylabel("mean PT rotation (degrees)")
    _same_range(axes, "y")
    _legend_above(figure, axes)
    return figure


def _rotation_mean_claims(settings: dict[str, Any], arms: list[str]) -> list[Claim]:
    experiment = "mnist_rotation_mean"

    def check(arm: str, table: pd.DataFrame) -> Verdict:
        return at_most(estimate_mean(_cell(table, experiment, arm, quantities.ERROR)), 7.2)

    text, paper = "{} recovers the mean of the FT rotation", "mean error 7.2 ± 1.5 degrees"
    return [Claim(experiment, text.format(arm), partial(check, arm), paper) for arm in arms]


def _starts(settings: dict[str, Any]) -> dict[str, str]:
    """Label of a start -> its setting in the metrics table, in the order of the starts."""
    study = RotationMeanStd.model_validate(settings)
    return {
        f"from {mean:g} ± {deviation:g}": quantities.setting_mean_std(study, start)
        for start, (mean, deviation) in enumerate(study.starts)
    }


def _rotation_mean_std_figure(table: pd.DataFrame, series: Series, settings: dict[str, Any]) -> Figure:
    figure, axes = figures.panels(columns=len(series))
    mean, deviation = settings["target"]
    target = (mean - deviation, mean, mean + deviation)
    for axis, (arm, frame) in zip(axes, series.items(), strict=True):
        starts = frame["replicate"] // settings["replicates"]
        bands = {label: _spread(frame[starts == start]) for start, label in enumerate(_starts(settings))}
        figures.trajectories(bands, xlabel="meta-iteration", ylabel="", target=target, axis=axis)
        _title(axis, arm)
    axes[0].set_ylabel("PT rotation (degrees),\nmean ± deviation")
    _same_range(axes, "y")
    _legend_above(figure, axes)
    return figure


def _spread(frame: pd.DataFrame) -> pd.DataFrame:
    """The learned mean over the steps, and the learned deviation below and above it; both means over seeds."""
    mean = frame[frame["name"] == "mean"].groupby("step")["value"].mean()
    deviation = frame[frame["name"] == "deviation"].assign(value=lambda part: part["value"].abs()).groupby("step")["value"].mean()
    return pd.DataFrame({"lower": mean - deviation, "centre": mean, "upper": mean + deviation}).reset_index()


def _rotation_mean_std_claims(settings: dict[str, Any], arms: list[str]) -> list[Claim]:
    experiment = "mnist_rotation_mean_std"

    def check(arm: str, setting: str, metric: str, target: float, tolerance: float, table: pd.DataFrame) -> Verdict:
        return within(estimate_mean(_cell(table, experiment, arm, metric, setting)), target, tolerance)

    published = paper_numbers()
    learned = (("mean", quantities.MEAN, 4.0), ("standard deviation", quantities.DEVIATION, 3.0))
    claims = []
    for arm, (label, setting) in itertools.product(arms, _starts(settings).items()):
        for (what, metric, tolerance), target in zip(learned, settings["target"], strict=True):
            found = published[(published["setting"] == setting) & (published["metric"] == metric)]["paper_mean"]
            text = f"{arm} recovers the {what} of the FT rotation, {label}"
            paper = f"{found.iloc[0]:g} degrees" if len(found) else ""
            claims.append(Claim(experiment, text, partial(check, arm, setting, metric, target, tolerance), paper))
    return claims


def _example_weighting_figure(table: pd.DataFrame, series: Series, settings: dict[str, Any]) -> Figure:
    figure, axes = figures.panels(columns=len(series), rows=2)
    over_time, at_end = axes[: len(series)], axes[len(series) :]
    for above, below, (arm, frame) in zip(over_time, at_end, series.items(), strict=True):
        bands = {f"{kind} label": figures.over_replicates(frame, quantities.MEAN_WEIGHT.format(kind)) for kind in KINDS}
        figures.trajectories(bands, xlabel="meta-iteration", ylabel="", axis=above)
        above.set_yscale("log")
        _title(above, arm)
        weights = {kind: frame.loc[frame["name"] == quantities.WEIGHT.format(kind), "value"] for kind in KINDS}
        figures.distributions(weights, xlabel="weight of a PT example at the end", ylabel="", logarithmic=True, axis=below)
    over_time[0].set_ylabel("mean weight\n(median and 10-90 % of seeds)")
    at_end[0].set_ylabel("share of examples (%)")
    _same_range(over_time, "y")
    _same_range(at_end, "x")
    for axis in over_time:
        _plain_log_ticks(axis.yaxis)
    for axis in at_end:
        _plain_log_ticks(axis.xaxis)
    _legend_above(figure, axes)
    return figure


def _example_weighting_claims(settings: dict[str, Any], arms: list[str]) -> list[Claim]:
    experiment = "mnist_example_weighting"

    def check(arm: str, table: pd.DataFrame) -> Verdict:
        verdict = at_least(estimate_mean(np.log10(_cell(table, experiment, arm, quantities.RATIO))), 2.0)
        return Verdict(verdict.word, f"log10 of the ratio: {verdict.measured}", "ratio at least 100")

    text = "{} weights clean examples over 100 times more than noisy ones"
    return [Claim(experiment, text.format(arm), partial(check, arm), "ratio over 100") for arm in arms]


def _bptt_figure(table: pd.DataFrame, series: Series, settings: dict[str, Any]) -> Figure:
    figure, (left, middle, right) = figures.panels(columns=3)
    summary = over_replicates(table[table["metric"] == quantities.ACCURACY]).rename(columns={"arm": "label"})
    paper = paper_numbers()
    paper = paper[(paper["experiment"] == "mnist_bptt") & paper["arm"].isin(summary["label"])].rename(
        columns={"arm": "label", "paper_mean": "mean", "paper_standard_error": "standard_error"}
    )
    figures.bars_with_error(summary, paper, xlabel=quantities.ACCURACY, axis=left)
    for axis, metric in ((middle, quantities.WALL_TIME), (right, quantities.PEAK_MEMORY)):
        _costs(axis, table[table["metric"] == metric].set_index("arm")["value"], metric, least=1.0 if axis is right else 0.0)
    handles, labels = left.get_legend_handles_labels()
    if left.get_legend() is not None:
        left.get_legend().remove()  # type: ignore[union-attr]
        with figures.style():
            left.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)
    return figure


def _costs(axis: Axes, values: pd.Series[float], xlabel: str, least: float) -> None:
    """A dot and its number per arm on a logarithmic axis; what is below `least` stands at it and says so."""
    with figures.style():
        for place, value in enumerate(values):
            shown, text = (
                max(value, least),
                f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= least else f"< {least:g}",
            )
            axis.plot(shown, place, "o", color=figures.colour(0), clip_on=False)
            axis.annotate(text, (shown, place), xytext=(7, 0), textcoords="offset points", va="center", fontsize=9)
        axis.set(xscale="log", xlabel=xlabel, yticks=range(len(values)), yticklabels=[])
        axis.set_ylim(len(values) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0)
        axis.margins(x=0.2)
        axis.grid(axis="y", visible=True)
    _plain_log_ticks(axis.xaxis)


def _bptt_claims(settings: dict[str, Any], arms: list[str]) -> list[Claim]:
    """Each claim for separate heads (the arms' plain names) and, where they are there, for a shared one (-shared)."""
    experiment = "mnist_bptt"

    def difference(high: str, low: str, table: pd.DataFrame) -> Difference:
        return paired_difference(*(_cell(table, experiment, arm, quantities.ACCURACY) for arm in (high, low)))

    def near(other: str, meta: str, table: pd.DataFrame) -> Verdict:
        return at_most(difference(other, meta, table), 1.0)

    def over(other: str, meta: str, table: pd.DataFrame) -> Verdict:
        return at_least(difference(meta, other, table), 4.0)

    def faster(other: str, meta: str, table: pd.DataFrame) -> Verdict:
        slow, fast = (float(_cell(table, experiment, arm, quantities.WALL_TIME).iloc[0]) for arm in (other, meta))
        return at_least(estimate(slow / fast, float("nan"), 1), 20.0)

    compared: list[tuple[str, str, Callable[[str, str, pd.DataFrame], Verdict], str]] = [
        ("comes within 1 point of", "bptt", near, "87.6 against 88.0 %"),
        ("comes within 1 point of", "optimal_augmentation", near, "87.6 against 88.3 %"),
        ("is at least 4 points better than", "initial_augmentation", over, "87.6 against 80.1 %"),
        ("is at least 20 times faster than", "bptt", faster, "30 minutes against 20 hours"),
    ]
    return [
        Claim(experiment, f"meta{suffix} {words} {other}{suffix}", partial(check, other + suffix, "meta" + suffix), paper)
        for suffix in ("", "-shared")
        if f"meta{suffix}" in arms
        for words, other, check, paper in compared
    ]


def _fidelity_table(table: pd.DataFrame, settings: dict[str, Any]) -> pd.DataFrame:
    """The summary of the metrics with the settings as columns: steps, k, terms."""
    cases = itertools.product(settings["pretrain_steps"], settings["unroll_steps"], settings["neumann_terms"])
    words = pd.DataFrame(
        [(quantities.setting_fidelity(*case), *case) for case in cases], columns=["setting", "steps", "k", "terms"]
    )
    return over_replicates(table).merge(words, on="setting")


def _fidelity_figure(table: pd.DataFrame, series: Series, settings: dict[str, Any]) -> Figure:
    numbers = _fidelity_table(table, settings)
    figure, axes = figures.panels(columns=len(series), rows=2)
    k = 1 if 1 in settings["unroll_steps"] else settings["unroll_steps"][0]
    rows = {
        quantities.COSINE: ("cosine to the exact one", "linear"),
        quantities.NORM_RATIO: ("norm over that of the exact one", "log"),
    }
    for row, (metric, (ylabel, scale)) in enumerate(rows.items()):
        panels = axes[row * len(series) : (row + 1) * len(series)]
        for axis, arm in zip(panels, series, strict=True):
            shown = numbers[(numbers["metric"] == metric) & (numbers["arm"] == arm) & (numbers["k"] == k)]
            shown = shown.assign(group=[f"{steps} PT step{'s' if steps > 1 else ''}" for steps in shown["steps"]])
            figures.lines_with_error(
                shown, x="terms", group="group", xlabel="Neumann terms", ylabel="", xscale="symlog", yscale=scale, axis=axis
            )
            axis.axhline(1.0, color=figures.QUIET, linewidth=1, linestyle="--", zorder=1.5)
            _title(axis, f"{arm}, K = {k}")
        panels[0].set_ylabel(ylabel)
        _same_range(panels, "y")
        if scale == "log":
            for axis in panels:
                _plain_log_ticks(axis.yaxis)
    _legend_above(figure, axes)
    return figure


def _fidelity_claims(settings: dict[str, Any], arms: list[str]) -> list[Claim]:
    experiment = "mnist_fidelity"
    most, fewest = max(settings["neumann_terms"]), min(settings["neumann_terms"])
    steps, k = max(settings["pretrain_steps"]), max(settings["unroll_steps"])

    def check(arm: str, table: pd.DataFrame) -> Verdict:
        many, few = (
            _cell(table, experiment, arm, quantities.COSINE, quantities.setting_fidelity(steps, k, terms))
            for terms in (most, fewest)
        )
        return at_least(paired_difference(many, few), 0.0)

    text = f"{{}}: after {steps} PT steps, K = {k}, {most} Neumann terms point nearer to the exact hypergradient than {fewest}"
    return [Claim(experiment, text.format(arm), partial(check, arm), "beyond the paper") for arm in arms if most > fewest]


EXPERIMENTS = {
    "rotation_mean": Experiment("Learning the mean of the PT rotation", _rotation_mean_figure, _rotation_mean_claims),
    "rotation_mean_std": Experiment(
        "Learning mean and deviation of the PT rotation", _rotation_mean_std_figure, _rotation_mean_std_claims
    ),
    "example_weighting": Experiment("Learning to weight PT examples", _example_weighting_figure, _example_weighting_claims),
    "bptt": Experiment("Ours against backpropagation through PT and FT", _bptt_figure, _bptt_claims),
    "fidelity": Experiment("Our hypergradient beside the exact one", _fidelity_figure, _fidelity_claims),
}
