"""Experiment `partial_access`: fewer FT data at meta-PT time than in FT (Section 6.2).

Error bands are standard errors of the PT seeds' means. With a single PT seed there are none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.ecg.config import EcgSettings, sees_labels
from metapt.domains.ecg.jobs import EcgJobs, labelled
from metapt.domains.ecg.results import EcgResults, auroc_tables, finetune_setting, setting_words
from metapt.evaluation import figures
from metapt.evaluation.comparisons import Comparison
from metapt.evaluation.experiment import Experiment, Needs
from metapt.sections import ExperimentSection, Sizes, SummarySettings, key
from metapt.twostage.arms import Pair
from metapt.twostage.quantities import AUROC_LABEL, EVALUATIONS
from metapt.twostage.tables import auroc_cells, beats_in


class PartialAccess(ExperimentSection):
    """Fewer FT data at meta-PT time than in FT."""

    arms: list[str] = key(["meta", "meta-stable"], "arms, keys of `ecg.arms`, that learn the warp", min_length=1)
    baseline: str = key(
        "simclr",
        "arm that uses no FT data: the curve's point at 0, and the control of arms that start from it",
    )
    finetune_sizes: Sizes = key([100, 250, 500, 1000], "labelled ECGs in FT, |D_FT| (the paper: 500)")
    meta_sizes: Sizes = key(
        [10, 25, 50, 100, 250, 500, 1000],
        "labelled ECGs at meta-PT time, at most as many as in FT (the paper names 10, 25 and 50)",
    )

    def arm_names(self) -> list[str]:
        """Return the baseline, then the arms."""
        return list(dict.fromkeys([self.baseline, *self.arms]))

    def check(self, domain: EcgSettings) -> None:
        """Raise ValueError as the parent does, for labels in the wrong arm, and for sizes all larger than in FT."""
        super().check(domain)
        sees = {name: sees_labels(domain.arms[name]) for name in self.arm_names()}
        if sees[self.baseline]:
            raise ValueError(f".baseline is {self.baseline!r}, whose PT sees labels; legal: an arm without")
        for name in self.arms:
            if not sees[name]:
                raise ValueError(f".arms names {name!r}, whose PT sees no labels; legal: arms whose PT does")
        if (least := min(self.meta_sizes)) > (most := max(self.finetune_sizes)):
            raise ValueError(f".meta_sizes begins with {least}; legal: one or more of at most {most}, as in FT")


@dataclass(frozen=True)
class PartialAccessResults(EcgResults):
    """The results of the experiment; the setting of each FT run names its FT ECGs at meta-PT time."""

    papers_claims: ClassVar[Collection[tuple[str, str]]] = (("meta", "simclr"),)

    def pairs(self) -> list[Pair]:
        """Return each arm that the baseline is a control of, and the baseline."""
        return [pair for pair in super().pairs() if pair.control == self.section.baseline]

    def meta_sizes(self, arm: str, size: int) -> list[int | None]:
        """Return the numbers of FT ECGs at meta-PT time of an arm's runs with this |D_FT|; the baseline uses none."""
        if arm == self.section.baseline:
            return [0]
        return [meta_size for meta_size in sorted(self.section.meta_sizes) if meta_size <= size]

    def setting_of_control(self, control: str, setting: str) -> str:
        """Return the setting of a control's runs; the baseline's FT runs have seen no labels in PT."""
        words = setting_words(setting)
        if control == self.section.baseline and "ft_size" in words:
            return finetune_setting(int(words["ft_size"]), 0)
        return super().setting_of_control(control, setting)

    @classmethod
    def read(
        cls, section: type[ExperimentSection], settings: SummarySettings, inputs: Mapping[str, Path]
    ) -> PartialAccessResults:
        results = super().read(section, settings, inputs)
        assert isinstance(results, cls)
        return dataclasses.replace(results, metrics=_with_meta_size(results.metrics, results.section.baseline))


def _with_meta_size(table: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Add the number of FT ECGs at meta-PT time to each FT row: 0 for the baseline, all if the run names none."""

    def named(arm: str, setting: str) -> str:
        found = setting_words(setting)
        if "ft_size" not in found or "meta_ft_size" in found:
            return setting
        return finetune_setting(int(found["ft_size"]), 0 if arm == baseline else int(found["ft_size"]))

    return table.assign(setting=list(map(named, table["arm"], table["setting"])))


def needs(jobs: EcgJobs, section: PartialAccess) -> Needs:
    """Return the FT runs of the baseline at each size, and of each arm for each number of ECGs at meta-PT time."""
    cells = [(section.baseline, labelled(size)) for size in section.finetune_sizes]
    sizes = [(size, seen) for size in section.finetune_sizes for seen in section.meta_sizes if seen <= size]
    cells += [(arm, labelled(*each)) for arm in section.arms for each in sizes]
    return Needs(jobs.runs(cells))


def first_size(section: PartialAccess) -> int:
    """Return the |D_FT| of the paper's curve over |D_FT^meta|: 500, or the config's first if that is not run."""
    return 500 if 500 in section.finetune_sizes else section.finetune_sizes[0]


def comparisons(results: PartialAccessResults) -> Iterator[Comparison]:
    """Yield the paper's claim that meta-PT with a tenth of the FT data beats the baseline, from which it starts."""
    size = first_size(results.section)
    few = size // 10
    for pair in results.pairs() if few in results.section.meta_sizes else []:
        for cell in results.cells():
            if cell.arm == pair.arm and cell.setting == finetune_setting(size, few):
                text = f"{pair.arm} with {few} FT ECGs at meta-PT time beats {pair.control}"
                yield beats_in(results, pair, cell, text)


def over_meta_sizes(results: PartialAccessResults) -> Figure:
    """Draw AUROC over the FT ECGs at meta-PT time: all arms at one |D_FT|, then each arm at every |D_FT|."""
    cells, papers, evaluations = auroc_cells(results), results.papers_cells(), results.config.evaluations
    base, learners, focus = results.section.baseline, results.section.arms, first_size(results.section)
    places = {meta_size: place for place, meta_size in enumerate(sorted(cells["meta_size"].unique()))}
    sizes = sorted(cells["size"].unique())
    figure, axes = figures.panels(columns=1 + len(learners), rows=len(evaluations), width=4.4, height=3.4)
    look, ramp = results.looks(), figures.ramp(len(sizes))
    for row, evaluation in enumerate(evaluations):
        first, *others = axes[row * (1 + len(learners)) : (row + 1) * (1 + len(learners))]
        part = cells[cells["evaluation"] == evaluation]
        for arm, axis in zip(learners, others, strict=True):
            curves = part[part["arm"].isin([base, arm])].sort_values("meta_size")
            marker = look[arm].marker
            _band(first, curves[curves["size"] == focus], places, look[arm].label, look[arm].colour, marker)
            for size, colour in zip(sizes, ramp, strict=True):
                _band(axis, curves[curves["size"] == size], places, f"|$D_{{FT}}$| = {size}", colour, marker)
            axis.set_title(f"{look[arm].label}, {EVALUATIONS[evaluation]}")
        theirs = papers[papers["evaluation"] == evaluation]
        theirs = theirs[(theirs["size"] == focus) & theirs["meta_size"].isin(places)]
        for arm, found in theirs.groupby("arm", sort=False):
            name, colour, marker, _ = look[str(arm)]
            style: Any = {"color": colour, "fmt": marker, "markerfacecolor": "white", "elinewidth": 1.2}
            x = [places[m] + 0.12 for m in found["meta_size"]]
            first.errorbar(x, found["mean"], found["standard_error"], label=f"{name}, the paper's", **style)
        first.set_title(f"|$D_{{FT}}$| = {focus}, {EVALUATIONS[evaluation]}")
        first.set_ylabel(f"{AUROC_LABEL},\n± standard error over PT seeds")
    for number, axis in enumerate(axes):
        first_column, first_row = number % (1 + len(learners)) == 0, number <= len(learners)
        shown = {m: place for m, place in places.items() if m <= focus or not first_column}
        axis.set_xticks(list(shown.values()), [f"{m:g}" for m in shown])
        axis.set_xlabel(f"labelled ECGs at meta-PT time (0: {results.label(base)})")
        if first_row or first_column:
            axis.legend(fontsize=9)
    for row in range(len(evaluations)):
        figures.same_range(axes[row * (1 + len(learners)) + 1 : (row + 1) * (1 + len(learners))], "y")
    return figure


def _band(axis: Axes, curve: pd.DataFrame, places: dict[float, int], name: str, colour: str, marker: str) -> None:
    x, mean, error = [places[m] for m in curve["meta_size"]], curve["mean"], curve["seed_standard_error"].fillna(0.0)
    if len(x) < 3:
        axis.errorbar(x, mean, error, fmt=marker, color=colour, label=name)
    else:
        figures.band(axis, x, mean - error, mean, mean + error, name, colour)
        axis.plot(x, mean, marker, color=colour, markersize=4.5)


EXPERIMENT = Experiment(
    title="Test AUROC on ECGs where meta-PT sees fewer labelled ECGs than FT",
    figure_title="Test AUROC on ECGs over the number of labelled ECGs that meta-PT sees",
    section=PartialAccess,
    order=3,
    needs=needs,
    results=PartialAccessResults,
    tables=auroc_tables,
    figure=over_meta_sizes,
    comparisons=comparisons,
)
