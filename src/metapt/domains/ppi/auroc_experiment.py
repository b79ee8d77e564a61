"""Tables, figure and claims of the experiments on AUROC in one setting: full access, half data, held-out tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from metapt.domains.ppi.aurocs import (
    DIFFERENCES,
    Cell,
    auroc_cells,
    beats,
    beside_papers,
    differences,
    dots,
    intervals,
    of,
    papers_words,
    wide_differences,
)
from metapt.domains.ppi.labels import SETTINGS, label
from metapt.domains.ppi.quantities import AUROC
from metapt.domains.ppi.results import BASELINE, HELD_OUT_TASKS, LEARNED, PpiResults
from metapt.evaluation import figures
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, Comparison
from metapt.evaluation.tables import Tables, published
from metapt.twostage.quantities import EVALUATIONS
from metapt.twostage.tables import OVER_RUNS, cell_text, numbers_of

CONTROLS = (("meta-stable", "meta"), ("meta-frozen", "meta-permuted"), ("meta-stable", "no_pt"))
"""Pairs of arms whose difference is shown in addition to the differences from `BASELINE` and `LEARNED`."""

ROW = 0.5
"""Height per arm, in inches, of a panel of means with error bars."""


class Compared(NamedTuple):
    """A claim that `arm` beats `control`; `paper` says whether the paper makes it."""

    arm: str
    control: str
    paper: bool


COMPARED = (
    Compared("graph_supervised", "no_pt", True),
    Compared("graph_supervised", "cotrain", True),
    Compared("meta", "graph_supervised", True),
    Compared("meta", "cotrain", True),
    Compared("meta", "cotrain_pcgrad", True),
    Compared("meta", "no_pt", True),
    Compared("meta-stable", "graph_supervised", False),
    Compared("meta-stable", "meta", False),
    Compared("meta-frozen", "meta-permuted", False),
)


def tables(results: PpiResults) -> Tables:
    """Return AUROC beside the paper's, and the differences between arms, paired by PT seed."""
    joined = beside_papers(results, auroc_cells(results, [results.key]))
    found = differences(results, arm_pairs(results))
    over = "the folds" if results.key == HELD_OUT_TASKS else "all FT runs"
    blocks = {
        f"{AUROC}, {SETTINGS[results.key]}. Ours: mean ± standard error over {over}, as the paper's; {OVER_RUNS} "
        "(without PT each has its own)": _wide(joined)
    }
    if len(found):
        blocks[f"Differences between arms {DIFFERENCES}"] = wide_differences(found)
    return Tables(blocks, numbers_of(results.name, [joined, found]))


def arm_pairs(results: PpiResults) -> list[tuple[Cell, Cell]]:
    """Return the pairs of arms whose difference is shown.

    These are each arm and plain PT, the paper's meta arm and each other arm, and the `CONTROLS`.
    """
    arms = results.arms
    pairs = [(arm, BASELINE) for arm in arms if arm != BASELINE]
    pairs += [(LEARNED, arm) for arm in arms if arm not in (LEARNED, BASELINE) and (arm, LEARNED) not in CONTROLS]
    pairs += list(CONTROLS)
    found = [pair for pair in dict.fromkeys(pairs) if set(pair) <= set(arms)]
    return [((a, results.key), (b, results.key)) for a, b in found]


def figure(results: PpiResults) -> Figure:
    """Draw the AUROC of each arm under each evaluation beside the paper's, and the paired differences to plain PT."""
    cells, papers = auroc_cells(results, [results.key]), results.papers_aurocs(results.arms)
    key, arms = results.key, results.arms
    below = differences(
        results, [((arm, key), (BASELINE, key)) for arm in arms if arm != BASELINE and BASELINE in arms]
    )
    below = below[below["seeds"] > 1] if len(below) else below
    evaluations = [each for each in results.config.evaluations if (cells["evaluation"] == each).any()]
    rows = 2 if len(below) else 1
    drawn, axes = figures.panels(columns=len(evaluations), rows=rows, width=5.6, height=max(2.2, ROW * len(arms) + 1.1))
    for axis, evaluation in zip(axes, evaluations, strict=False):
        dots(axis, of(cells, evaluation), of(papers, evaluation))
        figures.title(axis, f"{SETTINGS[key]}, {EVALUATIONS[evaluation]}")
    for axis, evaluation in zip(axes[len(evaluations) :], evaluations, strict=False):
        part = of(below, evaluation)
        xlabel = f"AUROC minus {label(BASELINE)}'s\n(points, 95% interval over PT seeds)"
        intervals(axis, [label(arm) for arm in part["arm"]], part, xlabel)
    if rows == 2:
        figures.same_range(axes[len(evaluations) :], "x")
    figures.legend_above(drawn, axes)
    return drawn


def comparisons(results: PpiResults) -> Iterator[Comparison]:
    """Yield a claim for each pair of arms that are run and each evaluation."""
    for arm, control, in_paper in COMPARED:
        if not {arm, control} <= set(results.arms):
            continue
        for evaluation in results.config.evaluations:
            paper = papers_words(results, results.name, evaluation, arm, control) if in_paper else BEYOND_THE_PAPER
            text = f"{arm} beats {control}, {SETTINGS[results.key]}"
            yield beats(results, text, arm, control, results.key, evaluation, paper)


def _wide(joined: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a row per arm; ours and the paper's for each evaluation."""
    rows = []
    for arm, part in joined.groupby("arm", sort=False):
        row: dict[str, object] = {"arm": label(str(arm)), "n": part["n"].iloc[0], "PT seeds": part["seeds"].iloc[0]}
        for cell in part.to_dict("records"):
            row[EVALUATIONS[cell["evaluation"]]] = cell_text(cell)
            row[f"paper, {EVALUATIONS[cell['evaluation']]}"] = published(
                cell["paper_mean"], cell["paper_standard_error"]
            )
        rows.append(row)
    return pd.DataFrame(rows).fillna("")
