"""Experiment `rotation_mean_std`: are mean and standard deviation of the FT rotation recovered by PT?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.mnist.config import RotationMeanStd
from metapt.domains.mnist.quantities import DEVIATION, MEAN
from metapt.domains.mnist.results import MnistResults, experiment
from metapt.evaluation import figures
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, Comparison, within

TOLERANCES = {MEAN: ("mean", 4.0), DEVIATION: ("standard deviation", 3.0)}
"""Metric -> its name in a claim, and how many degrees it may lie beside the target."""


def figure(results: MnistResults) -> Figure:
    """Draw mean and standard deviation over meta-iterations, a panel for each arm and a band for each start."""
    mean, deviation = results.section.target

    def draw(axis: Axes, frame: pd.DataFrame) -> None:
        starts = frame["replicate"] // results.section.seed_of(1, 0)
        bands = {label: _spread(frame[starts == start]) for start, label in enumerate(_starts(results.section))}
        figures.trajectories(axis, bands, "meta-iteration", target=(mean - deviation, mean, mean + deviation))

    return results.trajectories(draw, "PT rotation (degrees),\nmean ± standard deviation")


def comparisons(results: MnistResults) -> Iterator[Comparison]:
    """Yield a claim for each arm, start, and learned number."""
    published = results.papers
    for arm, (label, setting) in itertools.product(results.arms, _starts(results.section).items()):
        for (metric, (what, tolerance)), target in zip(TOLERANCES.items(), results.section.target, strict=True):
            found = published[(published["setting"] == setting) & (published["metric"] == metric)]["paper_mean"]
            text = f"{arm} recovers the {what} of the FT rotation, {label}"
            paper = results.paper_says(arm, f"{found.iloc[0]:g} degrees") if len(found) else BEYOND_THE_PAPER
            yield results.claim(text, arm, metric, within(target, tolerance), paper, setting)


def _starts(section: RotationMeanStd) -> dict[str, str]:
    """Return label of a start -> its setting in the metrics table, in the order of the starts."""
    return {
        f"from {mean:g} ± {deviation:g}": section.setting(start)
        for start, (mean, deviation) in enumerate(section.starts)
    }


def _spread(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over seeds of the learned mean, and a band of one learned standard deviation, over the steps."""
    mean = frame[frame["name"] == "mean"].groupby("step")["value"].mean()
    deviation = frame[frame["name"] == "deviation"].set_index("step")["value"].abs().groupby("step").mean()
    return pd.DataFrame({"lower": mean - deviation, "centre": mean, "upper": mean + deviation}).reset_index()


EXPERIMENT = experiment(
    "rotation_mean_std",
    RotationMeanStd,
    2,
    figure,
    comparisons,
    caption="Learning mean and deviation of the PT rotation",
    title="The learned mean and standard deviation of the pre-training rotation",
    figure_title="Mean and standard deviation of the pre-training rotation while they are learned, from each start, "
    "with bands over seeds",
)
