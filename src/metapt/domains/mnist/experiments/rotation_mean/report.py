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


def figure(results: MnistResults) -> Figure:
    """Draw the learned mean over meta-iterations, a panel for each arm."""

    def draw(axis: Axes, frame: pd.DataFrame) -> None:
        with figures.style():
            for _, part in frame[frame["name"] == "mean"].groupby("replicate"):
                label = figures.once(axis, "learned mean, a line per initialisation")
                axis.plot(part["step"], part["value"], color=figures.colour(0), alpha=0.6, linewidth=1, label=label)
            axis.axhline(results.section.target, color=figures.INK, linewidth=1.2, linestyle="--", label="target")
        axis.set(xlabel="meta-iteration")
        axis.margins(x=0)

    return results.trajectories(draw, "mean PT rotation (degrees)")


def comparisons(results: MnistResults) -> Iterator[Comparison]:
    """Yield a claim for each arm."""
    for arm in results.arms:
        text = f"{arm} recovers the mean of the FT rotation"
        paper = results.paper_says(arm, "mean error 7.2 ± 1.5 degrees")
        yield results.claim(text, arm, ERROR, at_most(7.2), paper)


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
