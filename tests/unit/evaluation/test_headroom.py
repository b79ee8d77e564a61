"""Variance shares, gains and responses have known values on data that were simulated with known components."""

from __future__ import annotations

import math
from itertools import combinations
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
    Headroom,
    headroom,
    held_out_gain,
    response,
    seeds_to_see,
    variance_shares,
)
from metapt.evaluation.headroom_report import check, grids, read
from metapt.evaluation.statistics import estimate_mean

Random = np.random.Generator


def simulated(random: Random, settings: int, seeds: int, deviations: tuple[float, float, float]) -> NDArray[Any]:
    """Return results [settings, seeds], given the deviations of settings, seeds, rest."""
    setting, seed, rest = deviations
    y = 80 + setting * random.normal(size=(settings, 1)) + seed * random.normal(size=(1, seeds))
    return y + rest * random.normal(size=(settings, seeds))


def rows(values: NDArray[Any], finetune: int = 1, **changes: Any) -> pd.DataFrame:
    """Return a table of runs of results [settings, seeds], whose first setting is the reference."""
    cells = [
        {"experiment": "e", "domain": "d", "problem": "p", "evaluation": "linear_evaluation"}
        | {"setting": f"s{place}" if place else REFERENCE, "strength": 2.0**place, "pretrain_seed": seed}
        | {"finetune_seed": number, "validation": value, "test": value}
        for place, line in enumerate(values)
        for seed, value in enumerate(line)
        for number in range(finetune)
    ]
    return pd.DataFrame(cells).assign(**changes)


def of(table: pd.DataFrame) -> Headroom:
    (grid,) = grids(table)
    return headroom(grid)


@pytest.mark.parametrize("deviations", [(1.0, 1.0, 1.0), (2.0, 1.5, 1.0), (2.0, 0.0, 1.0)])
def test_the_variances_are_unbiased_and_the_intervals_of_the_shares_cover_the_truth(
    deviations: tuple[float, float, float],
) -> None:
    random, truth, count = np.random.default_rng(1), np.square(deviations), 200
    shares, found, inside = 100 * truth / truth.sum(), [], []
    for number in range(count):
        parts = variance_shares(simulated(random, 24, 8, deviations), draws=500, seed=number).values()
        found.append([part.variance for part in parts])
        inside.append([part.low <= share <= part.high for part, share in zip(parts, shares, strict=True)])
    unbiased = truth > 0  # below 0 a variance is cut off
    assert (abs(np.mean(found, 0) - truth) < 4 * np.std(found, 0) / math.sqrt(count))[unbiased].all()
    assert (np.mean(inside, 0) > 0.9).all()


def test_the_variances_of_a_small_table_are_those_of_its_mean_squares() -> None:
    y = np.array([[1.0, 4.0, 2.0], [8.0, 9.0, 7.0]])
    interaction = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
    rest, found = np.sum(interaction**2) / 2, variance_shares(y)
    expected = [y.mean(1).var(ddof=1) - rest / 3, y.mean(0).var(ddof=1) - rest / 2, rest]
    assert [part.variance for part in found.values()] == pytest.approx(expected)
    assert sum(part.share for part in found.values()) == pytest.approx(100)
    assert {part.share for part in variance_shares(np.ones((4, 3))).values()} == {0.0}


def test_the_interval_of_a_share_is_that_of_a_ratio_of_mean_squares() -> None:
    """Without a rest the ratio of the two variances has an F distribution, here with the quantiles of F(2, 3)."""
    random = np.random.default_rng(0)
    settings, seeds = random.normal(size=(4, 1)), random.normal(size=3)
    found = variance_shares(settings + seeds, draws=200_000)["settings"]
    ratio = settings.var(ddof=1) / seeds.var(ddof=1) * np.array([1 / 39.1655, 16.0441])
    np.testing.assert_allclose([found.low, found.high], 100 * ratio / (1 + ratio), rtol=0.02)


@pytest.mark.parametrize(("seeds", "deviation"), [(4, 0.0), (5, 1.0), (8, 0.0)])
def test_the_interval_of_a_held_out_gain_misses_it_in_less_than_5_percent(seeds: int, deviation: float) -> None:
    """The reference is as noisy as a setting; the settings stay the same in all repetitions."""
    random = np.random.default_rng(5)
    effects, found, largest = deviation * random.normal(size=(24, 1)), [], []
    for _ in range(150):
        y, reference = effects + random.normal(size=(24, seeds)), random.normal(size=seeds)
        found.append(held_out_gain(y, reference, y))
        largest.append((y.mean(1) - reference.mean()).max())
    mean = np.mean([gain.mean for gain in found])
    for truth in {mean, mean if deviation else 0.0}:
        assert 0 < np.mean([not gain.low <= truth <= gain.high for gain in found]) < 0.05
    if deviation:
        assert 0.7 * effects.max() < mean < effects.max() < np.mean(largest)


def test_the_error_of_a_held_out_gain_is_that_of_the_mean_where_one_setting_is_always_best() -> None:
    gains = np.array([1.0, 2.5, 0.5, 4.0, 3.0])
    test, expected = np.stack([gains, gains - 9]), estimate_mean(gains)
    found = held_out_gain(test, np.zeros(5), test)
    assert (found.mean, found.low, found.high) == pytest.approx((expected.mean, expected.low, expected.high))
    two = held_out_gain(test[:, :2], np.zeros(2), test[:, :2])
    assert (two.mean, two.n) == (1.75, 2)
    assert np.isnan([two.standard_error, two.low, two.high]).all()


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


@pytest.mark.parametrize("seeds", [2, 3, 20])
def test_the_criterion_chooses_and_each_seed_measures(seeds: int) -> None:
    test, reference = np.arange(3.0)[:, None] + np.zeros((3, seeds)), np.ones(seeds)
    assert held_out_gain(test, reference, test).mean == 1.0
    assert held_out_gain(test, reference, -test).mean == -1.0
    test[2] = math.nan  # a setting that diverged is not chosen
    assert held_out_gain(test, reference, test).mean == 0.0


def test_so_many_seeds_have_the_power() -> None:
    """Numbers of the table of Cohen (1988), for d = 0.5, 0.6 and 1, paired."""
    assert [seeds_to_see(d, 1.0) for d in (0.5, 0.6, 1.0, -1.0)] == [34, 24, 10, None]
    assert [seeds_to_see(1.0, deviation) for deviation in (0.0, 1e-3, 1e-6, 1e-13, math.nan)] == [2, 2, 2, 2, None]
    assert seeds_to_see(0.0085, 1.0) is None  # it takes about 108,600
    assert seeds_to_see(0.009, 1.0) == pytest.approx((1.959964 + 0.841621) ** 2 / 0.009**2, rel=1e-4)


def test_a_quadratic_response_is_found_on_the_scale_of_the_draws() -> None:
    random = np.random.default_rng(7)
    x = np.exp(random.uniform(np.log(0.1), np.log(100), 40))
    y = 80 - (np.log(x) - np.log(5.0)) ** 2 + 0.1 * random.normal(size=40)
    found, linear = response(x, y), response(random.uniform(0, 180, 40), y)
    assert found is not None
    assert linear is not None
    assert (found.logarithmic, linear.logarithmic) == (True, False)
    assert found.best == pytest.approx(5.0, rel=0.15)
    assert found.p_value < 1e-6 < linear.p_value
    assert (found.curve["low"] < found.curve["mean"]).all()


def test_the_band_of_a_response_covers_the_truth_and_noise_is_seldom_significant() -> None:
    random, inside, significant = np.random.default_rng(8), [], []
    for _ in range(300):
        found = response(random.uniform(1, 3, 24), 80 + random.normal(size=24))
        assert found is not None
        inside.append(((found.curve["low"] < 80) & (found.curve["high"] > 80)).mean())
        significant.append(found.p_value < 0.05)
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)
    assert np.mean(significant) == pytest.approx(0.05, abs=0.03)


@pytest.mark.parametrize("constant", [0.0, 0.5, 50.0])
def test_equal_results_show_no_response_and_too_few_settings_have_none(constant: float) -> None:
    found = response(np.linspace(1, 9, 12), np.full(12, constant))
    assert found is not None
    assert found.p_value == 1
    assert response([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]) is None
    assert response([1.0, 1.0, 1.0, 2.0, 2.0], [1.0, 2.0, 3.0, 4.0, 5.0]) is None


def test_a_headroom_comes_from_the_rows_alone() -> None:
    y = simulated(np.random.default_rng(9), 13, 6, (2.0, 1.0, 0.5))
    table = rows(y, finetune=3)
    found, deviation = of(table), np.sqrt((y[1:] - y[0]).var(1, ddof=1).mean())
    assert found.grid.test.shape == (12, 6)
    np.testing.assert_allclose(found.grid.reference, y[0])  # type: ignore[arg-type]
    assert found.best == f"s{1 + y[1:].mean(1).argmax()}"
    assert found.most == pytest.approx((y[1:].mean(1) - y[0].mean()).max())
    assert found.gain == held_out_gain(y[1:], y[0], y[1:])
    assert found.seeds_to_see == seeds_to_see(found.most, deviation)
    assert f"gains {found.gain.mean:.3g} points (95 % interval {found.gain.low:.3g}" in found.sentence
    assert f"the best of 12 gains {found.most:.3g}" in found.sentence
    assert f"{2 * (found.seeds_to_see or 0)} runs" in found.sentence
    blocks, numbers = headroom_report.tables(table, {"linear_evaluation": "linear evaluation"})
    shares, responses = blocks.values()
    assert numbers is table
    assert (list(shares["evaluation"]), list(responses["hyperparameter"])) == (["linear evaluation"], ["strength"])
    assert "p, linear_evaluation, settings: 12, PT seeds: 6\n  settings explain" in headroom_report.text(table)
    (claim,) = headroom_report.comparisons(table, "simclr", "AUROC", {})
    assert claim.measure() == found.gain
    figure = headroom_report.figure(table, {}, "test AUROC (%)")
    assert [axis.get_xlabel() for axis in figure.axes] == ["gain (points)", "strength"]


def test_the_text_of_a_headroom_is_short_with_many_hyperparameters() -> None:
    random = np.random.default_rng(1)
    table = rows(simulated(random, 13, 4, (0.5, 1.0, 1.0)), validation=random.normal(size=52))
    found = of(table.assign(**{f"w[{number}]": np.repeat(random.uniform(size=13), 4) for number in range(30)}))
    assert len(str(found).splitlines()) <= 12
    assert " ".join(str(found).splitlines()[:3]).startswith(found.sentence)
    assert f"chosen by validation results gains {found.validated.mean:.3g} points" in str(found)
    assert f"\n{min(found.responses, key=lambda name: found.responses[name].p_value)}: best near" in str(found)
    assert len(repr(found)) < 1000
    table = rows(np.array([[1.0] * 4, [4.0] * 4, [2.5] * 4]))
    table["validation"] = table["setting"].map({REFERENCE: 0.0, "s1": 50.0, "s2": 60.0})
    assert (of(table).gain.mean, of(table).validated.mean) == (3.0, 1.5), "validation results prefer another setting"


@pytest.mark.parametrize(
    ("change", "said", "known"),
    [
        ({(3, 2): math.nan}, "a result is not finite", False),
        ({(0, 2): math.nan}, "a result of the reference is not finite, so that no gain is known", True),
        ({}, "without a reference no gain is known", True),
    ],
)
def test_what_is_not_finite_or_missing_hides_what_depends_on_it(change: Any, said: str, known: bool) -> None:
    y = np.random.default_rng(0).normal(size=(6, 4))
    y[4] = 9.0
    for place, value in change.items():
        y[place] = value
    table = rows(y)
    found = of(table if change else table[table["setting"] != REFERENCE])
    assert said in found.sentence
    assert found.best == "s4"
    assert np.isfinite([each.share for each in found.shares.values()]).all() == known


def test_tables_of_other_days_and_of_other_problems_are_joined(tmp_path: Path) -> None:
    table = rows(np.random.default_rng(0).normal(size=(6, 4)))
    paths = [tmp_path / f"{name}.csv" for name in (False, True)]
    for path, (_, part) in zip(paths, table.groupby(table["pretrain_seed"] < 2), strict=True):
        part.to_csv(path, index=False)
    (joined,), (whole,) = grids(read(paths)), grids(table)
    np.testing.assert_allclose(joined.test, whole.test, rtol=1e-15)  # pandas 2 reads some last digits wrongly
    assert (joined.settings, joined.seeds) == (whole.settings, whole.seeds)
    with pytest.raises(DataError, match=r"has a run twice: experiment e, .*pretrain_seed 0"):
        read([paths[1], paths[1]])
    drawn = table.assign(setting=[each if each == REFERENCE else f"other {each}" for each in table["setting"]])
    for path, part in zip(paths, (table, drawn), strict=True):
        part.to_csv(path, index=False)
    assert len(next(grids(read(paths))).settings) == 10, "five and five, with one reference"
    numbers = table[table["setting"] != REFERENCE]
    numbers.assign(setting=numbers["setting"].str.removeprefix("s")).to_csv(paths[1], index=False)
    assert len(next(grids(read(paths))).settings) == 10, "one table has names that are numbers"
    drawn.assign(test=drawn["test"] + 1e-9).to_csv(paths[1], index=False)
    with pytest.raises(DataError, match=r"other results of the reference run .*: make both draws in one place"):
        read(paths)
    for content, message in (
        ("a,b\n1,2\n", r"False\.csv lacks the column 'experiment'"),
        (f"{','.join(RUN)}\ne,d,p,l,a,0,0,70,71\ne,d,p,l,a", r"has no pretrain_seed in row 2; it is cut"),
        (None, r"False\.csv is missing: name the table\.csv of a headroom"),
    ):
        paths[0].unlink() if content is None else paths[0].write_text(content)
        with pytest.raises(DataError, match=message):
            read(paths[:1])
    other = table.assign(problem="q").rename(columns={"strength": "weight"})
    found = {grid.cell["problem"]: list(grid.hyperparameters) for grid in grids(pd.concat([table, other]))}
    assert found == {"p": ["strength"], "q": ["weight"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns="test"), "lacks the column 'test'"),
        (lambda t: t.assign(test="high"), "has text in the column 'test'"),
        (lambda t: t.assign(strength="high"), "has text in the column 'strength'"),
        (lambda t: t.drop(index=[4]), "has no run of s1 with PT seed 1; all settings need the same PT seeds"),
        (lambda t: t[t["pretrain_seed"] == 0], "has 1 PT seed; a headroom needs at least two"),
        (lambda t: t[t["setting"].isin([REFERENCE, "s1"])], "has 1 setting; a headroom needs at least two"),
        (lambda t: t.assign(strength=t["strength"].where(t.index != 4, 7.0)), "has two settings of the name 's1'"),
    ],
)
def test_what_has_no_headroom_is_an_error(change: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(grids(check(change(rows(np.ones((3, 3)))))))
