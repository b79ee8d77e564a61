"""Statistics have known values, and properties for any data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.metrics import row
from metapt.evaluation.statistics import (
    Estimate,
    estimate,
    estimate_mean,
    holm,
    noncentrality,
    paired_difference,
    paired_ratio,
    summarise,
)

A = pd.Series([81.7, 82.1, 81.2, 82.0, 80.4])
B = pd.Series([79.8, 80.9, 80.1, 82.3, 79.9])


def numbers(e: Estimate) -> list[float]:
    return [e.mean, e.standard_error, e.low, e.high]


@pytest.mark.parametrize("n", [2, 3, 6, 16])
def test_interval_p_values_and_what_can_be_seen_are_those_of_students_t(n: int) -> None:
    e, student = estimate(4.0, 2.0, n), stats.t(n - 1)
    assert (e.low, e.high) == pytest.approx((4 - 2 * student.ppf(0.975), 4 + 2 * student.ppf(0.975)))
    assert (e.p_above(e.low), e.p_below(e.high)) == pytest.approx((0.025, 0.025))
    assert (e.p_above(1.5), e.p_below(1.5), e.p_value) == pytest.approx(
        (*map(student.sf, (1.25, -1.25)), 2 * student.sf(2))
    )
    assert (e.p_above(-math.inf), e.p_below(-math.inf), e.p_above(math.inf)) == (0, 1, 1)
    for level in (0.05, 0.05 / 40):
        power = stats.nct.sf(student.ppf(1 - level / 2), n - 1, e.visible(0.0, level) / 2)
        assert power == pytest.approx(0.8, abs=1e-6)


def test_without_a_spread_nothing_is_tested_and_with_a_spread_of_0_the_p_value_is_0_or_1() -> None:
    one, equal = estimate_mean([3.0]), estimate(3.0, 0.0, 5)
    assert (one.mean, one.n) == (3.0, 1)
    assert np.isnan([*numbers(one)[1:], one.p_above(0.0), one.p_value, one.visible(0.0), noncentrality(0, 0.05)]).all()
    assert [equal.p_above(value) for value in (2.0, 3.0, 4.0)] == [0, 0.5, 1]
    assert [equal.p_below(value) for value in (2.0, 3.0, 4.0)] == [1, 0.5, 0]
    assert (equal.low, equal.visible(0.0), equal.p_value) == (3.0, 0.0, 0.0)
    assert paired_difference(A, A).p_value == 1.0


def test_what_is_not_finite_is_not_dropped_and_a_mean_needs_a_value() -> None:
    assert np.isnan(numbers(estimate_mean([1.0, math.nan, 3.0]))).all()
    assert math.isnan(estimate_mean([1.0, math.inf]).standard_error)
    with pytest.raises(DataError, match="needs at least one value"):
        estimate_mean([])


def test_a_summary_has_a_row_for_each_cell_which_is_of_replicates_or_of_the_whole_run() -> None:
    rows = [row("e", "meta", "error", v, replicate=i) for i, v in enumerate((2.0, 4.0, 6.0))]
    summary = summarise(metrics.validate([*rows, row("e", "bptt", "error", 1.5, setting="s")]))
    assert summary.columns.tolist() == [*metrics.CELL, "mean", "standard_error", "n"]
    assert summary[["arm", "mean", "n"]].to_numpy().tolist() == [["meta", 4.0, 3], ["bptt", 1.5, 1]]
    np.testing.assert_allclose(summary["standard_error"], [2 / math.sqrt(3), math.nan])
    assert summarise(metrics.validate([])).empty
    with pytest.raises(DataError, match="e, meta, error stand both"):
        summarise(metrics.validate([*rows, row("e", "meta", "error", 2.0)]))


def test_pairs_are_those_of_equal_replicates() -> None:
    assert paired_difference(A, B.sample(frac=1, random_state=0)) == estimate_mean(A - B)
    nullable = A.set_axis(pd.array(A.index, dtype="Int64"))
    assert paired_difference(nullable, B.set_axis(nullable.index)) == estimate_mean(A - B)
    whole = [pd.Series([value], index=pd.array([None], dtype="Int64")) for value in (3.0, 1.0)]
    assert (paired_difference(*whole).mean, paired_difference(*whole).n) == (2.0, 1)


@pytest.mark.parametrize("paired", [paired_difference, paired_ratio])
@pytest.mark.parametrize(
    ("a", "b", "message"),
    [(A, B.rename({0: 9}), r"only one of them has replicate 0, 9\."), (A[:0], B[:0], "at least one value")],
)
def test_unpaired_replicates_are_refused(paired: Any, a: Any, b: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        paired(a, b)


def test_a_paired_ratio_is_that_of_the_mean_logarithm() -> None:
    a, b = pd.Series([2.0, 8.0, 3.0]), pd.Series([1.0, 2.0, 1.5], index=[2, 1, 0])
    logs = estimate_mean(np.log([2.0 / 1.5, 8.0 / 2.0, 3.0 / 1.0]))
    ratio = paired_ratio(a, b)
    assert (ratio.mean, ratio.n) == (pytest.approx(16 ** (1 / 3)), 3)
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(logs.low), math.exp(logs.high)))
    assert ratio.standard_error == pytest.approx(ratio.mean * logs.standard_error)
    assert ratio.visible(3.0, 0.01) == pytest.approx(3.0 * (math.exp(logs.visible(0.0, 0.01)) - 1))
    assert ratio.p_above(2.0) == pytest.approx(logs.p_above(math.log(2.0)))
    assert ratio.p_above(0.0) == 0
    assert math.isnan(paired_ratio(a[:1], b[2:]).low)
    for bad in (0.0, -1.0, math.nan, math.inf):
        assert not np.isfinite(numbers(paired_ratio(pd.Series([2.0, bad]), pd.Series([1.0, 1.0])))).any()


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        ([0.04, 0.001, 0.02, 0.9, 0.013], [0.08, 0.005, 0.06, 0.9, 0.052]),
        ([0.02, 0.021], [0.04, 0.04]),  # not below a smaller one
        ([0.6, 0.7], [1.0, 1.0]),
        ([0.02, math.nan], [0.04, math.nan]),  # a test without a p-value counts
        ([0.03], [0.03]),
        ([], []),
    ],
)
def test_holm_adjusts_as_its_definition_says(p_values: list[float], adjusted: list[float]) -> None:
    assert holm(p_values) == pytest.approx(adjusted, nan_ok=True)
