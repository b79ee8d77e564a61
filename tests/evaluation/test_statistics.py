"""Statistics against numbers by hand, SciPy, and properties for any data."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.metrics import row
from metapt.evaluation.statistics import (
    LEVEL,
    cluster_bootstrap,
    cluster_means,
    estimate,
    estimate_mean,
    holm,
    paired_difference,
    paired_ratio,
    summarise,
)

A = pd.Series([81.7, 82.1, 81.2, 82.0, 80.4], index=[0, 1, 2, 3, 4])
B = pd.Series([79.8, 80.9, 80.1, 82.3, 79.9], index=[0, 1, 2, 3, 4])


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10, 15, 58, 1001])
def test_interval_and_p_value_are_those_of_students_t(n):
    """Check the interval of a mean of 0 with standard error 1, and that a difference at its bound has p = 0.05."""
    quantile = stats.t.ppf(0.975, n - 1)
    interval = estimate(0.0, 1.0, n)
    assert (interval.low, interval.high) == pytest.approx((-quantile, quantile), rel=1e-12)
    spread = np.resize([-1.0, 1.0], n)
    spread -= spread.mean()
    d = pd.Series(spread + quantile * np.std(spread, ddof=1) / math.sqrt(n))
    assert paired_difference(d, 0 * d).p_value == pytest.approx(0.05, rel=1e-9)


def test_students_t_with_one_degree_of_freedom_is_cauchys():
    assert estimate(0.0, 1.0, 2).high == pytest.approx(math.tan(math.pi * 0.475), rel=1e-12)


def test_mean_by_hand():
    e = estimate_mean([2.0, 4.0, 6.0])  # s = 2, se = 2 / sqrt(3), t(0.975; 2) = 4.3027
    assert (e.mean, e.n) == (4.0, 3)
    assert e.standard_error == pytest.approx(2 / math.sqrt(3))
    assert e.high - e.mean == pytest.approx(4.302653 * 2 / math.sqrt(3), rel=1e-6)


def test_one_value_has_no_spread():
    e = estimate_mean([3.0])
    assert (e.mean, e.n) == (3.0, 1)
    assert all(math.isnan(x) for x in (e.standard_error, e.low, e.high))
    with pytest.raises(DataError, match="needs at least one value"):
        estimate_mean([])


def test_a_diverged_replicate_is_not_dropped():
    e = estimate_mean([1.0, math.nan, 3.0])
    assert e.n == 3
    assert math.isnan(e.mean)
    assert math.isnan(e.standard_error)


def test_summarise():
    table = metrics.validate(
        [row("e", "meta", "error", v, replicate=i) for i, v in enumerate((2.0, 4.0, 6.0))]
        + [row("e", "bptt", "error", 1.5, setting="s")]
    )
    summary = summarise(table)
    assert summary.columns.tolist() == [
        "experiment",
        "arm",
        "setting",
        "evaluation",
        "metric",
        "mean",
        "standard_error",
        "n",
    ]
    assert summary["arm"].tolist() == ["meta", "bptt"]
    assert summary["mean"].tolist() == [4.0, 1.5]
    assert summary["n"].tolist() == [3, 1]
    np.testing.assert_allclose(summary["standard_error"], [2 / math.sqrt(3), math.nan])
    assert summarise(metrics.validate([])).empty


def test_a_cell_is_of_replicates_or_of_the_whole_run():
    table = metrics.validate([row("e", "meta", "error", 1.0, replicate=0), row("e", "meta", "error", 2.0)])
    with pytest.raises(DataError, match="e, meta, error stand both"):
        summarise(table)


def test_paired_difference_agrees_with_scipy():
    d = paired_difference(A, B.sample(frac=1, random_state=0))
    test = stats.ttest_rel(A, B)
    assert d.mean == pytest.approx((A - B).mean())
    assert d.p_value == pytest.approx(test.pvalue)
    assert (d.low, d.high) == pytest.approx(tuple(test.confidence_interval(0.95)))


def test_pairs_by_nullable_replicates_of_the_metrics_table():
    rows = [row("e", arm, "m", v, replicate=i) for arm, s in (("a", A), ("b", B)) for i, v in s.items()]
    a, b = (metrics.select(metrics.validate(rows), experiment="e", arm=arm, metric="m") for arm in "ab")
    assert paired_difference(a, b) == paired_difference(A, B)
    whole = metrics.validate([row("e", "a", "m", 3.0), row("e", "b", "m", 1.0)])
    a, b = (metrics.select(whole, experiment="e", arm=arm, metric="m") for arm in "ab")
    assert (paired_difference(a, b).mean, paired_difference(a, b).n) == (2.0, 1)


def test_unpaired_replicates_are_refused():
    with pytest.raises(DataError, match=r"only one of them has replicate 0, 9\."):
        paired_difference(A, B.rename({0: 9}))
    with pytest.raises(DataError, match=r"The first arm has a replicate twice \(replicate 1\)"):
        paired_difference(A.rename({0: 1}), B)


def test_no_spread_between_pairs():
    assert paired_difference(A, A).p_value == 1.0
    assert paired_difference(A * 0 + 1, A * 0).p_value == 0.0
    assert math.isnan(paired_difference(A[:1], B[:1]).p_value)


def test_bootstrap_of_equal_clusters_is_that_of_their_means():
    generator = np.random.default_rng(0)
    means = generator.normal(80, 2, 40)
    values = (means[:, None] + [-1.0, 0.0, 1.0]).ravel()
    e = cluster_bootstrap(values, np.repeat(np.arange(40), 3))
    assert e.mean == pytest.approx(means.mean())
    assert e.n == 40
    # The bootstrap's variance has n in the denominator.
    assert e.standard_error == pytest.approx(np.std(means) / math.sqrt(40), rel=0.03)
    half = stats.norm.ppf(0.975) * e.standard_error
    assert (e.low, e.high) == pytest.approx((e.mean - half, e.mean + half), abs=0.05 * half)


def test_runs_of_a_seed_add_no_information():
    means = np.array([78.0, 80.0, 81.0, 83.0, 79.0])
    many = cluster_bootstrap(np.repeat(means, 5), np.repeat(list("abcde"), 5))
    assert many == cluster_bootstrap(means, list("abcde"))
    assert many.standard_error > 1.5 * estimate_mean(np.repeat(means, 5)).standard_error


def test_unequal_clusters_weigh_by_size():
    e = cluster_bootstrap([0.0] * 9 + [10.0], ["a"] * 9 + ["b"])  # draws: aa 0, ab and ba 10 / 10, bb 10
    assert (e.mean, e.low, e.high) == (1.0, 0.0, 10.0)
    assert e.standard_error == pytest.approx(np.std([0.0, 1.0, 1.0, 10.0]), rel=0.03)


def test_bootstrap_is_seeded_and_needs_two_clusters():
    values, clusters = [1.0, 2.0, 4.0, 8.0], [0, 0, 1, 2]
    assert cluster_bootstrap(values, clusters, seed=1) == cluster_bootstrap(values, clusters, seed=1)
    assert cluster_bootstrap(values, clusters, seed=1) != cluster_bootstrap(values, clusters, seed=2)
    with pytest.raises(DataError, match=r"at least two of them; here there is 1\."):
        cluster_bootstrap(values, [0, 0, 0, 0])
    with pytest.raises(ValueError, match="same length"):
        cluster_bootstrap(values, [0, 1])


def test_estimate_covers_the_truth_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(5, 1, (2000, 5))
    inside = [e.low <= 5 <= e.high for e in map(estimate_mean, draws)]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)
    assert estimate(5.0, 0.0, 4).low == 5.0


def test_means_of_clusters_carry_on_what_is_not_finite():
    means = cluster_means(pd.Series([1.0, 2.0, math.nan, 6.0, 8.0]), ["b", "b", "a", "c", "c"])
    assert means.index.tolist() == ["a", "b", "c"]
    np.testing.assert_equal(means.tolist(), [math.nan, 1.5, 7.0])


def test_a_paired_ratio_is_the_geometric_mean_of_the_pairs():
    a, b = pd.Series([2.0, 8.0, 3.0], index=[0, 1, 2]), pd.Series([1.0, 2.0, 1.5], index=[2, 1, 0])
    logs = np.log([2.0 / 1.5, 8.0 / 2.0, 3.0 / 1.0])
    ratio = paired_ratio(a, b)
    assert (ratio.mean, ratio.n) == (pytest.approx(16 ** (1 / 3)), 3)
    low, high = stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert ratio.standard_error == pytest.approx(ratio.mean * stats.sem(logs))
    assert math.isnan(paired_ratio(a[:1], b[2:]).low)
    with pytest.raises(DataError, match="same replicates"):
        paired_ratio(a, b[:2])
    with pytest.raises(DataError, match="at least one value"):
        paired_ratio(a[:0], b[:0])


def test_a_paired_ratio_does_not_depend_on_its_unit_and_inverts():
    generator = np.random.default_rng(0)
    a, b = (pd.Series(generator.lognormal(size=9)) for _ in range(2))
    one, other, inverse = paired_ratio(a, b), paired_ratio(1000 * a, 1000 * b), paired_ratio(b, a)
    assert (one.mean, one.low, one.high) == pytest.approx((other.mean, other.low, other.high))
    assert (one.mean, one.low, one.high) == pytest.approx((1 / inverse.mean, 1 / inverse.high, 1 / inverse.low))
    assert one.p_above(2.0) == pytest.approx(inverse.p_below(0.5))
    assert one.p_above(0.0) == 0


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_ratio_of_values_that_are_not_positive_is_not_finite(bad: float):
    ratio = paired_ratio(pd.Series([2.0, bad]), pd.Series([1.0, 1.0]))
    assert not math.isfinite(ratio.mean)
    assert math.isnan(ratio.low)


def test_one_sided_p_values_are_those_of_the_t_test():
    values = np.random.default_rng(1).normal(1, 2, 6)
    e = estimate_mean(values)
    for bound in (-1.0, 0.0, 2.0):
        assert e.p_above(bound) == pytest.approx(stats.ttest_1samp(values, bound, alternative="greater").pvalue)
        assert e.p_below(bound) == pytest.approx(stats.ttest_1samp(values, bound, alternative="less").pvalue)
    assert e.p_above(e.low) == pytest.approx(0.025)
    assert e.p_below(e.high) == pytest.approx(0.025)
    assert (e.p_above(-math.inf), e.p_below(-math.inf), e.p_above(math.inf)) == (0, 1, 1)


def test_without_a_spread_there_is_no_p_value_and_with_a_spread_of_0_it_is_0_or_1():
    one, equal = estimate_mean([3.0]), estimate(3.0, 0.0, 5)
    assert math.isnan(one.p_above(0.0))
    assert math.isnan(one.visible(0.0))
    assert (equal.p_above(2.0), equal.p_above(3.0), equal.p_above(4.0)) == (0, 0.5, 1)
    assert (equal.p_below(2.0), equal.p_below(3.0), equal.p_below(4.0)) == (1, 0.5, 0)
    assert equal.visible(0.0) == 0


@pytest.mark.parametrize(("n", "level"), [(5, 0.05), (5, 0.05 / 40), (12, 0.05 / 3)])
def test_a_difference_that_can_be_seen_is_seen_in_four_of_five_experiments(n: int, level: float):
    d = estimate(0.0, 2.0, n).visible(0.0, level)
    bound = stats.t.ppf(1 - level / 2, n - 1)
    assert stats.nct.sf(bound, n - 1, d / 2.0) == pytest.approx(0.8, abs=1e-6)
    draws = np.random.default_rng(2).normal(d / 2.0 / math.sqrt(n), 1.0, (4000, n))
    t = draws.mean(axis=1) / (draws.std(axis=1, ddof=1) / math.sqrt(n))
    assert (t > bound).mean() == pytest.approx(0.8, abs=0.02)


def test_a_ratio_that_can_be_seen_is_so_far_above_the_bound():
    ratio = paired_ratio(pd.Series([2.0, 2.4, 2.2, 2.1, 2.6]), pd.Series([1.0] * 5))
    logs = estimate_mean(np.log([2.0, 2.4, 2.2, 2.1, 2.6]))
    assert ratio.visible(3.0, 0.01) == pytest.approx(3.0 * (math.exp(logs.visible(0.0, 0.01)) - 1))


def test_holm_adjusts_as_its_definition_says():
    p = [0.04, 0.001, 0.02, 0.9, 0.013]
    order = np.argsort(p)
    expected = np.maximum.accumulate([min(1, (5 - rank) * p[i]) for rank, i in enumerate(order)])
    assert [holm(p)[i] for i in order] == pytest.approx(expected)
    assert holm([0.02, 0.021]) == [0.04, 0.04], "not below a smaller one"
    assert holm([0.03]) == [0.03]
    assert holm([]) == []
    assert holm([0.02, math.nan])[0] == pytest.approx(0.04), "a test without a p-value counts"


def test_holm_keeps_the_family_wise_error():
    """Of ten true nulls and two false ones, with correlated data, a true one is rejected in at most 5 % of families."""
    generator, wrong, found = np.random.default_rng(3), 0, 0
    effects = np.array([0.0] * 10 + [6.0] * 2)
    for _ in range(1500):
        values = generator.normal(size=(5, 12)) + generator.normal(size=(5, 1)) + effects
        e = [estimate_mean(column) for column in values.T]
        adjusted = np.array(holm([2 * min(each.p_above(0.0), each.p_below(0.0)) for each in e]))
        wrong += (adjusted[:10] <= LEVEL).any()
        found += (adjusted[10:] <= LEVEL).sum()
    assert 0.005 < wrong / 1500 <= LEVEL + 0.01
    assert found > 0
