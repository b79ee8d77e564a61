"""Experiment `rotation_mean`: is the mean of the FT rotation recovered by PT?"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.mnist.config import RotationMean
from metapt.domains.mnist.quantities import ERROR
from metapt.domains.mnist.results import MnistResults, experiment
from metapt.evaluation import figures
from metapt.evaluation.comparisons import Comparison, at_most
from metapt.evaluation.statistics import estimate
from metapt.evaluation.tables import paper_numbers


def figure(results: MnistResults) -> Figure:
    """Draw the learned mean over meta-iterations, a panel for each arm."""

    def draw(axis: Axes, frame: pd.DataFrame) -> None:
        for _, part in frame[frame["name"] == "mean"].groupby("replicate"):
            label = figures.once(axis, "learned mean, a line per initialisation")
            axis.plot(part["step"], part["value"], color=figures.colour(0), alpha=0.6, linewidth=1, label=label)
        axis.axhline(results.section.target, color=figures.INK, linewidth=1.2, linestyle="--", label="target")
        axis.set(xlabel="meta-iteration")
        axis.margins(x=0)

    return results.trajectories(draw, "mean PT rotation (degrees)")


PAPERS_INITIALISATIONS = 10


def comparisons(results: MnistResults) -> Iterator[Comparison]:
    """Yield the claim for each arm that its error is not larger than the paper's.

    The paper's error is a measurement itself. So ours is compared with the upper end of its 95 % interval: a method
    whose error is exactly the paper's mean could never be shown to be at most that mean.
    """
    numbers = paper_numbers()
    [(mean, error)] = numbers.loc[numbers["metric"] == ERROR, ["paper_mean", "paper_standard_error"]].to_numpy()
    largest = round(estimate(mean, error, PAPERS_INITIALISATIONS).high, 1)
    words = f"mean error {mean:g} ± {error:g} degrees, 95 % interval up to {largest:g}"
    for arm in results.arms:
        paper = results.paper_says(arm, words)
        yield results.claim(f"{arm} recovers the mean of the FT rotation", arm, ERROR, at_most(largest), paper)


EXPERIMENT = experiment(
    "rotation_mean",
    RotationMean,
    1,
    figure,
    comparisons,
    caption="Learning the mean of the PT rotation",
    title="The learned mean of the pre-training rotation",
    figure_title="The mean of the pre-training rotation while it is learned, from each initialisation",
)
