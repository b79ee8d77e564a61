"""Tables of test AUROC beside the paper's, and of differences between arms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd

from metapt.domains.ecg.looks import label
from metapt.domains.ecg.quantities import AUROC
from metapt.domains.ecg.results import EcgResults, setting_words
from metapt.errors import DataError
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.tables import Tables, published
from metapt.twostage import tables
from metapt.twostage.quantities import EVALUATIONS
from metapt.twostage.results import auroc_cell
from metapt.twostage.seeds import over_runs, over_seeds
from metapt.twostage.tables import Row, Runs

CELL = ["evaluation", "arm", "size", "meta_size"]
_ROW = ["evaluation", "arm", "meta_size"]
_PAPERS_RUNS = "15"


def auroc_tables(results: EcgResults) -> Tables:
    """Return a table of AUROC beside the paper's and one of the differences between arms, paired by PT seed."""
    joined = tables.beside_papers(auroc_cells(results), papers_cells(results), CELL)
    differences = arm_differences(results)
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
    rows = []
    for evaluation in results.config.evaluations:
        for arm in results.arms:
            for size in results.section.finetune_sizes:
                for meta_size in results.meta_sizes(arm, size):
                    try:
                        values = results.runs(arm, size, evaluation, meta_size)
                    except NotMeasuredError:
                        continue
                    known = math.nan if meta_size is None else meta_size
                    words = dict(zip(CELL, (evaluation, arm, size, known), strict=True))
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


def arm_differences(results: EcgResults) -> pd.DataFrame:
    """Return the differences between the arms that `EcgResults.compared` names.

    Columns: evaluation, arm, minus, size, meta_size, and those of `difference_columns`.
    """
    return tables.differences(_pairs(results))


def _pairs(results: EcgResults) -> Iterator[tuple[dict[str, Any], Runs, Runs]]:
    for cell in auroc_cells(results).to_dict("records"):
        evaluation, size = cell["evaluation"], cell["size"]
        meta_size = None if math.isnan(cell["meta_size"]) else int(cell["meta_size"])
        for arm, minus in results.compared():
            if arm == cell["arm"]:
                words = {
                    "evaluation": evaluation,
                    "arm": arm,
                    "minus": minus,
                    "size": size,
                    "meta_size": cell["meta_size"],
                }
                (other,) = results.meta_sizes(minus, size)
                a = partial(results.runs, arm, size, evaluation, meta_size)
                yield words, a, partial(results.runs, minus, size, evaluation, other)


def _shown(results: EcgResults, joined: pd.DataFrame) -> pd.DataFrame:
    """Return our AUROC and the paper's, a row per evaluation, arm and meta-PT size, a column per |D_FT|."""
    ours = joined.assign(whose="ours", runs=joined.groupby(_ROW, dropna=False)["n"].transform(_listed))
    papers = joined[joined["paper_mean"].notna()].assign(whose="paper", runs=_PAPERS_RUNS)
    both = pd.concat([ours, papers], ignore_index=True)
    both["place"] = both.groupby(_ROW, sort=False, dropna=False).ngroup()
    both = both.sort_values(["place", "whose"], kind="stable")
    shown = tables.wide(both, [*_ROW, "whose"], _words, _column, _text)
    sizes = [_column({"size": size}) for size in results.section.finetune_sizes]
    return shown[[c for c in shown.columns if c not in sizes] + [c for c in sizes if c in shown.columns]]


def _listed(numbers: pd.Series[int]) -> str:
    return ", ".join(dict.fromkeys(map(str, numbers)))


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
    return (
        tables.cell_text(cell)
        if cell["whose"] == "ours"
        else published(cell["paper_mean"], cell["paper_standard_error"])
    )
