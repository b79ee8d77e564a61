"""Experiment `augmentations`: the effect of the learned warp on ECGs. Not in the paper."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from metapt.domains.ecg.config import EcgSettings, NoPretraining
from metapt.domains.ecg.data import FREQUENCY
from metapt.domains.ecg.jobs import EcgJobs, labelled
from metapt.domains.ecg.results import EcgResults
from metapt.domains.ecg.stages import DISPLACEMENT, LABEL, ORIGINAL, ViewsSettings, viewed
from metapt.evaluation import figures
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate, estimate_mean
from metapt.evaluation.tables import Tables, mean_and_error
from metapt.sections import ExperimentSection, Positive, key
from metapt.twostage.arms import to_pretrain

Values = NDArray[np.float64]


class Augmentations(ExperimentSection):
    """What the learned warp does. Not in the paper."""

    arms: list[str] = key(["simclr", "meta", "meta-stable"], "arms, keys of `ecg.arms`", min_length=1)
    finetune_size: Positive = key(500, "labelled ECGs at meta-PT time")

    def check(self, domain: EcgSettings) -> None:
        """Raise ValueError as `ExperimentSection.check`, and for an arm without PT, which has no warp."""
        super().check(domain)
        for name in self.arms:
            if isinstance(domain.arms[name], NoPretraining):
                raise ValueError(f".arms names {name}, which has no warp; legal: arms that pre-train")


@dataclass(frozen=True)
class AugmentationsResults(EcgResults):
    """The results of the experiment, with the series of its job."""

    @cached_property
    def _views(self) -> dict[str, Values]:
        """Series -> values [replicates, steps]."""
        found = self.series[self.series["stage"] == "augmentations"]
        return {
            str(name): part.pivot(index="replicate", columns="step", values="value").to_numpy(dtype=float)
            for name, part in found.groupby("name", sort=False)
        }

    @property
    def classes(self) -> list[str]:
        """Return the names of the classes."""
        return [name.removeprefix(LABEL) for name in self._views if name.startswith(LABEL)]

    @property
    def original(self) -> Values:
        """Return lead II of one ECG [samples], mV."""
        return np.asarray(self._views[ORIGINAL][0])

    def views(self, arm: str, when: str) -> Values:
        """Return two views of it [2, samples] at an arm's `initial` or `learned` strength, mV."""
        return self._views[viewed(arm, when)]

    def displacements(self, arm: str) -> Values:
        """Return the typical displacement at the learned strength of each test ECG [n], samples."""
        return np.asarray(self._views[viewed(arm, "strength")][0])

    def labelled(self, name: str) -> NDArray[np.bool_]:
        """Return which test ECGs have this diagnosis [n]."""
        return np.asarray(self._views[LABEL + name][0] > 0)


def needs(jobs: EcgJobs, section: Augmentations) -> Needs:
    """Return the PT runs of each arm, and the study of their views."""
    config, setting = jobs.config, labelled(section.finetune_size)
    settings = ViewsSettings(
        arms={arm: to_pretrain(jobs.arm(arm)) for arm in section.arms},
        seeds=jobs.pretrain_seeds,
        width=config.width,
        samples=config.length,
        pretrain=config.pretrain,
    )
    inputs, limits = jobs.prepared().outputs, {"mem_mb": jobs.mem_mb(), "minutes": 30}
    study = jobs.study("augmentations/views", settings, inputs, section.arms, setting, **limits)
    return Needs([*jobs.encoders(section.arms, setting), study])


def tables(results: AugmentationsResults) -> Tables:
    """Return the warp's displacement at the start and the end of PT, and at the end by diagnosis."""
    shown, rows = [], []
    for arm in results.arms:
        displacements, medians = results.displacements(arm), {}
        groups = {"all": np.ones(len(displacements), dtype=bool)}
        groups |= {name: results.labelled(name) for name in results.classes}
        for name, members in groups.items():
            chosen = displacements[members]
            quartiles = np.quantile(chosen, [0.25, 0.5, 0.75]) if chosen.size else np.full(3, math.nan)
            numbers = dict(zip(("first_quartile", "median", "third_quartile"), quartiles, strict=True))
            rows.append({"arm": arm, "diagnosis": name, "ecgs": int(chosen.size), **numbers})
            medians[name] = numbers["median"]
        ends = _ends(results, arm)
        start, end = (mean_and_error(e.mean, e.standard_error) for e in ends)
        shown.append(
            {"arm": results.label(arm), "PT seeds": ends[1].n, "at the start": start, "at the end": end, **medians}
        )
    caption = (
        "Displacement of the warp (samples; one is 10 ms): typical one at the start and at the end of PT (mean ± "
        "standard error over PT seeds); then its median over the ECGs of one PT run, of all and of each diagnosis"
    )
    table = pd.DataFrame(rows)
    table.insert(0, "experiment", results.name)
    return Tables({caption: pd.DataFrame(shown)}, table)


def _ends(results: AugmentationsResults, arm: str) -> tuple[Estimate, Estimate]:
    """Return the displacement at the start and the end of PT, over PT seeds; constant for an arm that learns none."""
    final, learned = results.pretraining(arm, DISPLACEMENT), results.trajectories(arm)
    first = [learned[seed]["value"].iloc[0] if seed in learned else value for seed, value in final.items()]
    return estimate_mean(first), estimate_mean(final.to_numpy(dtype=float))


def figure(results: AugmentationsResults) -> Figure:
    """Draw one ECG and its views, the learned strength by diagnosis, and its trajectory."""
    shown = _panels(results)
    columns = 2 if len(shown) == 4 else min(len(shown), 3)
    rows = -(-len(shown) // columns)
    with figures.style():
        drawn = Figure(figsize=(11.0, 2.6 * rows + 3.6))
        upper, lower = drawn.subfigures(2, 1, squeeze=False, height_ratios=[2.6 * rows, 3.6]).flat
        grid = list(upper.subplots(rows, columns, squeeze=False, sharey=True).flat)
        left, right = lower.subplots(1, 2)
    for axis, (names, views, colour) in zip(grid, shown, strict=False):
        _views(axis, results.original, views, colour)
        figures.title(axis, "\n".join(names))
        axis.set_xlabel("time (s)")
    for axis in grid[len(shown) :]:
        axis.remove()
    _by_diagnosis(left, results)
    _trajectories(right, results)
    with figures.style():
        right.legend(fontsize=9)
    figures.title(left, "strength of each ECG's warp: quartiles, 5-95 %")
    figures.title(right, "trajectory of the warp, a line per PT seed")
    return drawn


def _panels(results: AugmentationsResults) -> list[tuple[list[str], Values, str]]:
    """Return the titles, the two views and the colour of each panel: one for arms and times whose views are equal."""
    found: list[tuple[list[str], Values, str]] = []
    for arm, look in results.looks().items():
        for when in ("initial", "learned") if results.trajectories(arm) else ("learned",):
            name = f"{look.label}, {when if results.trajectories(arm) else 'fixed'} strength"
            views = results.views(arm, when)
            same = next((names for names, others, _ in found if np.array_equal(others, views)), None)
            if same is None:
                found.append(([name], views, look.colour))
            else:
                same.append(name)
    return found


def _views(axis: Axes, original: Values, views: Values, colour: str) -> None:
    """Draw the ECG and two views of it, one below another."""
    time = np.arange(len(original)) / FREQUENCY
    step = 1.15 * max(float(np.ptp(trace)) for trace in (original, *views))
    with figures.style():
        for place, (trace, ink) in enumerate(zip((original, *views), (figures.INK, colour, colour), strict=True)):
            axis.plot(time, trace - np.median(trace) - place * step, color=ink, linewidth=0.7)
        axis.set_yticks([-place * step for place in range(3)], ["original", "view 1", "view 2"])
        axis.tick_params(axis="y", length=0)
        axis.grid(visible=False)
        axis.margins(x=0)
        right = float(time[-1])
        axis.plot([right, right], [0.35 * step, 0.35 * step + 1.0], color=figures.INK, linewidth=2, clip_on=False)
        figures.note(axis, "1 mV", (right, 0.35 * step + 0.5), 4)


def _by_diagnosis(axis: Axes, results: AugmentationsResults) -> None:
    """Draw boxes (quartiles, and whiskers from the 5th to the 95th percentile) of the ECGs' displacements."""
    arms, look, classes = results.arms, results.looks(), results.classes
    width = 0.8 / len(arms)
    with figures.style():
        for number, arm in enumerate(arms):
            strength = results.displacements(arm)
            groups = [strength[results.labelled(name)] for name in classes]
            places = np.arange(len(classes)) + (number - (len(arms) - 1) / 2) * width
            colour = look[arm].colour
            boxes: Any = {
                "boxprops": {"facecolor": colour, "edgecolor": colour, "alpha": 0.45},
                "medianprops": {"color": figures.INK, "linewidth": 1.6},
                **{part: {"color": colour} for part in ("whiskerprops", "capprops")},
                "whis": (5, 95),
                "showfliers": False,
                "patch_artist": True,
                "manage_ticks": False,
            }
            axis.boxplot(groups, positions=places.tolist(), widths=0.8 * width, **boxes)
        axis.set_xticks(range(len(classes)), classes)
        axis.grid(axis="x", visible=False)
        axis.set(ylabel=DISPLACEMENT)
        handles = [Patch(facecolor=look[arm].colour, alpha=0.6, label=look[arm].label) for arm in arms]
        axis.legend(handles=handles, fontsize=9)
    _log_scale(axis)


def _trajectories(axis: Axes, results: AugmentationsResults) -> None:
    """Draw the displacement over meta-iterations, a line per PT seed; a dashed line for an arm without a trajectory."""
    look = results.looks()
    with figures.style():
        for arm in results.arms:
            style: dict[str, Any] = {"color": look[arm].colour, "linewidth": 1.2}
            trajectories = results.trajectories(arm)
            for each in trajectories.values():
                steps, values = each["step"], each["value"]
                axis.plot(steps, values, alpha=0.8, label=figures.once(axis, look[arm].label), **style)
                axis.plot(steps.iloc[0], values.iloc[0], look[arm].marker, color=look[arm].colour, markersize=4.5)
            with suppress(NotMeasuredError):
                if not trajectories:
                    constant = float(results.pretraining(arm, DISPLACEMENT).mean())
                    axis.axhline(constant, linestyle="--", label=figures.once(axis, look[arm].label), **style)
        axis.set(xlabel="meta-iteration", ylabel=DISPLACEMENT)
        axis.margins(x=0.02)
    _log_scale(axis)


def _log_scale(axis: Axes) -> None:
    """Give the vertical axis a logarithmic scale."""
    with figures.style():
        axis.set(yscale="log")
        figures.plain_log_ticks(axis.yaxis)


EXPERIMENT = Experiment(
    title="The learned temporal warp of ECGs",
    figure_title="An ECG, its views before and after the warp was learned, and the learned strength of the warp for "
    "each ECG",
    section=Augmentations,
    order=4,
    needs=needs,
    results=AugmentationsResults,
    tables=tables,
    figure=figure,
)
