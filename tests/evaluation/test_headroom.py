"""Variance shares, gains and responses have known values on data that were simulated with known components."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from metapt.errors import DataError
from metapt.evaluation import headroom_report
from metapt.evaluation.headroom import (
    REFERENCE,
    RUN,
    check,
    grids,
    headroom,
    held_out_gain,
    largest_gain,
    paired_deviation,
    read,
    response,
    seeds_to_see,
    variance_shares,
)
from metapt.evaluation.statistics import Estimate

from .jackknife import jackknifed

Random = np.random.Generator


def simulated(
    random: Random, settings: int, seeds: int, deviations: tuple[float, float, float]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return results [settings, seeds] and the settings' effects, given the deviations of settings, seeds, rest."""
    setting, seed, rest = deviations
    effects = setting * random.normal(size=(settings, 1))
    y = 80 + effects + seed * random.normal(size=(1, seeds)) + rest * random.normal(size=(settings, seeds))
    return y, effects[:, 0]


def rows(values: NDArray[Any], finetune: int = 1, **words: Any) -> pd.DataFrame:
    """Return a table of runs of results [settings, seeds], whose first setting is the reference."""
    cells = [
        {"experiment": "e", "domain": "d", "problem": "p", "evaluation": "linear_evaluation"}
        | {"setting": f"s{place}" if place else REFERENCE, "strength": 2.0**place, "pretrain_seed": seed}
        | {"finetune_seed": number, "validation": value, "test": value}
        | words
        for place, line in enumerate(values)
        for seed, value in enumerate(line)
        for number in range(finetune)
    ]
    return pd.DataFrame(cells)


def test_the_variances_are_unbiased() -> None:
    random = np.random.default_rng(0)
    found = [
        [part.variance for part in variance_shares(simulated(random, 24, 8, (2.0, 1.5, 1.0))[0], draws=2).values()]
        for _ in range(1500)
    ]
    mean, error = np.mean(found, 0), np.std(found, 0) / np.sqrt(len(found))
    assert (abs(mean - [4.0, 2.25, 1.0]) < 4 * error).all()
    assert (error < 0.05).all()


@pytest.mark.parametrize("deviations", [(1.0, 1.0, 1.0), (0.4, 1.0, 1.0), (2.0, 0.0, 1.0)])
def test_the_interval_of_a_share_covers_the_truth(deviations: tuple[float, float, float]) -> None:
    random, variances = np.random.default_rng(1), np.square(deviations)
    truth = 100 * variances / variances.sum()
    inside = []
    for number in range(300):
        y = simulated(random, 24, 8, deviations)[0]
        found = variance_shares(y, draws=1000, seed=number).values()
        inside.append([part.low <= true <= part.high for part, true in zip(found, truth, strict=True)])
    assert (np.mean(inside, 0) > 0.9).all()


def test_shares_add_up_and_equal_results_have_none() -> None:
    shares = variance_shares(np.random.default_rng(2).normal(size=(5, 3)))
    assert sum(part.share for part in shares.values()) == pytest.approx(100)
    assert {part.share for part in variance_shares(np.ones((4, 3))).values()} == {0.0}


def test_settings_alone_explain_all_without_noise() -> None:
    shares = variance_shares(np.arange(6.0)[:, None] + np.zeros((6, 4)))
    assert shares["settings"].share == pytest.approx(100)
    assert shares["settings"].variance == pytest.approx(np.arange(6.0).var(ddof=1))


def test_held_out_and_largest_gain_enclose_the_truth_on_average() -> None:
    random, held_out, largest, best = np.random.default_rng(3), [], [], []
    for _ in range(400):
        y, effects = simulated(random, 12, 6, (1.0, 1.0, 1.0))
        reference = y.mean() * 0 + 80 + random.normal(size=6)
        held_out.append(held_out_gain(y, reference, y).mean)
        largest.append(largest_gain(y, reference)[1])
        best.append(effects.max())
    assert np.mean(held_out) < np.mean(best) < np.mean(largest)
    assert np.mean(held_out) > 0.7 * np.mean(best)


def test_the_held_out_gain_is_nothing_where_nothing_can_be_gained() -> None:
    random = np.random.default_rng(4)
    found = []
    for _ in range(400):
        y, _ = simulated(random, 12, 6, (0.0, 1.0, 1.0))
        found.append(held_out_gain(y[1:], y[0], y[1:]))
    means = np.array([gain.mean for gain in found])
    assert abs(means.mean()) < 4 * means.std() / np.sqrt(len(means))
    assert np.mean([gain.low > 0 for gain in found]) < 0.06


@pytest.mark.parametrize(
    ("gain_of", "seeds", "low", "high"),
    [
        (held_out_gain, 4, 0.03, 0.14),
        (held_out_gain, 8, 0.03, 0.14),
        (jackknifed, 4, 0.003, 0.07),
        pytest.param(jackknifed, 8, 0.003, 0.07, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("deviation", [0.0, 1.0])
def test_the_interval_of_a_held_out_gain_misses_it_too_often_and_that_of_a_jackknife_too_seldom(
    gain_of: Callable[..., Estimate], seeds: int, low: float, high: float, deviation: float
) -> None:
    """The reference is as noisy as a setting; the settings stay the same in all repetitions."""
    random = np.random.default_rng(5)
    effects = deviation * random.normal(size=(24, 1))
    found = [gain_of(y := effects + random.normal(size=(24, seeds)), random.normal(size=seeds), y) for _ in range(600)]
    mean = np.mean([gain.mean for gain in found])
    missed = np.mean([not gain.low <= mean <= gain.high for gain in found])
    assert low < missed < high


def test_a_criterion_that_chooses_the_worst_setting_loses() -> None:
    test = np.array([[1.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]])
    assert held_out_gain(test, np.full(4, 2.0), test).mean == 1.0
    assert held_out_gain(test, np.full(4, 2.0), -test).mean == -1.0


@pytest.mark.parametrize("seeds", [2, 3, 5, 16, 20])
def test_each_seed_measures_for_any_number_of_seeds(seeds: int) -> None:
    test = np.arange(3.0)[:, None] + np.zeros((3, seeds))
    assert held_out_gain(test, np.zeros(seeds), test).mean == 2.0
    assert held_out_gain(test, np.zeros(seeds), test).n == seeds


def test_a_setting_that_diverged_is_not_chosen() -> None:
    test = np.array([[1.0, 1.0, 1.0, 1.0], [np.nan, np.nan, 9.0, np.nan]])
    assert held_out_gain(test, np.zeros(4), test).mean == 1.0
    assert largest_gain(test, np.zeros(4)) == (0, 1.0)


def test_so_many_seeds_have_the_power() -> None:
    random, seeds = np.random.default_rng(5), seeds_to_see(0.6, 1.0)
    assert seeds is not None

    def power(count: int) -> float:
        drawn = 0.6 + random.normal(size=(4000, count))
        t = drawn.mean(1) / (drawn.std(1, ddof=1) / np.sqrt(count))
        critical = {24: 2.069, 22: 2.080}[count]  # t of 23 and 21 degrees of freedom
        return float(np.mean(t > critical))

    assert seeds == 24
    assert power(24) == pytest.approx(0.80, abs=0.02)
    assert power(22) < 0.79
    assert seeds_to_see(1.0, 0.0) == 2
    assert seeds_to_see(-1.0, 1.0) is None
    assert seeds_to_see(1e-9, 1.0) is None


def test_more_than_100_000_seeds_are_too_many() -> None:
    most = seeds_to_see(0.0090, 1.0)
    assert most is not None
    assert 90_000 < most <= 100_000
    assert seeds_to_see(0.0085, 1.0) is None, "it takes about 108,600"


def test_the_paired_deviation_is_free_of_what_seeds_have_in_common() -> None:
    random = np.random.default_rng(6)
    found = [
        paired_deviation(y[1:], y[0]) ** 2 for y, _ in (simulated(random, 9, 5, (1.0, 9.0, 1.0)) for _ in range(800))
    ]
    assert np.mean(found) == pytest.approx(2.0, rel=0.05)


def test_a_quadratic_response_is_found_on_the_scale_of_the_draws() -> None:
    random = np.random.default_rng(7)
    x = np.exp(random.uniform(np.log(0.1), np.log(100), 40))
    y = 80 - (np.log(x) - np.log(5.0)) ** 2 + 0.1 * random.normal(size=40)
    found = response(x, y)
    assert found is not None
    assert found.logarithmic
    assert found.best == pytest.approx(5.0, rel=0.15)
    assert found.p_value < 1e-6
    assert (found.curve["low"] < found.curve["mean"]).all()
    linear = response(random.uniform(0, 180, 40), y)
    assert linear is not None
    assert not linear.logarithmic


def test_the_band_of_a_response_covers_the_truth_and_noise_is_seldom_significant() -> None:
    random, inside, significant = np.random.default_rng(8), [], []
    for _ in range(400):
        x = random.uniform(1, 3, 24)
        found = response(x, 80 + random.normal(size=24))
        assert found is not None
        inside.append(((found.curve["low"] < 80) & (found.curve["high"] > 80)).mean())
        significant.append(found.p_value < 0.05)
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)
    assert np.mean(significant) == pytest.approx(0.05, abs=0.03)


@pytest.mark.parametrize("constant", [0.0, 0.5, 50.0])
def test_equal_results_show_no_response(constant: float) -> None:
    found = response(np.linspace(1, 9, 12), np.full(12, constant))
    assert found is not None
    assert found.p_value == 1


def test_too_few_settings_have_no_response() -> None:
    assert response([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]) is None
    assert response([1.0, 1.0, 1.0, 2.0, 2.0], [1.0, 2.0, 3.0, 4.0, 5.0]) is None


def test_a_headroom_comes_from_the_rows_alone() -> None:
    random = np.random.default_rng(9)
    y, _ = simulated(random, 13, 6, (2.0, 1.0, 0.5))
    (grid,) = grids(rows(y, finetune=3))
    assert grid.test.shape == (12, 6)
    assert grid.reference is not None
    np.testing.assert_allclose(grid.reference, y[0])
    found = headroom(grid)
    assert found.best == f"s{1 + y[1:].mean(1).argmax()}"
    assert found.most == pytest.approx((y[1:].mean(1) - y[0].mean()).max())
    assert found.gain == held_out_gain(y[1:], y[0], y[1:])
    assert found.sentence == (
        f"settings explain {found.shares['settings'].share:.0f} % of the variance; at most about {found.most:.2g} "
        f"points can be gained with the best of 12; {2 * (found.seeds_to_see or 0)} runs would be needed to see it"
    )


def test_without_a_reference_there_is_no_gain_but_shares() -> None:
    table = rows(np.random.default_rng(0).normal(size=(4, 3)))
    (grid,) = grids(table[table["setting"] != REFERENCE])
    found = headroom(grid)
    assert np.isnan(found.most)
    assert found.sentence.endswith("without a reference no gain is known")


def test_with_a_result_that_is_not_finite_nothing_is_said_of_the_variance() -> None:
    y = np.random.default_rng(0).normal(size=(6, 4))
    y[3, 2] = np.nan
    (grid,) = grids(rows(y))
    found = headroom(grid)
    assert all(np.isnan([each.share, each.low, each.high]).all() for each in found.shares.values())
    assert found.sentence.startswith("a result is not finite")


def test_a_reference_that_is_not_finite_hides_the_gain_but_not_the_best_setting() -> None:
    y = np.random.default_rng(0).normal(size=(6, 4))
    y[0, 2], y[4] = np.nan, 9.0
    (grid,) = grids(rows(y))
    found = headroom(grid)
    assert found.best == "s4"
    assert found.sentence.endswith("a result of the reference is not finite, so that no gain is known")


def test_tables_of_other_days_are_joined(tmp_path: Path) -> None:
    y = np.random.default_rng(0).normal(size=(6, 4))
    table = rows(y)
    for name, part in table.groupby(table["pretrain_seed"] < 2):
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    both = read([tmp_path / "True.csv", tmp_path / "False.csv"])
    (joined,), (whole,) = grids(both), grids(table)
    pd.testing.assert_frame_equal(joined.test.sort_index(axis=1), whole.test)
    with pytest.raises(DataError, match=r"has a run twice: experiment e, .*pretrain_seed 0"):
        read([tmp_path / "True.csv", tmp_path / "True.csv"])


def test_what_is_no_table_of_runs_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"other\.csv lacks the column 'experiment'"):
        read([tmp_path / "other.csv"])
    with pytest.raises(DataError, match=r"missing\.csv is missing: name the table\.csv of a headroom"):
        read([tmp_path / "missing.csv"])
    with pytest.raises(DataError, match="can't be read: Is a directory"):
        read([tmp_path])
    with pytest.raises(DataError, match="lacks the column 'test'"):
        check(rows(np.ones((3, 3))).drop(columns="test"))
    for name in ("test", "strength"):
        with pytest.raises(DataError, match=f"has text in the column '{name}'"):
            check(rows(np.ones((3, 3))).assign(**{name: "high"}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.drop(index=[4]), "has no run of s1 with PT seed 1; all settings need the same PT seeds"),
        (lambda table: table[table["pretrain_seed"] == 0], "has 1 PT seed; a headroom needs at least two"),
        (lambda table: table[table["setting"].isin([REFERENCE, "s1"])], "has 1 setting; a headroom needs at least two"),
        (
            lambda table: table.assign(strength=table["strength"].where(table.index != 4, 7.0)),
            "has two settings of the name 's1'",
        ),
    ],
)
def test_what_has_no_headroom_is_an_error(change: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        list(grids(change(rows(np.ones((3, 3))))))


def test_hyperparameters_of_another_problem_are_no_matter() -> None:
    y = np.random.default_rng(0).normal(size=(4, 3))
    first = rows(y)
    other = rows(y, problem="q").rename(columns={"strength": "weight"})
    found = {grid.cell["problem"]: list(grid.hyperparameters) for grid in grids(pd.concat([first, other]))}
    assert found == {"p": ["strength"], "q": ["weight"]}


def test_the_report_has_tables_sentences_a_figure_and_a_claim() -> None:
    table = rows(simulated(np.random.default_rng(0), 10, 6, (2.0, 1.0, 0.5))[0])
    blocks, numbers = headroom_report.tables(table, {"linear_evaluation": "linear evaluation"})
    shares, responses = blocks.values()
    assert numbers is table
    assert list(shares["evaluation"]) == ["linear evaluation"]
    assert list(responses["hyperparameter"]) == ["strength"]
    assert "- p, linear_evaluation: settings explain" in headroom_report.text(table)
    (claim,) = headroom_report.comparisons(table, "simclr", "AUROC", {})
    assert claim.measure() == headroom(next(iter(grids(table)))).gain
    figure = headroom_report.figure(table, {}, "test AUROC (%)")
    assert [axis.get_xlabel() for axis in figure.axes] == ["gain (points)", "strength"]


def test_a_table_that_is_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    rows = [["e", "d", "p", "linear", "a", seed, 0, 70.0, 71.0] for seed in range(3)]
    pd.DataFrame(rows, columns=RUN).to_csv(path, index=False)
    path.write_text(path.read_text().rpartition(",2,")[0])
    with pytest.raises(DataError, match=r"table\.csv has no pretrain_seed in row 3; it is cut"):
        read([path])
