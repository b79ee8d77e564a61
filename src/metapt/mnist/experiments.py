"""What the runs of each experiment become: tables beside the paper's numbers, a figure, and verdicts on claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from metapt.evaluation import figures, metrics
from metapt.evaluation.claims import Claim, Verdict, at_least, at_most, judge, within
from metapt.evaluation.paper import beside_paper, paper_numbers
from metapt.evaluation.statistics import estimate, estimate_mean, paired_difference
from metapt.evaluation.statistics import summarise as over_replicates
from metapt.evaluation.tables import ours_and_papers, write_tables
from metapt.files import atomic_path

Series = Mapping[str, pd.DataFrame]
ACCURACY = "FT test accuracy (%)"


@dataclass(frozen=True)
class Experiment:
    """An experiment's caption, its figure (of all metrics, the arms' series and the settings), and its claims (of settings and arms)."""

    caption: str
    figure: Callable[[pd.DataFrame, Series, dict[str, Any]], Figure]
    claims: Callable[[dict[str, Any], list[str]], list[Claim]]


def summarise(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path]) -> None:
    """Makes an experiment's tables, figure and claims; see `metapt.domains.Domain`."""
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


def _rotation_mean_figure(table: pd.DataFrame, series: Series, settings: dict[str, Any]) -> Figure:
    figure, axes = figures.panels(columns=len(series))
    for axis, (arm, frame) in zip(axes, series.items(), strict=True):
        runs = {f"{replicate}": part for replicate, part in frame[frame["name"] == "mean"].groupby("replicate")}
        with figures.style():
            for part in runs.values():
                axis.plot(part["step"], part["value"], color=figures.colour(0), alpha=0.6, linewidth=1)
            axis.axhline(settings["target"], color=figures.INK, linewidth=1.2, linestyle="--")
            axis.set(xlabel="meta-update", ylabel="mean PT rotation (degrees)", title=arm)
            axis.margins(x=0)
    return figure


def _rotation_mean_claims(settings: dict[str, Any], arms: list[str]) -> list[Claim]:
    def check(arm: str, table: pd.DataFrame) -> Verdict:
        return at_most(estimate_mean(_cell(table, "mnist_rotation_mean", arm, "absolute error of learned mean (degrees)")), 7.2)

    return [
        Claim(
            "mnist_rotation_mean", f"{arm} recovers the mean rotation of FT", partial(check, arm), "mean error 7.2 ± 1.5 degrees"
        )
        for arm in arms
    ]


def _starts(settings: dict[str, Any]) -> dict[str, tuple[int, str]]:
    """Label of a start -> its index and its setting in the metrics table."""
    target_mean, target_deviation = settings["target"]
    return {
        f"from {mean:g} ± {deviation:g}": (
            index,
            f"init mean {mean:g} std {deviation:g}, target {target_mean:g}/{target_deviation:g}",
        )
        for index, (mean, deviation) in enumerate(settings["starts"])
    }


def _rotation_mean_std_figure(table: pd.DataFrame, series: Series, settings: dict[str, Any]) -> Figure:
    figure, axes = figures.panels(columns=len(series))
    mean, deviation = settings["target"]
    for axis, (arm, frame) in zip(axes, series.items(), strict=True):
        start = frame["replicate"] // settings["replicates"]
        bands = {label: _spread(frame[start == index]) for label, (index, _) in _starts(settings).items()}
        figures.trajectories(
            bands,
            xlabel="meta-update",
            ylabel="PT rotation: mean ± deviation (degrees)",
            target=(mean - deviation, mean, mean + deviation),
            axis=axis,
        )
        axis.set_title(arm)
    return figure


def _spread(frame: pd.DataFrame) -> pd.DataFrame:
    """The learned distribution over the steps: mean over seeds of the learned mean, and plus and minus that of the learned deviation."""
    mean = frame[frame["name"] == "mean"].groupby("step")["value"].mean()
    deviation = frame[frame["name"] == "deviation"].assign(value=lambda part: part["value"].abs()).groupby("step")["value"].mean()
    return pd.DataFrame({"lower": mean - deviation, "centre": mean, "upper": mean + deviation}).reset_index()


def _rotation_mean_std_claims(settings: dict[str, Any], arms: list[str]) -> list[Claim]:
    def check(arm: str, setting: str, metric: str, target: float, tolerance: float, table: pd.DataFrame) -> Verdict:
        return within(estimate_mean(_cell(table, "mnist_rotation_mean_std", arm, metric, setting)), target, tolerance)

    published = paper_numbers()
    claims = []
    for arm in arms:
        for label, (_, setting) in _starts(settings).items():
            for what, target, tolerance in zip(("mean", "standard deviation"), settings["target"], (4.0, 3.0), strict=True):
                metric = f"learned {what} (degrees)"
                found = published[(published["setting"] == setting) & (published["metric"] == metric)]["paper_mean"]
                text = f"{arm} recovers the {what} of the FT rotation, {label}"
                paper = f"{found.iloc[0]:g} degrees" if len(found) else ""
                claims.append(
                    Claim("mnist_rotation_mean_std", text, partial(check, arm, setting, metric, target, tolerance), paper)
                )
    return claims


def _example_weighting_figure(table: pd.DataFrame, series: Series, settings: dict[str, Any]) -> Figure:
    figure, axes = figures.panels(columns=len(series), rows=2)
    for column, (arm, frame) in enumerate(series.items()):
        bands = {name: figures.over_replicates(frame, f"mean weight, {name}") for name in ("clean", "noisy")}
        figures.trajectories(bands, xlabel="meta-update", ylabel="mean weight (median, 10-90 % of seeds)", axis=axes[column])
        axes[column].set(yscale="log", title=arm)
        weights = {name: frame.loc[frame["name"] == f"weight, {name}", "value"] for name in ("clean", "noisy")}
        figures.distributions(
            weights, xlabel="weight of a PT example at the end", logarithmic=True, axis=axes[len(series) + column]
        )
    return figure


def _example_weighting_claims(settings: dict[str, Any], arms: list[str]) -> list[Claim]:
    def check(arm: str, table: pd.DataFrame) -> Verdict:
        ratios = _cell(table, "mnist_example_weighting", arm, "ratio of mean weight clean/noisy")
        verdict = at_least(estimate_mean(np.log10(ratios)), 2.0)
        return Verdict(verdict.word, f"log10 of the ratio: {verdict.measured}", "ratio at least 100")

    text = "{} weights clean examples over 100 times more than noisy ones"
    return [Claim("mnist_example_weighting", text.format(arm), partial(check, arm), "ratio over 100") for arm in arms]


def _bptt_figure(table: pd.DataFrame, series: Series, settings: dict[str, Any]) -> Figure:
    figure, (left, middle, right) = figures.panels(columns=3)
    summary = over_replicates(table[table["metric"] == ACCURACY]).rename(columns={"arm": "label"})
    paper = paper_numbers()
    paper = paper[paper["experiment"] == "mnist_bptt"].rename(
        columns={"arm": "label", "paper_mean": "mean", "paper_standard_error": "standard_error"}
    )
    figures.bars_with_error(summary, paper[paper["label"].isin(summary["label"])], xlabel=ACCURACY, axis=left)
    for axis, metric in ((middle, "wall time (s)"), (right, "peak memory (MB)")):
        values = table[table["metric"] == metric]
        with figures.style():
            axis.barh(values["arm"], values["value"], color=figures.colour(0))
            axis.invert_yaxis()
            axis.set(xscale="log", xlabel=metric)
            for place, value in enumerate(values["value"]):
                axis.annotate(f" {value:.3g}", (value, place), va="center")
            axis.margins(x=0.2)
    return figure


def _bptt_claims(settings: dict[str, Any], arms: list[str]) -> list[Claim]:
    experiment = "mnist_bptt"

    def accuracy(table: pd.DataFrame, arm: str) -> pd.Series[float]:
        return _cell(table, experiment, arm, ACCURACY)

    def near(other: str, table: pd.DataFrame) -> Verdict:
        return at_most(paired_difference(accuracy(table, other), accuracy(table, "meta")), 1.0)

    def over(other: str, table: pd.DataFrame) -> Verdict:
        return at_least(paired_difference(accuracy(table, "meta"), accuracy(table, other)), 4.0)

    def faster(table: pd.DataFrame) -> Verdict:
        times = [float(_cell(table, experiment, arm, "wall time (s)").iloc[0]) for arm in ("bptt", "meta")]
        return at_least(estimate(times[0] / times[1], float("nan"), 1), 20.0)

    return [
        Claim(experiment, "meta comes within 1 point of BPTT", partial(near, "bptt"), "87.6 against 88.0 %"),
        Claim(
            experiment,
            "meta comes within 1 point of the optimal augmentation",
            partial(near, "optimal_augmentation"),
            "87.6 against 88.3 %",
        ),
        Claim(
            experiment,
            "meta is at least 4 points better than the initial augmentation",
            partial(over, "initial_augmentation"),
            "87.6 against 80.1 %",
        ),
        Claim(experiment, "meta is at least 20 times faster than BPTT", faster, "30 minutes against 20 hours"),
    ]


def _fidelity_table(table: pd.DataFrame) -> pd.DataFrame:
    """The summary with the settings as columns: steps, k, terms."""
    summary = over_replicates(table[table["evaluation"] != "diagnosis"])
    parts = summary["setting"].str.extract(r"(?P<steps>\d+) PT steps, K=(?P<k>\d+), (?P<terms>\d+) Neumann terms").astype(int)
    return pd.concat([summary, parts], axis=1)


def _fidelity_figure(table: pd.DataFrame, series: Series, settings: dict[str, Any]) -> Figure:
    numbers = _fidelity_table(table)
    figure, axes = figures.panels(columns=len(series), rows=2)
    k = 1 if 1 in settings["unroll_steps"] else settings["unroll_steps"][0]
    names = {"cosine to the exact hypergradient": "linear", "norm over that of the exact hypergradient": "log"}
    for row, (metric, scale) in enumerate(names.items()):
        for column, arm in enumerate(series):
            shown = numbers[(numbers["metric"] == metric) & (numbers["arm"] == arm) & (numbers["k"] == k)]
            shown = shown.assign(group=shown["steps"].map("{:d} PT steps".format))
            axis = axes[row * len(series) + column]
            figures.lines_with_error(
                shown, x="terms", group="group", xlabel="Neumann terms", ylabel=metric, xscale="symlog", yscale=scale, axis=axis
            )
            axis.set_title(f"FT of {'the head' if arm == 'head' else f'the {arm}'}, K = {k}")
    return figure


def _fidelity_claims(settings: dict[str, Any], arms: list[str]) -> list[Claim]:
    most_terms, fewest_terms = max(settings["neumann_terms"]), min(settings["neumann_terms"])

    def check(arm: str, table: pd.DataFrame) -> Verdict:
        def cosines(terms: int) -> pd.Series[float]:
            steps, k = max(settings["pretrain_steps"]), max(settings["unroll_steps"])
            return _cell(
                table,
                "mnist_fidelity",
                arm,
                "cosine to the exact hypergradient",
                f"{steps} PT steps, K={k}, {terms} Neumann terms",
            )

        return at_least(paired_difference(cosines(most_terms), cosines(fewest_terms)), 0.0)

    text = f"{{}}: after the longest PT, {most_terms} Neumann terms point nearer to the exact hypergradient than {fewest_terms}"
    return [Claim("mnist_fidelity", text.format(arm), partial(check, arm), "beyond the paper") for arm in arms]


EXPERIMENTS = {
    "rotation_mean": Experiment("Learning the mean of the PT rotation", _rotation_mean_figure, _rotation_mean_claims),
    "rotation_mean_std": Experiment(
        "Learning mean and deviation of the PT rotation", _rotation_mean_std_figure, _rotation_mean_std_claims
    ),
    "example_weighting": Experiment("Learning to weight PT examples", _example_weighting_figure, _example_weighting_claims),
    "bptt": Experiment("Ours against backpropagation through PT and FT", _bptt_figure, _bptt_claims),
    "fidelity": Experiment("Our hypergradient beside the exact one", _fidelity_figure, _fidelity_claims),
}
