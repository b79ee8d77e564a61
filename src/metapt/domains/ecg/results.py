"""The results of the runs of an ECG experiment, tables of AUROC beside the paper's, and figures over |D_FT|.

Error bars are standard errors of the PT seeds' means; with a single PT seed there are none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray

from metapt.domains.ecg.config import EcgSettings, sees_labels
from metapt.domains.ecg.jobs import EcgJobs, labelled
from metapt.domains.ecg.stages import AUROC
from metapt.evaluation import figures
from metapt.evaluation.experiment import Needs
from metapt.evaluation.figures import Style
from metapt.evaluation.tables import Tables, published
from metapt.sections import DomainSection
from metapt.twostage import tables
from metapt.twostage.arms import Pair
from metapt.twostage.quantities import AUROC_LABEL, EVALUATIONS
from metapt.twostage.results import Cell, TwoStageResults
from metapt.twostage.tables import Row, arm_differences, auroc_cells, beside_papers, of_evaluation

STYLES: dict[str, Style] = {
    "no_pt": (6, 6, "-"),
    "simclr": (0, 0, "-"),
    "simclr-mild": (0, 5, "--"),
    "optsla": (5, 4, "-"),
    "meta": (1, 1, "-"),
    "meta-frozen": (1, 2, ":"),
    "meta-permuted_labels": (1, 4, "--"),
    "meta-random_sign": (1, 0, "--"),
    "meta-k0": (4, 4, "--"),
    "meta-k5": (3, 3, "--"),
    "meta-k10": (2, 5, "--"),
    "meta-identity": (1, 6, "--"),
    "no_pt-released": (6, 3, ":"),
    "simclr-released": (0, 3, ":"),
    "meta-released": (1, 5, ":"),
    "meta-stable": (2, 2, "-"),
    "meta-stable-start": (2, 0, "--"),
    "meta-stable-frozen": (2, 1, ":"),
    "meta-refitted": (5, 3, "--"),
    "random_search": (3, 3, "-"),
    "best_of_4": (0, 2, ":"),
    "simclr-joint": (4, 1, "-"),
    "bissl": (3, 6, "-"),
    "bissl-start": (3, 0, "--"),
}
"""How figures draw arms of the default config."""

PLAIN = "simclr"  # the arm that others are drawn against
_ROW = ["evaluation", "arm", "meta_size"]


@dataclass(frozen=True)
class EcgResults(TwoStageResults):
    """The results of an ECG experiment."""

    settings: ClassVar[type[DomainSection]] = EcgSettings
    styles: ClassVar[Mapping[str, Style]] = STYLES

    @cached_property
    def auroc(self) -> str:
        """Return the metric by which FT runs are compared, whose name has the number of classes."""
        names = (str(name) for name in self.metrics["metric"].unique())
        return next((name for name in names if name.startswith("mean test AUROC over ")), AUROC)

    def cells(self) -> list[Cell]:
        """Return the cells of each evaluation, arm, |D_FT| and meta-PT size (NaN under full access), in this order."""
        return [
            Cell(
                arm,
                finetune_setting(size, seen),
                evaluation,
                {"evaluation": evaluation, "arm": arm, "size": size, "meta_size": math.nan if seen is None else seen},
            )
            for evaluation in self.config.evaluations
            for arm in self.arms
            for size in self.section.finetune_sizes
            for seen in self.meta_sizes(arm, size)
        ]

    def where(self, cell: Cell) -> str:
        return f"{EVALUATIONS[cell.evaluation]}, |D_FT| = {cell.words['size']}"

    def papers_cells(self) -> pd.DataFrame:
        """Return the paper's AUROC of our arms as evaluation, arm, size, meta_size, mean, standard_error."""
        numbers = self.papers_aurocs(self.arms)
        settings = [setting_words(setting) for setting in numbers.pop("setting")]
        return numbers.assign(
            size=[int(setting["ft_size"]) for setting in settings],
            meta_size=[float(setting.get("meta_ft_size", "nan")) for setting in settings],
        )

    def meta_sizes(self, arm: str, size: int) -> list[int | None]:
        """Return the numbers of FT ECGs at meta-PT time of an arm's runs with this |D_FT|; None: full access."""
        return [None]

    def setting_of_control(self, control: str, setting: str) -> str:
        """Return the setting of a control's runs; a PT run without labels serves all numbers of labels."""
        arm = self.config.arms.get(control)
        unlabelled = arm is not None and not sees_labels(arm)
        return "" if unlabelled and setting_words(setting).keys() == {"meta_ft_size"} else setting


def finetune_setting(size: int, meta_size: int | None = None) -> str:
    """Return the words for |D_FT|, and the number of FT ECGs at meta-PT time if it differs (0: none are used)."""
    return f"ft_size={size}" if meta_size is None else f"ft_size={size} meta_ft_size={meta_size}"


def setting_words(setting: str) -> dict[str, str]:
    """Return the words of a setting.

    >>> setting_words("ft_size=500 meta_ft_size=50")
    {'ft_size': '500', 'meta_ft_size': '50'}
    """
    return dict(word.split("=", 1) for word in setting.split())


def needs(jobs: EcgJobs, section: Any) -> Needs:
    """Return the FT runs of each arm at each size, and the PT runs that they start from."""
    return Needs(jobs.runs((arm, labelled(size)) for arm in section.arms for size in section.finetune_sizes))


def auroc_tables(results: EcgResults) -> Tables:
    """Return a table of AUROC beside the paper's and one of the differences between arms, paired by PT seed."""
    joined = beside_papers(results, auroc_cells(results))
    differences = arm_differences(results, results.pairs())
    caption = f"{results.auroc}. Ours: mean ± standard error over all FT runs, as the paper's; {tables.OVER_RUNS}"
    blocks = {caption: _shown(results, joined)}
    if len(differences):
        blocks[f"Differences between arms {tables.DIFFERENCES}. The CSV has p-values"] = tables.wide(
            differences, [*_ROW, "minus"], partial(_difference_words, results), _column, tables.difference_text
        )
    numbers = tables.numbers_of(results.name, [joined, differences])
    return Tables(blocks, numbers.drop(columns="meta_size") if numbers["meta_size"].isna().all() else numbers)


def _shown(results: EcgResults, joined: pd.DataFrame) -> pd.DataFrame:
    """Return our AUROC and the paper's (15 runs), a row per evaluation, arm and meta-PT size, a column per |D_FT|."""
    runs = joined.groupby(_ROW, dropna=False)["n"].transform(lambda n: ", ".join(dict.fromkeys(map(str, n))))
    ours = joined.assign(whose="ours", runs=runs)
    papers = joined[joined["paper_mean"].notna()].assign(whose="paper", runs="15")
    both = pd.concat([ours, papers], ignore_index=True)
    both["place"] = both.groupby(_ROW, sort=False, dropna=False).ngroup()
    both = both.sort_values(["place", "whose"], kind="stable")
    shown = tables.wide(both, [*_ROW, "whose"], partial(_words, results), _column, _text)
    sizes = [_column({"size": size}) for size in results.section.finetune_sizes]
    return shown[[c for c in shown.columns if c not in sizes] + [c for c in sizes if c in shown.columns]]


def _words(results: EcgResults, cell: Row) -> dict[str, str]:
    words = {"evaluation": EVALUATIONS[cell["evaluation"]], "arm": results.label(cell["arm"])}
    return words | _meta_size(cell) | {"whose": cell["whose"], "n": cell["runs"]}


def _difference_words(results: EcgResults, cell: Row) -> dict[str, str]:
    difference = f"{results.label(cell['arm'])} minus {results.label(cell['minus'])}"
    words = {"evaluation": EVALUATIONS[cell["evaluation"]], "difference": difference}
    return words | _meta_size(cell) | {"PT seeds": str(cell["seeds"])}


def _meta_size(cell: Row) -> dict[str, str]:
    return {} if math.isnan(cell["meta_size"]) else {"|D_FT^meta|": f"{cell['meta_size']:.0f}"}


def _column(cell: Row) -> str:
    return f"|D_FT| = {cell['size']}"


def _text(cell: Row) -> str:
    ours = cell["whose"] == "ours"
    return tables.cell_text(cell) if ours else published(cell["paper_mean"], cell["paper_standard_error"])


def over_sizes(results: EcgResults) -> Figure:
    """Draw AUROC of each arm over |D_FT| and its paired difference to SimCLR; with a single |D_FT|, a dot per arm."""
    cells, papers = auroc_cells(results), results.papers_cells()
    known, evaluations, arms = papers[papers["size"].isin(cells["size"])], results.config.evaluations, results.arms
    if cells["size"].nunique() == 1:
        return _dots(results, cells, known)
    differences = arm_differences(results, [Pair(arm, PLAIN) for arm in arms if PLAIN in arms and arm != PLAIN])
    figure, axes = figures.panels(len(evaluations), 2 if len(differences) else 1, width=5.4, height=3.6)
    above, below = axes[: len(evaluations)], axes[len(evaluations) :]
    hollow: Any = {"markersize": 8, "markerfacecolor": "none"}
    for axis, evaluation in zip(above, evaluations, strict=True):
        _lines(axis, of_evaluation(cells, evaluation), results)
        for arm, look in results.looks().items():
            part = of_evaluation(known, evaluation)
            part = part[part["arm"] == arm]
            if len(part):
                places = _dodged(part["size"], arms, arm)
                axis.plot(places, part["mean"], look.marker, color=look.colour, zorder=3, **hollow)
        axis.set_ylabel(f"{AUROC_LABEL},\n± standard error over PT seeds")
        axis.set_title(EVALUATIONS[evaluation])
    for axis, evaluation in zip(below, evaluations, strict=False):  # without the row below there are none
        _lines(axis, of_evaluation(differences, evaluation), results)
        axis.axhline(0.0, color=figures.QUIET, linewidth=1, linestyle="--", zorder=1.5)
        axis.set_ylabel(f"AUROC minus {results.label(PLAIN)}'s\n(points ± SE, paired)")
    sizes = [float(size) for size in sorted(cells["size"].unique())]
    for axis in axes:
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(FixedLocator(sizes))
        axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel("|$D_{FT}$|, labelled ECGs in FT")
    figures.same_range(above, "y")
    if below:
        figures.same_range(below, "y")
    if set(papers["evaluation"]) & set(evaluations):
        above[0].errorbar([], [], fmt="o", color=figures.QUIET, label="the paper's (hollow)", **hollow)
    figures.legend_above(figure, axes, columns=5 if len(evaluations) > 1 else 3)
    return figure


def _dodged(sizes: pd.Series[int], arms: Sequence[str], arm: str) -> NDArray[np.float64]:
    """Return positions on a logarithmic axis, shifted so that error bars of different arms don't overlap."""
    shift = (arms.index(arm) - (len(arms) - 1) / 2) * min(0.03, 0.18 / len(arms))
    return np.asarray(sizes, dtype=float) * math.exp(shift)


def _lines(axis: Axes, cells: pd.DataFrame, results: EcgResults) -> None:
    """Draw a line with error bars per arm over |D_FT|."""
    for arm, (name, colour, marker, line) in results.looks().items():
        part = cells[cells["arm"] == arm].sort_values("size")
        if len(part):
            places, error = _dodged(part["size"], results.arms, arm), part["seed_standard_error"].fillna(0.0)
            style: Any = {"color": colour, "marker": marker, "linewidth": 1.5, "elinewidth": 1.2}
            style["linestyle"] = figures.line_style(part, line)
            axis.errorbar(places, part["mean"], error, label=name, **style)


def _dots(results: EcgResults, cells: pd.DataFrame, papers: pd.DataFrame) -> Figure:
    evaluations, size = results.config.evaluations, int(cells["size"].iloc[0])
    height = max(2.0, (0.55 if len(papers) else 0.4) * len(results.arms) + 1.2)
    figure, axes = figures.panels(columns=len(evaluations), width=5.6, height=height)
    for axis, evaluation in zip(axes, evaluations, strict=True):
        xlabel = f"{AUROC_LABEL}, |$D_{{FT}}$| = {size}"
        tables.dots(axis, of_evaluation(cells, evaluation), of_evaluation(papers, evaluation), results.label, xlabel)
        axis.set_title(EVALUATIONS[evaluation])
    figures.legend_above(figure, axes)
    return figure
