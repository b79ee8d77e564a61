"""Experiment `summary`: the better of full transfer and linear evaluation, for each arm and setting."""

from __future__ import annotations

import math
from typing import Any, Literal

import pandas as pd
from matplotlib.figure import Figure

from metapt.domains.ppi.config import ArmsSection
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.results import HELD_OUT_TASKS, SETTINGS, PpiResults, by_arm
from metapt.domains.ppi.stages import AUROC, FULL_ACCESS, HALF_DATA, HELD_OUT
from metapt.evaluation import figures
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.tables import Tables
from metapt.sections import key
from metapt.twostage.quantities import FULL_TRANSFER, LINEAR_EVALUATION
from metapt.twostage.tables import Row, auroc_cells, beside_papers, cell_text, dots, numbers_of

BEST = "best of full transfer and linear evaluation"
INITIALS = {FULL_TRANSFER: "F", LINEAR_EVALUATION: "L"}


class Summary(ArmsSection):
    """The better of full transfer and linear evaluation in each setting of the config."""

    choose: Literal["validation", "test"] = key(
        "validation", "graphs whose mean AUROC chooses between the two evaluations (paper: test)"
    )


def best_runs(jobs: PpiJobs, section: Summary) -> Needs:
    """Return the FT runs under full access, and in those other settings whose experiments are in the config."""
    others = dict(jobs.config.experiments())
    half, held_out = (others[key].arm_names() if key in others else [] for key in (HALF_DATA, HELD_OUT_TASKS))
    cells = [(arm, FULL_ACCESS) for arm in section.arms]
    cells += [(arm, HALF_DATA) for arm in section.arms if arm in half]
    cells += [(arm, fold) for arm in section.arms if arm in held_out for fold in HELD_OUT]
    return Needs(jobs.finetunes(cells))


def best_tables(results: PpiResults) -> Tables:
    """Return the better of the two evaluations in each setting that was run, beside the paper's."""
    joined = beside_papers(results, best_cells(results))

    def text(cell: Row) -> str:
        return f"{cell_text(cell)} {INITIALS.get(cell['best'], '')}".strip()

    shown = by_arm(results, joined, {"PT seeds": "seeds"}, lambda cell: SETTINGS[cell["setting"]], text)
    chosen = {
        "validation": "by the mean on the validation set (the paper: on the test set)",
        "test": "by the mean on the test set, as in the paper; that flatters arms that were run both ways",
    }
    caption = (
        f"{AUROC}, the better of full transfer (F) and linear evaluation (L) {chosen[results.section.choose]}. Mean ± "
        "standard error over FT runs (held-out tasks: over folds); in brackets over PT seeds"
    )
    return Tables({caption: shown}, numbers_of(results.name, [joined]))


def best_cells(results: PpiResults) -> pd.DataFrame:
    """Return, of the rows of `auroc_cells` of an arm and setting, the one that `choose` chooses.

    `best` names the evaluation, and `evaluation` is `BEST`. If one of the evaluations has no finite mean, the best is
    unknown: `best` is "" and the numbers are NaN.
    """
    half = [HALF_DATA] if HALF_DATA in set(results.metrics["setting"]) else []
    cells = auroc_cells(results, results.cells_of([FULL_ACCESS, *half, HELD_OUT_TASKS]))
    rows = []

    def validation(cell: pd.Series[Any]) -> float:
        return results.validation(cell["arm"], cell["setting"], cell["evaluation"])

    for _, part in cells.groupby(["setting", "arm"], sort=False):
        by = part["mean"] if results.section.choose == "test" else part.apply(validation, axis=1)
        row = part.loc[by.sort_values(ascending=False, kind="stable").index[0]].to_dict()
        if part["mean"].isna().any():
            row |= {"evaluation": "", "mean": math.nan, "standard_error": math.nan, "seed_standard_error": math.nan}
        rows.append(row | {"best": row["evaluation"], "evaluation": BEST})
    return pd.DataFrame(rows)


def draw_best(results: PpiResults) -> Figure:
    """Draw the better of the two evaluations in each setting, beside the paper's."""
    cells, papers = best_cells(results), results.papers_cells()
    settings = list(dict.fromkeys(cells["setting"]))
    drawn, axes = figures.panels(columns=len(settings), width=5.2, height=max(2.2, 0.5 * len(results.arms) + 1.1))
    for axis, setting in zip(axes, settings, strict=True):
        dots(axis, cells[cells["setting"] == setting], papers[papers["setting"] == setting], results.label)
        axis.set_title(f"{SETTINGS[setting]}, better evaluation")
    figures.legend_above(drawn, axes)
    return drawn


EXPERIMENT = Experiment(
    title="The better of full transfer and linear evaluation, of each arm in each setting",
    figure_title="The better of full transfer and linear evaluation, for each arm and setting",
    section=Summary,
    order=4,
    needs=best_runs,
    results=PpiResults,
    tables=best_tables,
    figure=draw_best,
)
