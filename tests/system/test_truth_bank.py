"""The truth bank scores the stored estimates as the pages say, and refuses tables that it can't score."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from metapt.errors import DataError
from metapt.evaluation.headroom import Grid

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "truth_bank.py"
BANK = runpy.run_path(str(SCRIPT))
STORED = ROOT / "docs" / "results" / "estimators"


@pytest.fixture(scope="module")
def truth() -> list[Grid]:
    return BANK["truth"]()


@pytest.mark.parametrize(
    ("table", "estimator", "score", "evaluation", "mean", "error"),
    [
        ("mnist", "Neumann 1, K = 1", "signs", "full_transfer", 85, 12),
        ("mnist", "secant", "signs", "full_transfer", 97.3, 0.3),
        ("mnist", "secant", "cosine", "full_transfer", 1, 0),
        ("ecg", "Neumann 1, K = 1", "spearman", "full_transfer", -0.12, 0.11),
        ("ecg", "Neumann 1, K = 1", "spearman", "linear_evaluation", 0.11, 0.13),
        ("ecg", "secant, FT of the whole network", "signs", "linear_evaluation", 60, 2),
        ("ppi-3x16-further-seeds", "perturbed runs", "signs", "linear_evaluation", 58, 3),
        ("ppi-4x64", "perturbed runs", "signs", "linear_evaluation", 46, 2),
    ],
)
def test_a_stored_number_comes_out(
    table: str, estimator: str, score: str, evaluation: str, mean: float, error: float, truth: list[Grid]
) -> None:
    slopes = BANK["read"](STORED / f"{table}.csv")
    rows = BANK["scores"](slopes[slopes["estimator"] == estimator], truth)
    found = rows[rows["evaluation"] == evaluation][score]
    digits = 0 if error >= 2 else 1 if mean > 1 else 2
    assert (round(found.mean(), digits), round(found.sem(), digits)) == (mean, error)


def test_an_estimate_of_the_users_is_scored(tmp_path: Path, truth: list[Grid]) -> None:
    words = {"problem": "mnist rotation", "hyperparameter": "mean", "horizon": None, "cost": 1.0}
    slopes = pd.DataFrame(
        [words | {"estimator": name, "pretrain_seed": seed, "slope": slope} for seed in range(8)
         for name, slope in (("right", 2.0), ("wrong", -1e-9), ("zero", 0.0), ("none", np.nan))]
    )  # fmt: skip
    slopes.to_csv(tmp_path / "slopes.csv", index=False)
    rows = BANK["scores"](BANK["read"](tmp_path / "slopes.csv"), truth).groupby("estimator")
    means = rows[["signs", "spearman", "cosine", "choice"]].mean()
    assert (
        means.loc["right", "signs"] == pytest.approx(100 - means.loc["wrong", "signs"]) == pytest.approx(97.3, abs=0.1)
    )
    assert means.loc["wrong", "spearman"] == pytest.approx(-means.loc["right", "spearman"])
    assert means["cosine"].dropna().to_dict() == pytest.approx({"right": 1, "wrong": -1})
    assert means.loc["right", "choice"] > 5 > -3 > means.loc["wrong", "choice"]
    for name in ("zero", "none"):
        assert means.loc[name, ["signs", "spearman", "choice"]].tolist() == [50, 0, 0]


def test_the_ceiling_sees_more_than_a_line_through_few_settings(truth: list[Grid]) -> None:
    means = BANK["rivals"](truth).groupby(["problem", "evaluation", "estimator"])["signs"].mean()
    linear = means["ecg width 8", "linear_evaluation"].round().to_dict()
    assert linear == {"one run of each setting": 85, "linear fit to 6 runs": 49, "linear fit to 12 runs": 75}


def drop_a_slope(slopes: pd.DataFrame) -> pd.DataFrame:
    return slopes.drop(index=slopes.index[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda slopes: slopes.assign(problem="ecg width 9"), "no problem 'ecg width 9'; it has ecg width 8, "),
        (drop_a_slope, "slopes along crop, noise, temperature; ecg width 8 needs one along each of strength, crop"),
        (lambda slopes: slopes.drop(columns="cost"), "is no table of slopes with problem, estimator, "),
        (lambda slopes: slopes.assign(cost=np.nan), "a row lacks its cost"),
        (lambda slopes: slopes[:0], "is empty"),
        (lambda slopes: slopes.assign(slope="x"), "could not convert string to float"),
    ],
)
def test_a_table_that_can_not_be_scored_is_refused(
    change: Callable[[pd.DataFrame], pd.DataFrame], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    change(pd.read_csv(STORED / "ecg.csv")).to_csv(tmp_path / "slopes.csv", index=False)
    monkeypatch.setattr("sys.argv", ["truth_bank.py", str(tmp_path / "slopes.csv")])
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"slopes\.csv is no table of slopes"):
        BANK["read"](tmp_path / "slopes.csv")


def test_the_command_prints_a_row_for_each_estimate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["truth_bank.py", str(STORED / "mnist-further-seeds.csv")])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    lines = [[cell.strip() for cell in line.split("|")] for line in capsys.readouterr().out.splitlines()]
    cells = {(line[3], line[4]): line[6] for line in lines if len(line) > 3}
    assert cells["exact, K = 1", "1"] == "79 ± 19"
    assert len(cells) == 2 + 18 + 2  # header and rule, estimates, rivals
