"""Test AUROC after FT: cells of tables, differences between arms, and claims.

Differences are taken over PT seeds, after the FT runs of each are averaged: FT runs of one PT seed share an encoder and
are not independent. With a single PT seed there is no interval, and no claim is decided. Arms and settings that the
config does not run are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from metapt.errors import DataError
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, OF_THE_PAPER, Comparison
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.tables import published
from metapt.twostage import tables
from metapt.twostage.arms import Pair, without_pretraining
from metapt.twostage.quantities import EVALUATIONS
from metapt.twostage.results import Cell, TwoStageResults
from metapt.twostage.seeds import over_seeds


def auroc_cells(results: TwoStageResults, cells: Iterable[Cell] | None = None) -> pd.DataFrame:
    """Return our test AUROC, a row for each of the `cells` (by default the results' own) that was run.

    Columns: those of the cell's `words`; mean, standard_error and n (over FT runs), seed_standard_error and seeds (over
    the means of the PT seeds). Raises DataError if no FT run has measured the AUROC.
    """
    rows = []
    for cell in results.cells() if cells is None else cells:
        try:
            values, spread = results.runs(*cell[:3]), results.spread(*cell[:3])
        except NotMeasuredError:
            continue
        seeds = over_seeds(values)
        row = {"mean": seeds.mean, "standard_error": spread.standard_error, "n": spread.n}
        rows.append({**cell.words, **row, "seed_standard_error": seeds.standard_error, "seeds": seeds.n})
    if not rows:
        raise DataError(f"No FT run of {results.name} has measured {results.auroc!r}.")
    return pd.DataFrame(rows)


def beside_papers(results: TwoStageResults, cells: pd.DataFrame) -> pd.DataFrame:
    """Return `cells` with the columns paper_mean and paper_standard_error."""
    papers = results.papers_cells()
    papers = papers.rename(columns={"mean": "paper_mean", "standard_error": "paper_standard_error"})
    return cells.merge(papers, how="left", on=[str(name) for name in papers if not str(name).startswith("paper_")])


def arm_differences(results: TwoStageResults, pairs: Sequence[Pair]) -> pd.DataFrame:
    """Return the differences between each pair's arm and its control in the cells of the results.

    Columns: those of the cell's words, minus, and those of `metapt.twostage.seeds.difference_columns`.
    """
    return tables.differences(
        ({**cell.words, "minus": pair.control}, *_both(results, cell, pair.control))
        for cell in results.cells()
        for pair in pairs
        if pair.arm == cell.arm
    )


def beats(results: TwoStageResults) -> Iterator[Comparison]:
    """Yield the claim of each of the results' pairs that the arm beats its control, in each cell of the arm."""
    for pair in results.pairs():
        for cell in (cell for cell in results.cells() if cell.arm == pair.arm):
            yield beats_in(results, pair, cell)


def beats_in(results: TwoStageResults, pair: Pair, cell: Cell, text: str = "") -> Comparison:
    """Return the claim that a pair's arm beats its control in a cell; `text`: the claim, without where it is made."""
    arm, control, papers = pair
    no_pt = without_pretraining(control, results.arm_settings(), results.config.finetune)
    without = None if no_pt is None else (no_pt, _both(results, cell, no_pt)[1])
    text = f"{text or f'{arm} beats {control}'}, {results.where(cell)}"
    paper = papers_words(results, cell, control) if papers else BEYOND_THE_PAPER
    both = _both(results, cell, control)
    return tables.better(text, arm, control, results.auroc, cell.evaluation, both, paper=paper, without=without)


def papers_words(results: TwoStageResults, cell: Cell, control: str) -> str:
    """Return the paper's AUROC of a cell's arm and of a control in words, or `BEYOND_THE_PAPER` unless it has both.

    On data that are not the paper's it is `OF_THE_PAPER`, in whose place `judge` says so.
    """
    if not results.config.papers_data:
        return OF_THE_PAPER
    texts, notes = [], ""
    for arm, setting in ((cell.arm, cell.setting), (control, results.setting_of_control(control, cell.setting))):
        found, note = results.papers_cell(arm, setting, cell.evaluation)
        texts += [published(row["mean"], row["standard_error"]) for row in found.to_dict("records")]
        notes += note
    return f"{texts[0]} against {texts[1]} %{notes}" if len(texts) == 2 else BEYOND_THE_PAPER


def evaluation_words(row: Mapping[Any, Any]) -> str:
    """Return the evaluation of a row of a table in words."""
    return EVALUATIONS.get(row["evaluation"], str(row["evaluation"]))


def _both(results: TwoStageResults, cell: Cell, control: str) -> tuple[tables.Runs, tables.Runs]:
    setting = results.setting_of_control(control, cell.setting)
    return partial(results.runs, *cell[:3]), partial(results.runs, control, setting, cell.evaluation)
