"""Agreement of estimates with measured results."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau, spearmanr

from metapt.errors import DataError
from metapt.evaluation.agreement import SINGLE_RUNS, SLOPES, agreements, linear_fits, right_signs, spearman
from metapt.evaluation.agreement_report import comparisons, measured
from metapt.evaluation.comparisons import decide
from metapt.evaluation.headroom import Grid

SETTINGS, SEEDS = 12, 4
CELL = {"experiment": "e", "domain": "d", "problem": "p", "evaluation": "v"}


def grid(noise: float = 0.0, seed: int = 0) -> Grid:
    """Results that rise with a and fall with the logarithm of b."""
    random = np.random.default_rng(seed)
    index = [f"s{number:02d}" for number in range(SETTINGS)]
    place = pd.DataFrame({"a": random.uniform(0, 1, SETTINGS), "b": np.exp(random.normal(0, 1, SETTINGS))}, index)
    truth = 2 * place["a"] - np.log(place["b"])
    test = np.stack([truth + noise * random.normal(size=SETTINGS) for _ in range(SEEDS)], 1)
    along = {name: place[name].to_numpy() for name in place}
    return Grid(CELL, index, list(range(SEEDS)), along, test - 1, test, None)


def table(estimator: str, a: float, b: float, horizon: float = 1, seeds: int = SEEDS) -> pd.DataFrame:
    rows = [
        ("p", estimator, horizon, seed, name, value, 1.5)
        for seed in range(seeds)
        for name, value in (("a", a), ("b", b))
    ]
    return pd.DataFrame(rows, columns=SLOPES)


def test_the_true_slopes_agree_and_opposite_ones_disagree_completely() -> None:
    slopes = pd.concat([table("true", 2, -1), table("opposite", -2, 1)])
    right, wrong, single = agreements(grid(), slopes, ["b"])
    assert (right.spearman.mean, right.signs.mean) == (pytest.approx(1), pytest.approx(100))
    assert (wrong.spearman.mean, wrong.signs.mean) == (pytest.approx(-1), pytest.approx(0))
    assert (right.estimator, right.horizon, right.cost, right.finite) == ("true", 1, 1.5, SEEDS)
    assert (single.estimator, single.cost, single.spearman.mean) == (SINGLE_RUNS, SETTINGS, pytest.approx(1))


def test_nothing_is_decided_since_pt_seeds_share_one_truth() -> None:
    found = list(agreements(grid(), table("true", 2, -1, seeds=8), ["b"]))
    assert found[0].signs.low > 50
    (judged,) = decide(comparisons(found, {}))
    assert judged.word == "inconclusive"
    assert judged.measured.endswith("not decided, since all PT seeds share one truth and its settings")


def test_a_seed_is_judged_by_the_other_seeds() -> None:
    measured = grid(noise=1.0)
    *_, single = agreements(measured, table("t", 2, -1), ["b"])
    expected = [
        spearmanr(measured.test[:, seed], np.delete(measured.test, seed, 1).mean(1)).statistic for seed in range(SEEDS)
    ]
    assert single.spearman.mean == pytest.approx(np.mean(expected))
    assert single.spearman.n == SEEDS


def test_random_slopes_agree_by_chance() -> None:
    random = np.random.default_rng(1)
    found = []
    for seed in range(200):
        first, _ = agreements(grid(seed=seed), table("t", *random.normal(size=2), seeds=2), ["b"])
        found.append((first.spearman.mean, first.signs.mean))
    mean = np.mean(found, axis=0)
    assert abs(mean[0]) < 0.15
    assert abs(mean[1] - 50) < 6


def test_estimates_that_are_not_finite_count_as_no_knowledge() -> None:
    slopes = table("t", 2, -1)
    slopes.loc[slopes["pretrain_seed"] == 0, "slope"] = math.nan
    found, _ = agreements(grid(), slopes, ["b"])
    assert found.finite == SEEDS - 1
    assert found.spearman.mean == pytest.approx((SEEDS - 1) / SEEDS)
    assert found.signs.mean == pytest.approx((50 + 100 * (SEEDS - 1)) / SEEDS)


def test_whole_runs_have_no_horizon() -> None:
    found, _ = agreements(grid(), table("secant", 2, -1, horizon=math.nan), ["b"])
    assert found.horizon is None


def test_slopes_of_other_problems_are_left_out_and_missing_ones_are_errors() -> None:
    other = table("t", 2, -1).assign(problem="q")
    assert [each.estimator for each in agreements(grid(), other)] == [SINGLE_RUNS]
    with pytest.raises(DataError, match="are along a, and the table of runs has a, b"):
        list(agreements(grid(), table("t", 2, -1).query("hyperparameter == 'a'")))


def test_slopes_of_more_hyperparameters_and_of_other_problems_alone_are_errors() -> None:
    more = pd.concat([table("t", 2, -1), table("t", 2, -1).query("hyperparameter == 'a'").assign(hyperparameter="c")])
    with pytest.raises(DataError, match="are along a, b, c, and the table of runs has a, b"):
        list(agreements(grid(), more))
    runs = pd.DataFrame(
        [
            {
                **CELL,
                "setting": f"s{number}",
                "a": number,
                "pretrain_seed": seed,
                "finetune_seed": 0,
                "validation": number,
            }
            for number in range(3)
            for seed in range(2)
        ]
    )
    with pytest.raises(DataError, match="the table of runs is of 'p', and the estimates are of 'q'; name a table"):
        measured(runs.assign(test=runs["validation"]), table("t", 2, -1).assign(problem="q"), ())


def test_a_linear_fit_to_enough_settings_without_noise_is_right() -> None:
    few, many = linear_fits(grid(), [1, 6, 11], ["b"])
    assert (many.cost, many.spearman.mean) == (6, pytest.approx(1))
    assert few.spearman.mean == 0  # one setting has no slope


def test_the_measures_are_those_of_scipy() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 20))
    assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert right_signs(x, y) == pytest.approx(50 * (1 + kendalltau(x, y).statistic))
    assert spearman(np.ones(20), y) == 0
    assert right_signs(np.ones(20), y) == 50
    y[0] = math.nan
    assert math.isnan(spearman(x, y))
    assert math.isnan(right_signs(x, y))
