"""Experiment `rotation_mean`: is the mean of the FT rotation recovered by PT?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from matplotlib.figure import Figure

from metapt.domains.mnist.config import RotationMean
from metapt.domains.mnist.quantities import ERROR
from metapt.domains.mnist.results import MnistResults
from metapt.evaluation import figures
from metapt.evaluation.comparisons import Comparison, at_most
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.statistics import Estimate, estimate_mean


def figure(results: MnistResults) -> Figure:
    """Draw the learned mean over meta-iterations, a panel for each arm."""
    series = results.series_by_arm()
    whole, axes = figures.panels(columns=len(series))
    for axis, (arm, frame) in zip(axes, series.items(), strict=True):
        with figures.style():
            for _, part in frame[frame["name"] == "mean"].groupby("replicate"):
                label = figures.once(axis, "learned mean, a line per initialisation")
                axis.plot(part["step"], part["value"], color=figures.colour(0), alpha=0.6, linewidth=1, label=label)
            axis.axhline(results.section.target, color=figures.INK, linewidth=1.2, linestyle="--", label="target")
        axis.set(xlabel="meta-iteration")
        axis.margins(x=0)
        figures.title(axis, arm)
    axes[0].set_ylabel("mean PT rotation (degrees)")
    figures.same_range(axes, "y")
    figures.legend_above(whole, axes)
    return whole


def comparisons(results: MnistResults) -> Iterator[Comparison]:
    """Yield a claim for each arm."""

    def error(arm: str) -> Estimate:
        return estimate_mean(results.values(arm, ERROR))

    for arm in results.arms:
        text = f"{arm} recovers the mean of the FT rotation"
        paper = results.paper_says(arm, "mean error 7.2 ± 1.5 degrees")
        yield Comparison(text, arm, "", ERROR, at_most(7.2), partial(error, arm), paper=paper)


EXPERIMENT = Experiment(
    title="The learned mean of the pre-training rotation",
    figure_title="The mean of the pre-training rotation while it is learned, from each initialisation",
    section=RotationMean,
    order=1,
    needs=lambda jobs, section: Needs(jobs.studies("rotation_mean")),
    results=MnistResults,
    tables=lambda results: results.beside_paper("Learning the mean of the PT rotation"),
    figure=figure,
    comparisons=comparisons,
)
