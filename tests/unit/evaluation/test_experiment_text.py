"""One experiment in the terminal: its arms, their paired differences, its claims and its files."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from metapt.cli import main
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.comparisons import COLUMNS, STAND_IN
from metapt.evaluation.differences import COLUMNS as DIFFERENCES
from metapt.evaluation.experiment_text import find, text
from metapt.evaluation.summary import WIDTH


def written(folder: Path, claims: int = 1) -> Path:
    """Write an experiment with the arms meta and k5, each with three replicates."""
    name, words = "_".join(folder.parts[-2:]), {"setting": "a setting with as many words as it takes to fill a line"}
    rows = [
        metrics.row(name, arm, metric, value + replicate, replicate=replicate, **words)
        for metric in ("error (degrees)", "wall time (s)")
        for arm, value in (("meta", 2.0), ("k5", 1.0))
        for replicate in range(3)
    ]
    metrics.write(rows, folder / "metrics.csv")
    claim = dict.fromkeys(COLUMNS, "") | {"experiment": name, "claim": "k5 finds it", "metric": "error (degrees)"}
    claim |= {"mean": 2.0, "standard_error": 0.6, "n": 3, "paper": STAND_IN, "verdict": "too few seeds"}
    pd.DataFrame([claim] * claims, columns=COLUMNS).to_csv(folder / "claims.csv", index=False)
    compared = {"arm": "k5", "control": "meta", "changed": "unroll_steps: 5, not 1", "metric": "error (degrees)"}
    compared |= words | {"evaluation": "", "mean": -1.0, "standard_error": 0.3, "n": 3, "low": -2.08, "high": 0.08}
    pd.DataFrame([compared], columns=DIFFERENCES).to_csv(folder / "differences.csv", index=False)
    return folder


def test_each_arm_stands_above_its_differences_to_controls(tmp_path: Path) -> None:
    lines = text(written(tmp_path / "mnist/rotation_mean")).splitlines()
    place = lines.index("  k5    2.0 ± 0.6 (3)")
    assert "minus meta: -1.0 ± 0.3 [-2.08, 0.08] (unroll_steps: 5, not 1)" in lines[place + 1]
    assert "  meta  3.0 ± 0.6 (3)" in lines
    assert not any("wall time" in line for line in lines), "no claim is about it"
    assert "mnist_rotation_mean (stand-in data): 1 too few seeds (<)" in lines
    assert any(line.startswith("tables: ") for line in lines)
    assert "wall time (s)" in text(written(tmp_path / "mnist/bptt", claims=0)), "without claims all are shown"


def test_no_line_is_wider_than_a_terminal_but_for_names_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert max(map(len, text(written(Path("results/some/mnist/rotation_mean"))).splitlines())) <= WIDTH


def test_differences_that_are_not_finite_or_exactly_zero_are_shown(tmp_path: Path) -> None:
    folder = written(tmp_path / "mnist/rotation_mean")
    table = pd.read_csv(folder / "differences.csv", keep_default_na=False)
    numbers = ["mean", "standard_error", "low", "high"]
    others = [
        table.assign(control=name, **dict.fromkeys(numbers, value)) for name, value in (("other", None), ("same", 0.0))
    ]
    pd.concat([table, *others]).to_csv(folder / "differences.csv", index=False)
    said = text(folder)
    for words in ("meta: -1.0 ± 0.3 [-2.08, 0.08]", "other: nan (", "same: 0.000 ± 0 [0, 0]"):
        assert f"minus {words}" in said


def test_what_is_no_table_of_differences_is_an_error(tmp_path: Path) -> None:
    folder = written(tmp_path / "mnist/rotation_mean")
    for content in ("", "a,b\n1,2\n"):
        (folder / "differences.csv").write_text(content)
        with pytest.raises(DataError, match="is not a table of differences"):
            text(folder)


def test_the_last_results_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for age, name in ((20, "tour"), (10, "paper"), (30, "planted")):
        folder = written(Path("results") / name / "ecg/full_access")
        os.utime(folder / "differences.csv", (1e9 - age, 1e9 - age))
    assert find("ecg_full_access", None) == Path("results/paper/ecg/full_access")
    assert find("ecg_full_access", Path("results/tour")) == Path("results/tour/ecg/full_access")
    for name in ("ecg_cost", str(tmp_path), "ecg_*"):
        with pytest.raises(DataError, match="there are ecg_full_access"):
            find(name, Path("results/tour"))


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "mnist/rotation_mean")
    assert main(["table", "mnist_rotation_mean", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{text(folder)}\n"
    (folder / "claims.csv").write_text("a,b\n1,2\n")
    assert main(["table", "mnist_rotation_mean", str(tmp_path)]) == 1
    assert "is not a table of claims" in capsys.readouterr().err
