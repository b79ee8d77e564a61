"""Tables of AUROC beside the paper's, and differences and claims between arms, paired by PT seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from metapt.evaluation.comparisons import BEYOND_THE_PAPER, NOT_BELOW, Comparison, Sanity
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate
from metapt.evaluation.tables import mean_and_error
from metapt.twostage.seeds import difference, difference_columns

Row = Mapping[Hashable, Any]
Runs = Callable[[], "pd.Series[float]"]
"""Returns values of FT runs, indexed by pair of seeds; raises NotMeasuredError if there are none."""

OVER_RUNS = (
    "in brackets the standard error over the means of the PT seeds, which takes into account that FT runs share an "
    "encoder"
)
DIFFERENCES = "(percentage points): mean ± standard error over PT seeds, paired; in brackets the 95% t interval"


def differences(pairs: Iterable[tuple[Mapping[str, Any], Runs, Runs]]) -> pd.DataFrame:
    """Return a table with a row for each pair of cells that were both run: its words, and `difference_columns`."""
    rows = []
    for words, a, b in pairs:
        try:
            values = a(), b()
        except NotMeasuredError:
            continue
        rows.append({**words, **difference_columns(*values)})
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
    text += f" [{row['low']:.1f}, {row['high']:.1f}]"
    if not p_value:
        return text
    p = row["p_value"]
    return f"{text}, " + ("p < 0.001" if p < 0.001 else f"p = {p:.2g}")


def cell_text(cell: Row) -> str:
    """Return mean ± standard error [standard error over PT seeds] of a cell (see `aurocs.auroc_cells`)."""
    error = cell["seed_standard_error"]
    return mean_and_error(cell["mean"], cell["standard_error"]) + ("" if math.isnan(error) else f" [{error:.1f}]")


def numbers_of(name: str, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the parts as one table for the CSV.

    The first column is the experiment's name, and counts are integers.
    """
    numbers = pd.concat([part for part in parts if len(part)], ignore_index=True)
    numbers.insert(0, "experiment", name)
    return numbers.assign(**{count: numbers[count].astype("Int64") for count in ("n", "seeds") if count in numbers})


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
    ours, others = runs
    sanity = None
    if without is not None:
        sanity = Sanity(f"{control} beats {without[0]}", partial(_difference, others, without[1]))
    measure = partial(_difference, ours, others)
    return Comparison(text, arm, control, metric, NOT_BELOW, measure, evaluation, paper, sanity=sanity)


def _difference(a: Runs, b: Runs) -> Estimate:
    return difference(a(), b())
