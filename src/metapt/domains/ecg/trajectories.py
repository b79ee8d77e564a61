"""Figures of the warp's displacement over PT."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from metapt.domains.ecg.looks import looks
from metapt.domains.ecg.quantities import DISPLACEMENT
from metapt.domains.ecg.results import EcgResults
from metapt.evaluation import figures
from metapt.evaluation.metrics import NotMeasuredError


def draw_trajectories(axis: Axes, results: EcgResults, runs: dict[str, str]) -> None:
    """Draw the displacement over meta-iterations, a line per PT seed; a dashed line if an arm learns nothing.

    `runs` maps an arm that was run to the arm whose look it has.
    """
    look = looks(list(dict.fromkeys(runs.values())))
    with figures.style():
        for run, arm in runs.items():
            style: dict[str, Any] = {"color": look[arm].colour, "linewidth": 1.2}
            trajectories = results.trajectories(run)
            for each in trajectories.values():
                steps, values = each["step"], each["value"]
                axis.plot(steps, values, alpha=0.8, label=figures.once(axis, look[arm].label), **style)
                axis.plot(steps.iloc[0], values.iloc[0], look[arm].marker, color=look[arm].colour, markersize=4.5)
            if not trajectories:
                try:
                    constant = float(results.pretraining(run, DISPLACEMENT).mean())
                except NotMeasuredError:
                    continue
                axis.axhline(constant, linestyle="--", label=figures.once(axis, look[arm].label), **style)
        axis.set(xlabel="meta-iteration", ylabel=DISPLACEMENT)
        axis.margins(x=0.02)
    log_scale(axis, "y")


def log_scale(axis: Axes, which: str) -> None:
    """Give an axis ("x" or "y") a logarithmic scale."""
    with figures.style():
        axis.set(**{f"{which}scale": "log"})
        figures.plain_log_ticks(axis.xaxis if which == "x" else axis.yaxis)
