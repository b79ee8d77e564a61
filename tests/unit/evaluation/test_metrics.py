"""The tables of runs: writing and reading, equal bytes for equal rows, and errors for bad tables."""

import math

import numpy as np
import pytest

from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.metrics import row

ROWS = [
    row("mnist_bptt", "meta", "FT test accuracy (%)", 0.1 + 0.2, replicate=0),
    row("mnist_bptt", "meta", "FT test accuracy (%)", float(np.float32(87.6)), replicate=1, setting="NA"),
    row("mnist_bptt", "meta", "wall time (s)", 12, setting="in [45,135], target 90"),
    *(row("e", "a", f"of a diverged run {value}", value) for value in (math.nan, math.inf, -math.inf)),
]


def test_reads_back_what_was_written(tmp_path):
    metrics.write(ROWS, tmp_path / "metrics.csv")
    table = metrics.read(tmp_path / "metrics.csv")
    assert list(table.columns) == metrics.COLUMNS
    np.testing.assert_equal(table["value"].tolist(), [r["value"] for r in ROWS])
    assert table["setting"].tolist() == ["", "NA", "in [45,135], target 90", "", "", ""]
    assert table["replicate"].dtype == "Int64"
    assert table["replicate"].isna().tolist() == [False, False, True, True, True, True]


def test_equal_runs_leave_equal_bytes(tmp_path):
    metrics.write(ROWS, tmp_path / "rows.csv")
    metrics.write(metrics.read(tmp_path / "rows.csv"), tmp_path / "again.csv")
    written = (tmp_path / "rows.csv").read_bytes()
    expected = f"{','.join(metrics.COLUMNS)}\nmnist_bptt,meta,0,,,FT test accuracy (%),0.30000000000000004\n"
    assert written == (tmp_path / "again.csv").read_bytes()
    assert written.startswith(expected.encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": "high"}, r"value of row 1 is 'high', which is not a number"),
        ({"value": ""}, r"value of row 1 is '', which is not a number"),
        ({"value": None}, r"value of row 1 is None, which is not a number"),
        ({"replicate": 1.5}, r"replicate of row 1 is 1\.5, which is not an integer"),
        ({"replicate": "one"}, r"replicate of row 1 is 'one', which is not an integer"),
        ({"arm": ""}, r"the arm of row 1 is empty"),
        ({"seed": 3}, r"unknown column 'seed'"),
        ({"metric": ...}, r"lacks the column 'metric'"),
        ({"replicate": 1, "setting": "NA"}, r"more than one row for experiment mnist_bptt"),
        (ROWS[2] | {"value": 1.0}, r"more than one row for experiment mnist_bptt"),
    ],
)
def test_bad_rows_are_refused_and_nothing_is_written(tmp_path, change, message):
    bad = {column: value for column, value in (ROWS[0] | change).items() if value is not ...}
    with pytest.raises(DataError, match=message):
        metrics.write([bad, *ROWS[1:]], tmp_path / "metrics.csv")
    assert list(tmp_path.iterdir()) == []


def test_runs_stand_below_one_another_in_the_order_given_and_no_two_have_the_same_number(tmp_path):
    metrics.write(ROWS[2:], tmp_path / "b.csv")
    metrics.write(ROWS[:2], tmp_path / "a.csv")
    assert metrics.read([tmp_path / "b.csv", tmp_path / "a.csv"])["metric"].iloc[0] == "wall time (s)"
    assert metrics.read([]).columns.tolist() == metrics.COLUMNS
    metrics.write(ROWS[:1], tmp_path / "b.csv")
    with pytest.raises(DataError, match=r"a\.csv, .*b\.csv has more than one row"):
        metrics.read([tmp_path / "a.csv", tmp_path / "b.csv"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing"),
        (b"", "is not a CSV table"),
        (b"a,b\n1,2,3\n1\n4,5,6,7\n", "is not a CSV table"),
        (b"\xff\xfe,\x00", "is not a CSV table"),
    ],
)
def test_bad_files_are_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        metrics.read(tmp_path / "metrics.csv")


def test_series(tmp_path):
    rows = [{"replicate": r, "step": s, "name": "mean", "value": 90 + r / 3 + s} for s in range(3) for r in (0, 1)]
    metrics.write_series(rows, tmp_path / "series.csv")
    series = metrics.frame(metrics.read_series_rows(tmp_path / "series.csv"), metrics.SERIES_COLUMNS)
    assert series.to_dict("records") == rows
    assert series.dtypes["step"] == "int64"
    for step in ("x", "", None, 0.5):
        with pytest.raises(DataError, match=f"the step of row 1 is {step!r}, which is not an integer"):
            metrics.write_series([rows[0] | {"step": step}], tmp_path / "series.csv")
    metrics.write_series([], tmp_path / "series.csv")
    assert metrics.read_series_rows(tmp_path / "series.csv") == []
