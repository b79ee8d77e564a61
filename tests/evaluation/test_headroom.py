"""Variance shares, gains and responses have known values on data that were simulated with known components."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import stats

from metapt.errors import DataError
from metapt.evaluation import headroom_report
from metapt.evaluation.headroom import (
    REFERENCE,
    RUN,
    headroom,
    held_out_gain,
    response,
    seeds_to_see,
    variance_shares,
)
from metapt.evaluation.headroom_table import check, grids, read
from metapt.evaluation.statistics import estimate_mean

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


def test_the_variances_of_a_small_table_are_those_of_its_mean_squares() -> None:
    y = np.array([[1.0, 4.0, 2.0], [8.0, 9.0, 7.0]])
    interaction = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
    rest = np.sum(interaction**2) / 2
    found = variance_shares(y)
    assert found["rest"].variance == pytest.approx(rest)
    assert found["settings"].variance == pytest.approx(y.mean(1).var(ddof=1) - rest / 3)
    assert found["seeds"].variance == pytest.approx(y.mean(0).var(ddof=1) - rest / 2)


def test_the_interval_of_a_share_is_that_of_a_ratio_of_mean_squares() -> None:
    """Without a rest the ratio of the two variances has an F distribution; without seeds that to the rest has."""
    random, ends = np.random.default_rng(0), [0.025, 0.975]
    settings, seeds = random.normal(size=(4, 1)), random.normal(size=3)
    found = variance_shares(settings + seeds, draws=200_000)["settings"]
    ratio = settings.var(ddof=1) / seeds.var(ddof=1) * stats.f.ppf(ends, 2, 3)
    np.testing.assert_allclose([found.low, found.high], 100 * ratio / (1 + ratio), rtol=0.02)

    rest = np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [-1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    found = variance_shares(30 * settings + rest, draws=200_000)["rest"]
    ratio = (3 * 900 * settings.var(ddof=1) / (6 / 6) * stats.f.ppf(ends[::-1], 6, 3) - 1) / 3
    np.testing.assert_allclose([found.low, found.high], 100 / (1 + ratio), rtol=0.02)


def test_held_out_and_largest_gain_enclose_the_truth_on_average() -> None:
    random, held_out, largest, best = np.random.default_rng(3), [], [], []
    for _ in range(400):
        y, effects = simulated(random, 12, 6, (1.0, 1.0, 1.0))
        reference = y.mean() * 0 + 80 + random.normal(size=6)
        held_out.append(held_out_gain(y, reference, y).mean)
        largest.append((y.mean(1) - reference.mean()).max())
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


@pytest.mark.parametrize("seeds", [4, 5, 8])
@pytest.mark.parametrize("deviation", [0.0, 1.0])
def test_the_interval_of_a_held_out_gain_misses_it_in_less_than_5_percent(seeds: int, deviation: float) -> None:
    """The reference is as noisy as a setting; the settings stay the same in all repetitions."""
    random = np.random.default_rng(5)
    effects = deviation * random.normal(size=(24, 1))
    found = [
        held_out_gain(y := effects + random.normal(size=(24, seeds)), random.normal(size=seeds), y) for _ in range(400)
    ]
    mean = np.mean([gain.mean for gain in found])
    assert 0 < np.mean([not gain.low <= mean <= gain.high for gain in found]) < 0.05
    if deviation == 0:
        assert 0 < np.mean([not gain.low <= 0 <= gain.high for gain in found]) < 0.05


def test_a_held_out_gain_of_two_seeds_has_no_interval() -> None:
    test = np.array([[1.0, 2.0], [3.0, 5.0]])
    gain = held_out_gain(test, np.zeros(2), test)
    assert (gain.mean, gain.n) == (4.0, 2)
    assert np.isnan([gain.standard_error, gain.low, gain.high]).all()


def test_the_error_of_a_held_out_gain_is_that_of_the_mean_where_one_setting_is_always_best() -> None:
    gains = np.array([1.0, 2.5, 0.5, 4.0, 3.0])
    test = np.stack([gains, gains - 9])
    expected = estimate_mean(gains)
    found = held_out_gain(test, np.zeros(5), test)
    np.testing.assert_allclose([found.low, found.high], [expected.low, expected.high])


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


def test_band_and_p_value_of_a_response_are_those_of_the_quadratic_fit() -> None:
    random = np.random.default_rng(2)
    x, y = np.linspace(1, 3, 7), random.normal(size=7)
    found = response(x, y)
    assert found is not None
    design = np.vander(x, 3)
    weights, (squares,), *_ = np.linalg.lstsq(design, y)
    fitted, rest = design @ weights, squares / 4
    assert found.p_value == pytest.approx(stats.f.sf(np.sum((fitted - y.mean()) ** 2) / 2 / rest, 2, 4))
    error = np.sqrt(rest * np.array([1.0, 1.0, 1.0]) @ np.linalg.inv(design.T @ design) @ [1.0, 1.0, 1.0])
    ends = fitted[0] + stats.t.ppf(0.975, 4) * error * np.array([-1, 0, 1])
    np.testing.assert_allclose([found.curve[name][0] for name in ("low", "mean", "high")], ends)


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
    gain = found.gain
    assert found.sentence == (
        f"settings explain {found.shares['settings'].share:.0f} % of the variance; a setting chosen on half of the PT "
        f"seeds gains {gain.mean:.3g} points (95 % interval {gain.low:.3g} to {gain.high:.3g}) on the other half; the "
        f"best of 12 gains {found.most:.3g} on the seeds that choose it, and {2 * (found.seeds_to_see or 0)} runs "
        "would show a gain of this size"
    )


def test_the_text_of_a_headroom_is_short_with_many_hyperparameters_and_its_numbers_agree() -> None:
    random = np.random.default_rng(1)
    y = simulated(random, 13, 4, (0.5, 1.0, 1.0))[0]
    table = rows(y).assign(validation=random.normal(size=y.size))
    for number in range(30):
        table[f"w[{number}]"] = np.repeat(random.uniform(size=13), 4)
    found = headroom(next(grids(table)))
    lines = str(found).splitlines()
    assert len(lines) <= 12
    assert " ".join(lines[:3]).startswith(found.sentence)
    assert f"chosen by validation results gains {found.validated.mean:.3g} points" in str(found)
    first = min(found.responses, key=lambda name: found.responses[name].p_value)
    assert f"\n{first}: best near" in str(found)
    assert len(repr(found)) < 1000


def test_a_gain_chosen_on_validation_results_is_that_of_the_setting_that_they_prefer() -> None:
    table = rows(np.array([[1.0] * 4, [4.0] * 4, [2.5] * 4]))
    table["validation"] = table["setting"].map({REFERENCE: 0.0, "s1": 50.0, "s2": 60.0})
    found = headroom(next(grids(table)))
    assert (found.gain.mean, found.validated.mean) == (3.0, 1.5)


@pytest.mark.parametrize("seeds", [3, 5])
def test_of_an_odd_number_of_seeds_the_smaller_and_the_larger_half_choose(seeds: int) -> None:
    test = np.random.default_rng(0).normal(size=(4, seeds))
    gains: list[list[float]] = [[] for _ in range(seeds)]
    for size in (seeds // 2, seeds - seeds // 2):
        for half in combinations(range(seeds), size):
            best = test[:, half].mean(1).argmax()
            for seed in set(range(seeds)) - set(half):
                gains[seed].append(test[best, seed])
    expected = np.mean([np.mean(own) for own in gains])
    assert held_out_gain(test, np.zeros(seeds), test).mean == pytest.approx(expected)


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
    np.testing.assert_array_equal(joined.test, whole.test)
    assert (joined.settings, joined.seeds) == (whole.settings, whole.seeds)
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
