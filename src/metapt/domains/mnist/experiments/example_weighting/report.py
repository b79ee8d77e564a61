"""Experiment `example_weighting`: does the learned CNN weight clean examples more than noisy ones?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.mnist.config import ExampleWeighting
from metapt.domains.mnist.quantities import KINDS, MEAN_WEIGHT, RATIO, WEIGHT
from metapt.domains.mnist.results import MnistResults, experiment
from metapt.evaluation import figures
from metapt.evaluation.comparisons import Comparison, Criterion, Measurement
from metapt.evaluation.statistics import estimate_mean

A_HUNDRED = Criterion(math.log10(100), math.inf, "ratio at least 100")  # of the ratio's logarithm to base 10


def figure(results: MnistResults) -> Figure:
    """Draw the mean weights over meta-iterations and the distribution of the final weights, a column for each arm."""
    series = results.series_by_arm()
    whole, axes = figures.panels(columns=len(series), rows=2)
    over_time, at_end = axes[: len(series)], axes[len(series) :]
    for above, below, (arm, frame) in zip(over_time, at_end, series.items(), strict=True):
        bands = {f"{kind} label": _over_replicates(frame, MEAN_WEIGHT.format(kind)) for kind in KINDS}
        figures.trajectories(above, bands, "meta-iteration")
        above.set_yscale("log")
        above.set_title(arm)
        weights = {f"{kind} label": frame.loc[frame["name"] == WEIGHT.format(kind), "value"] for kind in KINDS}
        _distributions(below, weights)
    over_time[0].set_ylabel("mean weight\n(median and 10-90 % of seeds)")
    at_end[0].set_ylabel("share of examples (%)")
    figures.same_range(over_time, "y")
    figures.same_range(at_end, "x")
    for axis in over_time:
        figures.plain_log_ticks(axis.yaxis)
    for axis in at_end:
        figures.plain_log_ticks(axis.xaxis)
    figures.legend_above(whole, axes)
    return whole


def _over_replicates(series: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return quantiles of the series `name` over the replicates: step, lower (10%), centre (50%) and upper (90%).

    They are NaN at steps where a replicate has diverged (NaN), since the other replicates alone would look too good.
    """
    values = series[series["name"] == name].groupby("step")["value"]
    lower, centre, upper = (values.quantile(q).where(values.count() == values.size()) for q in (0.1, 0.5, 0.9))
    return pd.DataFrame({"lower": lower, "centre": centre, "upper": upper}).reset_index()


def _distributions(axis: Axes, weights: Mapping[str, pd.Series[float]]) -> None:
    """Draw histograms of weights by label, in per cent of each, over common bins with equal ratios; zeros in the first.

    The weights of all labels are in several decades.
    """
    samples = {label: values.to_numpy(dtype=float) for label, values in weights.items()}
    everything = np.concatenate(list(samples.values()))
    edges = 10.0 ** np.histogram_bin_edges(np.log10(everything[everything > 0]), bins=40)
    for place, (label, values) in enumerate(samples.items()):
        figures.histogram(axis, np.clip(values, edges[0], edges[-1]), edges, label, figures.colour(place))
    axis.set_xscale("log")
    axis.set_xlabel("weight of a PT example at the end")


def comparisons(results: MnistResults) -> Iterator[Comparison]:
    """Yield a claim for each arm."""

    def ratio(arm: str) -> Measurement:
        return Measurement(estimate_mean(np.log10(results.values(arm, RATIO))), words="log10 of the ratio: {}")

    for arm in results.arms:
        text = f"{arm} weights clean examples over 100 times more than noisy ones"
        paper = results.paper_says(arm, "ratio over 100")
        yield Comparison(text, arm, "", RATIO, A_HUNDRED, partial(ratio, arm), paper=paper)


EXPERIMENT = experiment(
    "example_weighting",
    ExampleWeighting,
    3,
    figure,
    comparisons,
    caption="Learning to weight PT examples",
    title="The learned weights of clean and noisy pre-training examples",
    figure_title="The distribution of the learned weights of clean and of noisy pre-training examples",
)
