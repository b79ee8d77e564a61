"""Experiment `rotation_mean_std`: are mean and standard deviation of the FT rotation recovered by PT?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from metapt.domains.mnist.config import RotationMeanStd
from metapt.domains.mnist.quantities import DEVIATION, MEAN, seed_of_start, setting_mean_std
from metapt.domains.mnist.results import MnistResults
from metapt.evaluation import figures
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, Comparison, within
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.statistics import Estimate, estimate_mean

TOLERANCES = {MEAN: ("mean", 4.0), DEVIATION: ("standard deviation", 3.0)}
"""Metric -> its name in a claim, and how many degrees it may lie beside the target."""


def figure(results: MnistResults) -> Figure:
    """Draw mean and standard deviation over meta-iterations, a panel for each arm and a band for each start."""
    series = results.series_by_arm()
    whole, axes = figures.panels(columns=len(series))
    mean, deviation = results.section.target
    target = (mean - deviation, mean, mean + deviation)
    for axis, (arm, frame) in zip(axes, series.items(), strict=True):
        starts = frame["replicate"] // seed_of_start(results.section, 1, 0)
        bands = {label: _spread(frame[starts == start]) for start, label in enumerate(_starts(results.section))}
        figures.trajectories(axis, bands, "meta-iteration", target=target)
        figures.title(axis, arm)
    axes[0].set_ylabel("PT rotation (degrees),\nmean ± standard deviation")
    figures.same_range(axes, "y")
    figures.legend_above(whole, axes)
    return whole


def comparisons(results: MnistResults) -> Iterator[Comparison]:
    """Yield a claim for each arm, start, and learned number."""

    def learned(arm: str, metric: str, setting: str) -> Estimate:
        return estimate_mean(results.values(arm, metric, setting))

    published = results.papers
    for arm, (label, setting) in itertools.product(results.arms, _starts(results.section).items()):
        for (metric, (what, tolerance)), target in zip(TOLERANCES.items(), results.section.target, strict=True):
            found = published[(published["setting"] == setting) & (published["metric"] == metric)]["paper_mean"]
            text = f"{arm} recovers the {what} of the FT rotation, {label}"
            near, measure = within(target, tolerance), partial(learned, arm, metric, setting)
            paper = results.paper_says(arm, f"{found.iloc[0]:g} degrees") if len(found) else BEYOND_THE_PAPER
            yield Comparison(text, arm, "", metric, near, measure, paper=paper)


def _starts(section: RotationMeanStd) -> dict[str, str]:
    """Return label of a start -> its setting in the metrics table, in the order of the starts."""
    return {
        f"from {mean:g} ± {deviation:g}": setting_mean_std(section, start)
        for start, (mean, deviation) in enumerate(section.starts)
    }


def _spread(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over seeds of the learned mean, and a band of one learned standard deviation, over the steps."""
    mean = frame[frame["name"] == "mean"].groupby("step")["value"].mean()
    deviation = frame[frame["name"] == "deviation"].set_index("step")["value"].abs().groupby("step").mean()
    return pd.DataFrame({"lower": mean - deviation, "centre": mean, "upper": mean + deviation}).reset_index()


EXPERIMENT = Experiment(
    title="The learned mean and standard deviation of the pre-training rotation",
    figure_title="Mean and standard deviation of the pre-training rotation while they are learned, from each start, "
    "with bands over seeds",
    section=RotationMeanStd,
    order=2,
    needs=lambda jobs, section: Needs(jobs.studies("rotation_mean_std")),
    results=MnistResults,
    tables=lambda results: results.beside_paper("Learning mean and deviation of the PT rotation"),
    figure=figure,
    comparisons=comparisons,
)
