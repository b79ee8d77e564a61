"""Test AUROC after FT: cells of tables beside the paper's, differences between arms, claims and panels.

Differences are taken over PT seeds, after the FT runs of each are averaged: FT runs of one PT seed share an encoder and
are not independent. With a single PT seed there is no interval, and no claim is decided. Arms and settings that the
config does not run are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from metapt.errors import DataError
from metapt.evaluation import figures
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, NOT_BELOW, OF_THE_PAPER, Comparison, Sanity
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate
from metapt.evaluation.tables import mean_and_error, published
from metapt.twostage.arms import Pair, without_pretraining
from metapt.twostage.quantities import AUROC_LABEL
from metapt.twostage.results import Cell, TwoStageResults, difference, over_seeds

Row = Mapping[Hashable, Any]
Runs = Callable[[], "pd.Series[float]"]
"""Returns values of FT runs, indexed by pair of seeds; raises NotMeasuredError if there are none."""

OVER_RUNS = (
    "in brackets the standard error over the means of the PT seeds, which takes into account that FT runs share an "
    "encoder"
)
DIFFERENCES = "(percentage points): mean ± standard error over PT seeds, paired; in brackets the 95% t interval"


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
    """Return the differences between each pair's arm and its control in the cells of the results that both have.

    Columns: those of the cell's words, minus (the control), mean, seed_standard_error, seeds, low and high (95% t
    interval), and p_value.
    """
    rows = []
    for cell in results.cells():
        for pair in (pair for pair in pairs if pair.arm == cell.arm):
            try:
                a, b = (runs() for runs in _both(results, cell, pair.control))
            except NotMeasuredError:
                continue
            d = difference(a, b)
            row = {"mean": d.mean, "seed_standard_error": d.standard_error, "seeds": d.n, "low": d.low, "high": d.high}
            rows.append({**cell.words, "minus": pair.control, **row, "p_value": d.p_value})
    return pd.DataFrame(rows)


def wide(
    table: pd.DataFrame,
    key: Sequence[str],
    words: Callable[[Row], Mapping[str, object]],
    column: Callable[[Row], str],
    text: Callable[[Row], str],
) -> pd.DataFrame:
    """Return a table with a row for each `key` and a column for each kind of cell; key columns may be missing.

    Given a cell (a row of `table`), `words` returns the first columns of its row, `column` and `text` its title and
    text.
    """
    rows: dict[tuple[str, ...], dict[str, object]] = {}
    for cell in table.to_dict("records"):
        place = tuple(str(cell.get(name, "")) for name in key)
        rows.setdefault(place, dict(words(cell)))[column(cell)] = text(cell)
    return pd.DataFrame(list(rows.values())).fillna("")


def difference_text(row: Row, p_value: bool = False) -> str:
    """Return mean ± standard error [interval] of a row of differences, and the p-value on request."""
    text = mean_and_error(row["mean"], row["seed_standard_error"])
    if math.isnan(row["low"]):
        return text
    p = row["p_value"]
    words = ("p < 0.001" if p < 0.001 else f"p = {p:.2g}") if p_value else ""
    return ", ".join(filter(None, [f"{text} [{row['low']:.1f}, {row['high']:.1f}]", words]))


def cell_text(cell: Row) -> str:
    """Return mean ± standard error [standard error over PT seeds] of a cell of `auroc_cells`."""
    error = cell["seed_standard_error"]
    return mean_and_error(cell["mean"], cell["standard_error"]) + ("" if math.isnan(error) else f" [{error:.1f}]")


def of_evaluation(cells: pd.DataFrame, evaluation: str) -> pd.DataFrame:
    """Return the rows of an evaluation; a table without rows may have no columns."""
    return cells[cells["evaluation"] == evaluation] if len(cells) else cells


def numbers_of(name: str, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return parts as one table for the CSV: the first column is the experiment's name, and counts are integers."""
    numbers = pd.concat([part for part in parts if len(part)], ignore_index=True)
    numbers.insert(0, "experiment", name)
    return numbers.assign(**{count: numbers[count].astype("Int64") for count in ("n", "seeds") if count in numbers})


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
    return better(text, arm, control, results.auroc, cell.evaluation, both, paper=paper, without=without)


def better(
    text: str,
    arm: str,
    control: str,
    metric: str,
    evaluation: str,
    runs: tuple[Runs, Runs],
    *,
    paper: str = BEYOND_THE_PAPER,
    without: tuple[str, Runs] | None = None,
) -> Comparison:
    """Return the claim that an arm is better than its control.

    `runs` return the FT runs of the arm and of the control, measured by `metric` under `evaluation`. `without` is the
    arm without PT that the control must beat, which has the same FT, and its runs; None if there is no such arm.
    """

    def minus(a: Runs, b: Runs) -> Estimate:
        return difference(a(), b())

    sanity = None
    if without is not None:
        sanity = Sanity(f"{control} beats {without[0]}", partial(minus, runs[1], without[1]))
    return Comparison(text, arm, control, metric, NOT_BELOW, partial(minus, *runs), evaluation, paper, sanity=sanity)


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


def dots(
    axis: Axes,
    ours: pd.DataFrame,
    others: pd.DataFrame,
    label: Callable[[str], str],
    xlabel: str = AUROC_LABEL,
) -> None:
    """Draw a row per arm of `ours`: mean and standard error over PT seeds, and below it, hollow, those of `others`."""
    ours, others = (
        table.assign(
            label=[label(arm) for arm in table["arm"]],
            standard_error=table["seed_standard_error" if "seed_standard_error" in table else "standard_error"],
        )
        for table in (ours, others[others["arm"].isin(ours["arm"])])
    )
    xlabel = f"{xlabel},\nmean ± standard error over PT seeds"
    figures.bars_with_error(ours, others, xlabel=xlabel, axis=axis)


def _both(results: TwoStageResults, cell: Cell, control: str) -> tuple[Runs, Runs]:
    setting = results.setting_of_control(control, cell.setting)
    return partial(results.runs, *cell[:3]), partial(results.runs, control, setting, cell.evaluation)
