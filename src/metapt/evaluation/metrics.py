"""The two tables of a run: its metrics (a row for each number) and its series (a row for each number and step).

Both are CSV files in UTF-8. Floats are written with `repr`, the shortest text that reads back as the same float64, and
rows keep their order, so that equal runs write equal bytes. A value may be `nan` or `inf` (from a run that diverged,
and statistics carry it on); it must not be empty or text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from metapt.errors import DataError
from metapt.files import atomic_path

CELL = ["experiment", "arm", "setting", "evaluation", "metric"]
"""Columns that name a number up to the replicate; the values are those of the paper's table where it has the number."""

COLUMNS = ["experiment", "arm", "replicate", "setting", "evaluation", "metric", "value"]
SERIES_COLUMNS = ["replicate", "step", "name", "value"]

_REQUIRED_TEXT = {"experiment", "arm", "metric", "name"}

Rows = pd.DataFrame | Iterable[Mapping[str, Any]]


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
    """Return a row of the metrics table. `replicate` is None for a number of the whole run.

    >>> row("mnist_bptt", "meta", "FT test accuracy (%)", 87.5)["replicate"] is None
    True
    """
    return {
        "experiment": experiment,
        "arm": arm,
        "replicate": replicate,
        "setting": setting,
        "evaluation": evaluation,
        "metric": metric,
        "value": value,
    }


def write(rows: Rows, path: Path) -> None:
    """Write the metrics table of a run. Raises DataError as `validate`; then nothing is written."""
    _write_csv(validate(rows, where=str(path)), path)


def read(paths: Path | Sequence[Path]) -> pd.DataFrame:
    """Return the metrics tables of one or more runs as one table with the columns `COLUMNS`, in the order given.

    `replicate` is Int64 (nullable), `value` float64, the rest text ("" where empty). Raises DataError if a file is
    missing or is no such table, or two files have the same number.
    """
    files = [paths] if isinstance(paths, Path) else list(paths)
    tables = [validate(_read_csv(path), where=str(path)) for path in files]
    if not tables:
        return validate([], where="no file")
    return validate(pd.concat(tables, ignore_index=True), where=", ".join(map(str, files)))


def write_series(rows: Rows, path: Path) -> None:
    """Write the series table of a run: replicate, step, name, value. Raises DataError as `validate_series`."""
    _write_csv(validate_series(rows, where=str(path)), path)


def read_series(path: Path) -> pd.DataFrame:
    """Return the series table of a run: replicate Int64 (nullable), step int64, name text, value float64.

    Raises DataError if the file is missing or is no such table.
    """
    return validate_series(_read_csv(path), where=str(path))


def validate(rows: Rows, where: str = "the metrics table") -> pd.DataFrame:
    """Return `rows` as a metrics table with the columns and types of `read`.

    Raises DataError if a column is missing or unknown, an experiment, arm or metric is empty, a replicate is no
    integer, a value is no number, or two rows are the same number. The message names `where`.
    """
    return _validate(rows, COLUMNS, where)


def validate_series(rows: Rows, where: str = "the series table") -> pd.DataFrame:
    """Return `rows` as a series table. Raises DataError as `validate`, and if a step is no integer."""
    return _validate(rows, SERIES_COLUMNS, where)


def select(
    metrics: pd.DataFrame,
    *,
    experiment: str,
    arm: str,
    metric: str,
    setting: str | None = None,
    evaluation: str | None = None,
) -> pd.Series[float]:
    """Return the values of a cell of the metrics table, indexed by replicate.

    `setting` and `evaluation` may be left out if only one cell remains. Raises NotMeasuredError if no row matches.
    Raises DataError if rows of several cells match.
    """
    wanted = {"experiment": experiment, "arm": arm, "metric": metric, "setting": setting, "evaluation": evaluation}
    wanted = {column: word for column, word in wanted.items() if word is not None}
    found = metrics
    for column, word in wanted.items():
        found = found[found[column] == word]
    asked = ", ".join(f"{column} {word!r}" for column, word in wanted.items())
    if found.empty:
        raise NotMeasuredError(f"No run has measured {asked}.")
    cells = found[CELL].drop_duplicates()
    if len(cells) > 1:
        several = "; ".join(f"setting {c.setting!r}, evaluation {c.evaluation!r}" for c in cells.itertuples())
        raise DataError(
            f"{asked} stands for {len(cells)} different numbers ({several}); name the setting and the evaluation."
        )
    return found.set_index("replicate")["value"]


def _validate(rows: Rows, columns: list[str], where: str) -> pd.DataFrame:
    given = rows if isinstance(rows, pd.DataFrame) else _frame(rows, columns)
    missing = [c for c in columns if c not in given.columns]
    if missing:
        raise DataError(f"{where} lacks the column {missing[0]!r}; it needs {', '.join(columns)}.")
    unknown = [c for c in given.columns if c not in columns]
    if unknown:
        raise DataError(f"{where} has the unknown column {unknown[0]!r}; legal are {', '.join(columns)}.")
    table = pd.DataFrame({c: _convert(given[c], c, where) for c in columns})
    key = [c for c in columns if c != "value"]
    duplicates = table[table.duplicated(key)]
    if len(duplicates):
        first = duplicates[key].iloc[0].to_dict()
        number = ", ".join(f"{c} {v}" for c, v in first.items() if not pd.isna(v) and v != "")
        raise DataError(f"{where} has more than one row for {number}; a number stands once.")
    return table


def _frame(rows: Iterable[Mapping[str, Any]], columns: list[str]) -> pd.DataFrame:
    given = list(rows)
    return pd.DataFrame(given, dtype=object) if given else pd.DataFrame(columns=columns, dtype=object)


def _convert(column: pd.Series[Any], name: str, where: str) -> pd.Series[Any]:
    if name == "value":
        return pd.Series([_number(v, i, where) for i, v in enumerate(column, 1)], dtype="float64")
    if name == "step":
        return pd.Series([_integer(v, name, i, where) for i, v in enumerate(column, 1)], dtype="int64")
    if name == "replicate":
        integers = [pd.NA if _blank(v) else _integer(v, name, i, where) for i, v in enumerate(column, 1)]
        return pd.Series(integers, dtype="Int64")
    words = ["" if _blank(v) else str(v) for v in column]
    if name in _REQUIRED_TEXT and "" in words:
        raise DataError(f"{where}: the {name} of row {words.index('') + 1} is empty.")
    return pd.Series(words, dtype="str")


def _blank(value: Any) -> bool:
    return bool(pd.isna(value)) or value == ""


def _number(value: Any, line: int, where: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise DataError(f"{where}: the value of row {line} is {value!r}, which is not a number.") from None


def _integer(value: Any, name: str, line: int, where: str) -> int:
    try:
        integer = int(value)
        if isinstance(value, str) or integer == value:
            return integer
    except (TypeError, ValueError, OverflowError):
        pass
    raise DataError(f"{where}: the {name} of row {line} is {value!r}, which is not an integer.")


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{path} is missing; the run that writes it has not been made.") from None
    except (OSError, ValueError) as error:  # ValueError: of pandas' parser, or a wrong encoding
        raise DataError(f"{path} is not a CSV table: {error}.") from None


def _write_csv(table: pd.DataFrame, path: Path) -> None:
    text = table.assign(value=[repr(float(v)) for v in table["value"]])
    with atomic_path(path) as temporary:
        text.to_csv(temporary, index=False, lineterminator="\n", encoding="utf-8")
