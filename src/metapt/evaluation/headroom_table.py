"""Tables of runs in files, of which `metapt.evaluation.headroom` computes what settings gain.

Tables that were made on different days can be joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from metapt.errors import DataError
from metapt.evaluation.headroom import CELL, RUN, Grid, grid, hyperparameters
from metapt.files import reading


def read(paths: Sequence[Path]) -> pd.DataFrame:
    """Return the tables of runs in CSV files as one. Raises DataError as `check`, and for a file that is no table."""
    tables = []
    for path in paths:
        try:
            with reading(path, "name the table.csv of a headroom"):
                tables.append(check(pd.read_csv(path), str(path)))
        except ValueError as error:
            why = str(error).strip()
            raise DataError(f"{path} is no table of runs ({why}); name the table.csv of a headroom.") from None
    return check(pd.concat(tables, ignore_index=True), " and ".join(map(str, paths)))


def check(rows: pd.DataFrame, where: str = "the table of runs") -> pd.DataFrame:
    """Return a table of runs.

    Raises DataError, which names `where`, if a column is missing, a run has no name or seed, or a run stands twice.
    """
    if missing := [name for name in RUN if name not in rows]:
        raise DataError(f"{where} lacks the column {missing[0]!r}; a table of runs has {', '.join(RUN)}.")
    for name in RUN[:-2]:
        empty = rows[name].isna().to_numpy()
        if empty.any():
            row = int(empty.argmax()) + 1
            raise DataError(f"{where} has no {name} in row {row}; it is cut or was edited, so make it again.")
    for name in (*RUN[-2:], *hyperparameters(rows.to_dict("records"))):
        if not pd.api.types.is_numeric_dtype(rows[name]):
            raise DataError(f"{where} has text in the column {name!r}; results and hyperparameters are numbers.")
    again = rows[rows.duplicated(RUN[:-2])]
    if len(again):
        run = ", ".join(f"{name} {again.iloc[0][name]}" for name in RUN[:-2])
        raise DataError(f"{where} has a run twice: {run}; name each file once, and each seed in one file.")
    return rows


def grids(rows: pd.DataFrame) -> Iterator[Grid]:
    """Yield the results of each problem and evaluation in a table of runs, in order of first appearance.

    Raises DataError as `metapt.evaluation.headroom.grid`.
    """
    for _, part in rows.groupby(CELL, sort=False):
        yield grid(part.to_dict("records"))
