"""Test AUROC beside the paper's, differences between arms, claims, and figures over |D_FT|.

Differences are taken over PT seeds, after the FT runs of each are averaged: FT runs of one PT seed share an encoder and
are not independent. Error bars are standard errors of the PT seeds' means; with a single PT seed there are none, and no
claim is decided. Claims on arms and sizes that the config does not run are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray

from metapt.domains.ecg.config import access
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ecg.looks import label, looks
from metapt.domains.ecg.quantities import AUROC
from metapt.domains.ecg.results import PLAIN, EcgResults, setting_words
from metapt.errors import DataError
from metapt.evaluation import figures
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, Comparison
from metapt.evaluation.experiment import Needs
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.tables import Tables, published
from metapt.twostage import panels, tables
from metapt.twostage.arms import Pair, without_pretraining
from metapt.twostage.quantities import AUROC_LABEL, EVALUATIONS
from metapt.twostage.results import auroc_cell
from metapt.twostage.seeds import over_runs, over_seeds
from metapt.twostage.tables import Row, Runs

CELL = ["evaluation", "arm", "size", "meta_size"]
_ROW = ["evaluation", "arm", "meta_size"]


def needs(jobs: EcgJobs, section: Any) -> Needs:
    """Return the FT runs of each arm at each size, and the PT runs that they start from."""
    arms = jobs.config.arms
    return Needs(jobs.runs((arm, access(arms[arm], n), n) for arm in section.arms for n in section.finetune_sizes))


def auroc_tables(results: EcgResults) -> Tables:
    """Return a table of AUROC beside the paper's and one of the differences between arms, paired by PT seed."""
    joined = tables.beside_papers(auroc_cells(results), papers_cells(results), CELL)
    differences = arm_differences(results, results.pairs())
    caption = f"{AUROC}. Ours: mean ± standard error over all FT runs, as the paper's; {tables.OVER_RUNS}"
    blocks = {caption: _shown(results, joined)}
    if len(differences):
        words = "The CSV has p-values, and the interval of a bootstrap over PT seeds"
        blocks[f"Differences between arms {tables.DIFFERENCES}. {words}"] = tables.wide(
            differences, [*_ROW, "minus"], _difference_words, _column, tables.difference_text
        )
    numbers = tables.numbers_of(results.name, [joined, differences])
    return Tables(blocks, numbers.drop(columns="meta_size") if numbers["meta_size"].isna().all() else numbers)


def auroc_cells(results: EcgResults) -> pd.DataFrame:
    """Return our test AUROC, one row per cell that was run, in the order evaluation, arm, |D_FT|, meta-PT size.

    Columns: `CELL` (meta_size is NaN under full access), and those of `auroc_cell`. Raises DataError if none was run.
    """
    places = [
        (evaluation, arm, size, meta_size)
        for evaluation in results.config.evaluations
        for arm in results.arms
        for size in results.section.finetune_sizes
        for meta_size in results.meta_sizes(arm, size)
    ]
    rows = []
    for evaluation, arm, size, meta_size in places:
        try:
            values = results.runs(arm, size, evaluation, meta_size)
        except NotMeasuredError:
            continue
        words = dict(zip(CELL, (evaluation, arm, size, math.nan if meta_size is None else meta_size), strict=True))
        spread = over_runs(values)
        rows.append(auroc_cell(words, spread.mean, spread, over_seeds(values)))
    if not rows:
        raise DataError(f"No FT run of {results.name} has measured {AUROC!r}.")
    return pd.DataFrame(rows)


def papers_cells(results: EcgResults) -> pd.DataFrame:
    """Return the paper's AUROC. Columns: `CELL`, mean, standard_error."""
    numbers = results.papers_aurocs(results.arms, results.papers_arms)
    settings = [setting_words(setting) for setting in numbers.pop("setting")]
    return numbers.assign(
        size=[int(setting["ft_size"]) for setting in settings],
        meta_size=[float(setting.get("meta_ft_size", "nan")) for setting in settings],
    )


def arm_differences(results: EcgResults, pairs: Sequence[Pair]) -> pd.DataFrame:
    """Return the differences between each pair's arm and its control.

    Columns: evaluation, arm, minus, size, meta_size, and those of `difference_columns`.
    """
    return tables.differences(_differences(results, pairs))


def _differences(results: EcgResults, pairs: Sequence[Pair]) -> Iterator[tuple[dict[str, Any], Runs, Runs]]:
    for cell in auroc_cells(results).to_dict("records"):
        evaluation, arm, size, seen = (cell[name] for name in CELL)
        for minus in (pair.control for pair in pairs if pair.arm == arm):
            (other,) = results.meta_sizes(minus, size)
            a = partial(results.runs, arm, size, evaluation, None if math.isnan(seen) else int(seen))
            words = {"evaluation": evaluation, "arm": arm, "minus": minus, "size": size, "meta_size": seen}
            yield words, a, partial(results.runs, minus, size, evaluation, other)


def _shown(results: EcgResults, joined: pd.DataFrame) -> pd.DataFrame:
    """Return our AUROC and the paper's (15 runs), a row per evaluation, arm and meta-PT size, a column per |D_FT|."""
    runs = joined.groupby(_ROW, dropna=False)["n"].transform(lambda n: ", ".join(dict.fromkeys(map(str, n))))
    ours = joined.assign(whose="ours", runs=runs)
    papers = joined[joined["paper_mean"].notna()].assign(whose="paper", runs="15")
    both = pd.concat([ours, papers], ignore_index=True)
    both["place"] = both.groupby(_ROW, sort=False, dropna=False).ngroup()
    both = both.sort_values(["place", "whose"], kind="stable")
    shown = tables.wide(both, [*_ROW, "whose"], _words, _column, _text)
    sizes = [_column({"size": size}) for size in results.section.finetune_sizes]
    return shown[[c for c in shown.columns if c not in sizes] + [c for c in sizes if c in shown.columns]]


def _words(cell: Row) -> dict[str, str]:
    words = {"evaluation": EVALUATIONS[cell["evaluation"]], "arm": label(cell["arm"])}
    return words | _meta_size(cell) | {"whose": cell["whose"], "n": cell["runs"]}


def _difference_words(cell: Row) -> dict[str, str]:
    difference = f"{label(cell['arm'])} minus {label(cell['minus'])}"
    words = {"evaluation": EVALUATIONS[cell["evaluation"]], "difference": difference}
    return words | _meta_size(cell) | {"PT seeds": str(cell["seeds"])}


def _meta_size(cell: Row) -> dict[str, str]:
    return {} if math.isnan(cell["meta_size"]) else {"|D_FT^meta|": f"{cell['meta_size']:.0f}"}


def _column(cell: Row) -> str:
    return f"|D_FT| = {cell['size']}"


def _text(cell: Row) -> str:
    ours = cell["whose"] == "ours"
    return tables.cell_text(cell) if ours else published(cell["paper_mean"], cell["paper_standard_error"])


def beats(results: EcgResults) -> Iterator[Comparison]:
    """Yield the claim of each of the results' pairs that the arm beats its control, for each evaluation and |D_FT|."""
    for arm, control, papers in results.pairs():
        for evaluation, size in cells(results):
            ours, others = (partial(results.runs, each, size, evaluation) for each in (arm, control))
            text, both = f"{arm} beats {control}, {where(evaluation, size)}", ((arm, None), (control, None))
            paper = papers_words(results, evaluation, size, *both) if papers else BEYOND_THE_PAPER
            no_pt = without_pretraining(control, results.arm_settings(), results.config.finetune)
            without = None if no_pt is None else (no_pt, partial(results.runs, no_pt, size, evaluation))
            words = (text, arm, control, AUROC, evaluation)
            yield tables.better(*words, (ours, others), paper=paper, without=without)


def cells(results: EcgResults) -> list[tuple[str, int]]:
    """Return each evaluation and |D_FT| of an experiment."""
    return [(evaluation, size) for evaluation in results.config.evaluations for size in results.section.finetune_sizes]


def where(evaluation: str, size: int) -> str:
    """Return the end of a claim's sentence."""
    return f"{EVALUATIONS[evaluation]}, |D_FT| = {size}"


def papers_words(
    results: EcgResults, evaluation: str, size: int, a: tuple[str, int | None], b: tuple[str, int | None]
) -> str:
    """Return the paper's numbers of two arms in words, or `BEYOND_THE_PAPER` unless it has both.

    `a` and `b` are an arm and its FT ECGs at meta-PT time, None where these are |D_FT|.
    """
    papers, texts = papers_cells(results), []
    for arm, few in (a, b):
        found = papers[(papers["evaluation"] == evaluation) & (papers["size"] == size) & (papers["arm"] == arm)]
        found = found[found["meta_size"].isna() if few is None else found["meta_size"] == few]
        texts += [published(row["mean"], row["standard_error"]) for row in found.to_dict("records")]
    return f"{texts[0]} against {texts[1]} %" if len(texts) == 2 else BEYOND_THE_PAPER


def over_sizes(results: EcgResults) -> Figure:
    """Draw AUROC of each arm over |D_FT| and its paired difference to SimCLR; with a single |D_FT|, a dot per arm."""
    cells, papers = auroc_cells(results), papers_cells(results)
    known, evaluations, arms = papers[papers["size"].isin(cells["size"])], results.config.evaluations, results.arms
    if cells["size"].nunique() == 1:
        return _dots(results, cells, known)
    differences = arm_differences(results, [Pair(arm, PLAIN) for arm in arms if PLAIN in arms and arm != PLAIN])
    figure, axes = figures.panels(len(evaluations), 2 if len(differences) else 1, width=5.4, height=3.6)
    above, below = axes[: len(evaluations)], axes[len(evaluations) :]
    hollow: Any = {"markersize": 8, "markerfacecolor": "none"}
    for axis, evaluation in zip(above, evaluations, strict=True):
        _lines(axis, _of(cells, evaluation), arms)
        for arm, look in looks(arms).items():
            part = _of(known, evaluation)
            part = part[part["arm"] == arm]
            if len(part):
                places = _dodged(part["size"], arms, arm)
                axis.plot(places, part["mean"], look.marker, color=look.colour, zorder=3, **hollow)
        axis.set_ylabel(f"{AUROC_LABEL},\n± standard error over PT seeds")
        figures.title(axis, EVALUATIONS[evaluation])
    for axis, evaluation in zip(below, evaluations, strict=True):
        _lines(axis, _of(differences, evaluation), arms)
        axis.axhline(0.0, color=figures.QUIET, linewidth=1, linestyle="--", zorder=1.5)
        axis.set_ylabel(f"AUROC minus {label(PLAIN)}'s\n(points ± SE, paired)")
    sizes = [float(size) for size in sorted(cells["size"].unique())]
    for axis in axes:
        with figures.style():
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


def _of(cells: pd.DataFrame, evaluation: str) -> pd.DataFrame:
    return cells[cells["evaluation"] == evaluation]


def _dodged(sizes: pd.Series[int], arms: Sequence[str], arm: str) -> NDArray[np.float64]:
    """Return positions on a logarithmic axis, shifted so that error bars of different arms don't overlap."""
    shift = (arms.index(arm) - (len(arms) - 1) / 2) * min(0.03, 0.18 / len(arms))
    return np.asarray(sizes, dtype=float) * math.exp(shift)


def _lines(axis: Axes, cells: pd.DataFrame, arms: Sequence[str]) -> None:
    """Draw a line with error bars per arm over |D_FT|."""
    for arm, (name, colour, marker, line) in looks(arms).items():
        part = cells[cells["arm"] == arm].sort_values("size")
        if len(part):
            places, error = _dodged(part["size"], arms, arm), part["seed_standard_error"].fillna(0.0)
            style: Any = {"color": colour, "marker": marker, "linewidth": 1.5, "elinewidth": 1.2}
            style["linestyle"] = figures.joined(part, line)
            with figures.style():
                axis.errorbar(places, part["mean"], error, label=name, **style)


def _dots(results: EcgResults, cells: pd.DataFrame, papers: pd.DataFrame) -> Figure:
    evaluations, size = results.config.evaluations, int(cells["size"].iloc[0])
    height = max(2.0, (0.55 if len(papers) else 0.4) * len(results.arms) + 1.2)
    figure, axes = figures.panels(columns=len(evaluations), width=5.6, height=height)
    for axis, evaluation in zip(axes, evaluations, strict=True):
        xlabel = f"{AUROC_LABEL}, |$D_{{FT}}$| = {size}"
        panels.dots(axis, _of(cells, evaluation), _of(papers, evaluation), label, xlabel)
        figures.title(axis, EVALUATIONS[evaluation])
    figures.legend_above(figure, axes)
    return figure
