"""The two tables of a run: its metrics (a row for each number) and its series (a row for each number and step).

Both are CSV files in UTF-8. Floats are written with `repr`, the shortest text that reads back as the same float64, and
rows keep their order, so that equal runs write equal bytes. A value may be `nan` or `inf` (from a run that diverged,
and statistics carry it on); it must not be empty or text.

Jobs that train write rows, and jobs that make tables read them as a DataFrame. So pandas, which takes half a second to
import, is imported by the one function that makes a DataFrame.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metapt.errors import DataError
from metapt.files import reading, write_csv

if TYPE_CHECKING:
    import pandas as pd

CELL = ["experiment", "arm", "setting", "evaluation", "metric"]
"""Columns that name a number up to the replicate; the values are those of the paper's table where it has the number."""

COLUMNS = ["experiment", "arm", "replicate", "setting", "evaluation", "metric", "value"]
SERIES_COLUMNS = ["replicate", "step", "name", "value"]

_REQUIRED_TEXT = {"experiment", "arm", "metric", "name"}

Rows = Iterable[Mapping[str, Any]]


class NotMeasuredError(DataError):
    """The metrics table has no such row, because the run was not made."""


def row(
    experiment: str,
    arm: str,
    metric: str,
    value: float,
    *,
    replicate: int | None = None,
    setting: str = "",
    evaluation: str = "",
) -> dict[str, Any]:
    """Return a row of the metrics table. `replicate` is None for a number of the whole run."""
    return dict(zip(COLUMNS, (experiment, arm, replicate, setting, evaluation, metric, value), strict=True))


def rows_of(experiment: str, arm: str, numbers: Mapping[str, float], **where: Any) -> list[dict[str, Any]]:
    """Return a row of the metrics table for each number by metric; `where` holds the keyword arguments of `row`."""
    return [row(experiment, arm, name, value, **where) for name, value in numbers.items()]


def series(name: str, values: Iterable[float], replicate: int = 0) -> list[dict[str, Any]]:
    """Return rows of the series table for values by step."""
    return [{"replicate": replicate, "step": step, "name": name, "value": value} for step, value in enumerate(values)]


def write(rows: Rows | pd.DataFrame, path: Path) -> None:
    """Write the metrics table of a run. Raises DataError as `validate`; then nothing is written."""
    _write(rows, COLUMNS, path)


def read(paths: Path | Sequence[Path]) -> pd.DataFrame:
    """Return the metrics tables of one or more runs as one table with the columns `COLUMNS`, in the order given.

    `replicate` is Int64 (nullable), `value` float64, the rest text ("" where empty). Raises DataError if a file is
    missing or is no such table, or two files have the same number.
    """
    files = [paths] if isinstance(paths, Path) else list(paths)
    return validate([row for path in files for row in read_rows(path)], ", ".join(map(str, files)))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the metrics table of a run. Raises DataError as `read`."""
    return _read(path, COLUMNS)


def write_series(rows: Rows | pd.DataFrame, path: Path) -> None:
    """Write the series table of a run: replicate, step, name, value. Raises DataError as `read_series_rows`."""
    _write(rows, SERIES_COLUMNS, path)


def read_series_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the series table of a run. Raises DataError as `read`, and if a step is no integer."""
    return _read(path, SERIES_COLUMNS)


def validate(rows: Rows | pd.DataFrame, where: str = "the metrics table") -> pd.DataFrame:
    """Return `rows` as a metrics table with the columns and types of `read`.

    Raises DataError if a column is missing or unknown, an experiment, arm or metric is empty, a replicate is no
    integer, a value is no number, or two rows are the same number. The message names `where`.
    """
    return frame(_checked(rows, COLUMNS, where), COLUMNS)


def _checked(rows: Rows | pd.DataFrame, columns: list[str], where: str) -> list[dict[str, Any]]:
    """Return the rows of a table with `columns`, in their types; an empty replicate is None. Raises as `validate`."""
    given = rows if isinstance(rows, Iterable) and not hasattr(rows, "to_dict") else rows.to_dict("records")
    checked, seen = [], set()
    for line, row in enumerate(given, 1):
        _check_columns(row, columns, where)
        checked.append({column: _convert(row[column], column, line, where) for column in columns})
        key = tuple(checked[-1][column] for column in columns if column != "value")
        if key in seen:
            number = ", ".join(f"{c} {v}" for c, v in zip(columns, key, strict=False) if v is not None and v != "")
            raise DataError(f"{where} has more than one row for {number}; a number stands once.")
        seen.add(key)
    return checked


def _check_columns(found: Iterable[str], columns: list[str], where: str) -> None:
    names = list(found)
    if missing := [column for column in columns if column not in names]:
        raise DataError(f"{where} lacks the column {missing[0]!r}; it needs {', '.join(columns)}.")
    if unknown := [column for column in names if column not in columns]:
        raise DataError(f"{where} has the unknown column {unknown[0]!r}; legal are {', '.join(columns)}.")


def _convert(value: Any, column: str, line: int, where: str) -> Any:
    if column == "value":
        try:
            return float(value)
        except (TypeError, ValueError):
            raise DataError(f"{where}: the value of row {line} is {value!r}, which is not a number.") from None
    blank = value is None or value == "" or repr(value) in ("nan", "<NA>")  # pandas' empty cells
    if column in ("step", "replicate"):
        return None if blank and column == "replicate" else _integer(value, column, line, where)
    if blank and column in _REQUIRED_TEXT:
        raise DataError(f"{where}: the {column} of row {line} is empty.")
    return "" if blank else str(value)


def _integer(value: Any, name: str, line: int, where: str) -> int:
    try:
        integer = int(value)
        if isinstance(value, str) or integer == value:
            return integer
    except (TypeError, ValueError, OverflowError):
        pass
    raise DataError(f"{where}: the {name} of row {line} is {value!r}, which is not an integer.")


def frame(rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    """Return checked rows as a table with `columns`, of the types of `read`; a step and a seed are int64."""
    import pandas as pd

    kinds = {"value": "float64", "step": "int64", "seed": "int64", "replicate": "Int64"}
    return pd.DataFrame({c: pd.Series([row[c] for row in rows], dtype=kinds.get(c, "str")) for c in columns})


def _read(path: Path, columns: list[str]) -> list[dict[str, Any]]:
    try:
        with reading(path, "the run that writes it has not been made") as file:
            lines = list(csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""), strict=True))
        if len(widths := {len(line) for line in lines}) != 1:
            raise ValueError(f"its lines have {' or '.join(map(str, sorted(widths))) or 'no'} cells")
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV table: {error}.") from None
    _check_columns(lines[0], columns, str(path))
    return _checked((dict(zip(lines[0], line, strict=True)) for line in lines[1:]), columns, str(path))


def _write(rows: Rows | pd.DataFrame, columns: list[str], path: Path) -> None:
    checked = _checked(rows, columns, str(path))
    write_csv({column: [row[column] for row in checked] for column in columns}, path)
