"""Slopes go through the metrics table unchanged, pairs of runs have the slopes of a line, and a summary judges all."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from metapt.config import validate
from metapt.domains.mnist import quantities as mnist
from metapt.errors import ConfigError, DataError
from metapt.evaluation import metrics
from metapt.evaluation.agreement import SINGLE_RUNS, SLOPES
from metapt.evaluation.headroom import REFERENCE
from metapt.evaluation.tables import write_blocks
from metapt.registry import domain
from metapt.training.estimators import Slope
from metapt.twostage.estimators import (
    EstimatorsSection,
    RunPair,
    measured_runs,
    pair_slopes,
    perturbations,
    slopes_of,
)
from metapt.twostage.replicates import pair as replicate
from metapt.twostage.slopes import rows

SEEDS = [0, 1, 2, 3, 4]


def slopes(seed: int, problem: str = "p, intact") -> list[dict[str, Any]]:
    """Rows of two estimators; the second one goes 1 and 30 steps back."""
    found = [
        Slope("near", 1, {"a": torch.tensor(0.5), "b": torch.tensor(-2.0)}, 1.25),
        Slope("far", 1, {"a": torch.tensor(1.0), "b": torch.tensor(math.nan)}, 2.0),
        Slope("far", 30, {"a": torch.tensor(3.0), "b": torch.tensor(seed + 1.0)}, 4.0),
    ]
    return rows("d_estimators", problem, seed, found, lambda gradient: {k: float(v) for k, v in gradient.items()})


def test_slopes_are_the_opposite_of_the_derivatives_of_the_loss_and_survive_the_metrics_table(tmp_path: Path) -> None:
    metrics.write(slopes(0) + slopes(7), tmp_path / "metrics.csv")
    table = slopes_of(metrics.read(tmp_path / "metrics.csv"))
    assert list(table) == SLOPES
    assert len(table) == 12
    assert set(table["problem"]) == {"p, intact"}
    one = table[(table["estimator"] == "far") & (table["horizon"] == 30) & (table["pretrain_seed"] == 7)]
    assert dict(zip(one["hyperparameter"], one["slope"], strict=True)) == {"a": -3.0, "b": -8.0}
    assert set(one["cost"]) == {4.0}
    assert table["slope"].isna().sum() == 2


def results(name: str, values: dict[str, dict[int, float]], **given: Any) -> Any:
    """Return results whose arms have validation accuracies by replicate."""
    found = [
        metrics.row(name, arm, mnist.VALIDATION_ACCURACY, value, replicate=number, evaluation="full_transfer")
        for arm, numbers in values.items()
        for number, value in numbers.items()
    ]
    record = domain("mnist").experiments["estimators"]
    words: dict[str, Any] = {"config": None, "section": None, "words": {}, "series": pd.DataFrame(), "machines": {}}
    table = metrics.validate(found + given.pop("rows", []))
    return record.results(name=name, metrics=table, files={}, **(words | given))


def test_pairs_along_single_hyperparameters_have_the_slope_of_their_two_ends() -> None:
    pairs = [RunPair("a-low", "a-high", {"a": 0.5}), RunPair("b-low", "b-high", {"b": 2.0})]
    means = {"a-low": 70.0, "a-high": 73.0, "b-low": 71.0, "b-high": 69.0}
    values = {
        arm: {replicate(seed, n): mean + 5 * seed + n for seed in SEEDS for n in (0, 1)} for arm, mean in means.items()
    }
    found = pair_slopes(results("x", values), "p", "secant", pairs, mnist.VALIDATION_ACCURACY, "full_transfer")
    for seed in SEEDS:
        own = found[found["pretrain_seed"] == seed]
        assert dict(zip(own["hyperparameter"], own["slope"], strict=True)) == {"a": 3.0, "b": -0.5}
    assert set(found["cost"]) == {4}
    assert found["horizon"].isna().all()


def test_a_run_that_diverged_makes_the_slope_of_its_pt_seed_unknown() -> None:
    values = {arm: {replicate(seed, n): 70.0 for seed in SEEDS for n in (0, 1)} for arm in ("low", "high")}
    values["high"][replicate(SEEDS[0], 1)] = math.nan
    pairs = [RunPair("low", "high", {"a": 0.5})]
    found = pair_slopes(results("x", values), "p", "secant", pairs, mnist.VALIDATION_ACCURACY, "full_transfer")
    assert found.set_index("pretrain_seed")["slope"].isna().to_dict() == {seed: seed == SEEDS[0] for seed in SEEDS}


def test_perturbations_of_all_hyperparameters_find_the_slopes_of_a_line_on_average() -> None:
    names, truth = ["a", "b", "c"], np.array([1.0, -2.0, 0.25])
    pairs = perturbations(names, 400, 0.1)
    assert pairs[:3] == perturbations(names, 3, 0.1)
    assert {abs(length) for each in pairs for length in each.direction.values()} == {0.1}
    values = {}
    for each in pairs:
        move = float(truth @ [each.direction[name] for name in names])
        values |= {each.low: {0: 50 - move}, each.high: {0: 50 + move}}
    found = pair_slopes(results("x", values), "p", "perturbed", pairs, mnist.VALIDATION_ACCURACY, "full_transfer")
    np.testing.assert_allclose(found.set_index("hyperparameter")["slope"][names], truth, atol=0.35)


def test_a_missing_table_of_runs_is_an_error_that_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.csv, which is not there \(looked for from .*\); name the table\.csv"):
        measured_runs(EstimatorsSection(runs=[str(tmp_path / "none.csv")]), ["p"], ["a"])


def test_a_changed_table_of_runs_changes_the_summary(runs: Path) -> None:
    section = EstimatorsSection(runs=[str(runs)])
    first = measured_runs(section, [mnist.PROBLEM], ["mean"])
    rows = pd.read_csv(runs)
    rows.assign(test=rows["test"] + 1).to_csv(runs, index=False)
    assert first != measured_runs(section, [mnist.PROBLEM], ["mean"])


@pytest.mark.parametrize(
    ("problem", "hyperparameters", "words"),
    [
        ("mnist other", ["mean"], r"the problem 'mnist other'; .* There: mnist rotation\."),
        (mnist.PROBLEM, ["noise"], r"has the hyperparameters mean; the estimates are along noise; name the table"),
        (mnist.PROBLEM, ["mean", "noise"], r"mean; the estimates are along mean, noise; name the table"),
        (mnist.PROBLEM, [], r"has the hyperparameters mean; the estimates are along ; name the table"),
    ],
)
def test_a_table_of_other_runs_is_refused_before_any_estimate(
    runs: Path, problem: str, hyperparameters: list[str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        measured_runs(EstimatorsSection(runs=[str(runs)]), [problem], hyperparameters)


def test_a_file_that_is_no_table_of_runs_is_refused_before_any_estimate(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="lacks the column 'experiment'; a table of runs has"):
        measured_runs(EstimatorsSection(runs=[str(tmp_path / "table.csv")]), ["p"], ["a"])


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A table of runs whose accuracy rises up to 90 degrees, and falls beyond."""
    found = []
    for number, mean in enumerate([45.0, 5.0, 15.0, 30.0, 60.0, 75.0, 88.0, 120.0, 170.0]):
        for seed in SEEDS:
            words: list[Any] = ["mnist_headroom", "mnist", mnist.PROBLEM, "full_transfer"]
            words += [f"s{number}" if number else REFERENCE, mean, seed, 0]
            accuracy = 90 - abs(90 - mean) / 10 + 0.01 * seed
            found.append([*words, accuracy, accuracy])
    columns = [
        "experiment",
        "domain",
        "problem",
        "evaluation",
        "setting",
        "mean",
        "pretrain_seed",
        "finetune_seed",
        "validation",
        "test",
    ]
    pd.DataFrame(found, columns=columns).to_csv(tmp_path / "runs.csv", index=False)
    return tmp_path / "runs.csv"


def test_the_summary_of_mnist_compares_the_settings_near_the_reference(runs: Path, tmp_path: Path) -> None:
    config: Any = validate({"mnist": {"source": "mnist", "estimators": {"runs": [str(runs)]}}}).mnist
    values = {
        name: {replicate(seed, 0): value + seed for seed in SEEDS}
        for name, value in (("secant-low", 80.0), ("secant-high", 84.5))
    }
    own = []
    for seed in SEEDS:
        found = [
            Slope("right", 1, {"mean": torch.tensor(-1.0)}, 1.5),
            Slope("wrong", 9, {"mean": torch.tensor(2.0)}, 3.0),
        ]
        own += rows("mnist_estimators", mnist.PROBLEM, seed, found, lambda gradient: {"mean": float(gradient["mean"])})
    words = measured_runs(config.estimators, [mnist.PROBLEM], ["mean"])
    given = {"config": config, "section": config.estimators, "words": words}
    made = results("mnist_estimators", values, rows=own, **given)
    record = domain("mnist").experiments["estimators"]
    blocks, numbers = record.tables(made)
    (table,) = blocks.values()
    by_name = table.set_index("estimator")
    assert list(by_name.index[:4]) == ["right", "wrong", "secant", SINGLE_RUNS]
    assert by_name.loc["right", "right signs (%)"].startswith("100")
    assert by_name.loc["wrong", "right signs (%)"].startswith("0")
    assert by_name.loc["secant", "horizon"] == "whole run"
    assert numbers[numbers["estimator"] == "secant"]["slope"].to_list() == pytest.approx([0.1] * len(SEEDS))
    write_blocks(blocks, tmp_path / "table", numbers)
    assert list(pd.read_csv(tmp_path / "table.csv")) == SLOPES
    claims = {claim.arm: claim.measure().estimate for claim in record.comparisons(made)}
    assert SINGLE_RUNS not in claims
    assert (claims["right"].mean, claims["wrong"].mean, claims["right"].n) == (100, 0, len(SEEDS))
    figure = record.figure(made)
    assert [axis.get_xlabel() for axis in figure.axes] == [
        "PT steps that the estimate goes back",
        "cost (plain PT runs)",
    ]
