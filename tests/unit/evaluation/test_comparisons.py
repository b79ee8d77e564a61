"""Verdicts on both sides of a criterion, for each kind of evidence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from metapt.evaluation.comparisons import (
    BEYOND_THE_PAPER,
    NOT_BELOW,
    OF_THE_PAPER,
    STAND_IN,
    Comparison,
    Criterion,
    Judgement,
    Measurement,
    Sanity,
    at_least,
    at_most,
    counts,
    decide,
    describe,
    judge,
    p_values,
    within,
)
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate, estimate, estimate_mean, paired_difference, paired_ratio

SURE = estimate(10.0, 0.1, 10)  # interval 9.77 to 10.23
ONE = estimate(10.0, math.nan, 1)


def comparison(measured: Estimate | Measurement, criterion: Criterion, **words: Any) -> Comparison:
    """Return a claim about an error that is `measured`."""
    return Comparison("The error is small.", "meta", "", "error", criterion, lambda: measured, **words)


def verdict(measured: Estimate | Measurement, criterion: Criterion, **words: Any) -> Judgement:
    """Return the verdict on a claim that is its experiment's only one."""
    (judged,) = decide([comparison(measured, criterion, **words)])
    return judged


@pytest.mark.parametrize(
    ("criterion", "word"),
    [
        (at_most(11), "reproduced"),
        (at_most(9), "not reproduced"),
        (at_least(9), "reproduced"),
        (at_least(11), "not reproduced"),
        (within(10.5, 1), "reproduced"),
        (within(12, 1), "not reproduced"),
        (within(8, 1), "not reproduced"),
        (at_most(10.1), "inconclusive"),
        (at_least(9.9), "inconclusive"),
        (within(10, 0.1), "inconclusive"),
        (within(11, 1), "inconclusive"),
        (NOT_BELOW, "reproduced"),
    ],
    ids=lambda value: value.words if isinstance(value, Criterion) else None,
)
def test_an_interval_on_one_side_decides(criterion: Criterion, word: str) -> None:
    assert verdict(SURE, criterion).word == word


@given(
    mean=st.floats(-10, 10),
    error=st.floats(0.01, 10),
    n=st.integers(5, 30),
    ends=st.tuples(st.floats(-10, 10), st.floats(-10, 10)).map(sorted),
    one_sided=st.sampled_from(["low", "high", ""]),
)
def test_a_comparison_alone_is_decided_by_its_95_percent_interval(
    mean: float, error: float, n: int, ends: list[float], one_sided: str
) -> None:
    low, high = -math.inf if one_sided == "high" else ends[0], math.inf if one_sided == "low" else ends[1]
    e = estimate(mean, error, n)
    assume(min(abs(a - b) for a in (e.low, e.high) for b in (low, high)) > 1e-9)
    expected = "inconclusive"
    if low <= e.low and e.high <= high:
        expected = "reproduced"
    elif e.high < low or high < e.low:
        expected = "not reproduced"
    assert verdict(e, Criterion(low, high, "")).word == expected


def test_with_two_ends_the_visible_distance_of_a_ratio_is_that_beyond_the_upper_end() -> None:
    """A ratio is seen by a factor, so that its distance grows with the end that it is measured from."""
    ratio = paired_ratio(pd.Series([2.0, 2.2, 1.9, 2.1, 2.0]), pd.Series([1.0] * 5))
    assert verdict(ratio, within(3.0, 2.0)).visible == pytest.approx(ratio.visible(5.0))
    assert verdict(ratio, at_least(3.0)).visible == pytest.approx(ratio.visible(3.0))
    assert verdict(ratio, at_most(3.0)).visible == pytest.approx(ratio.visible(3.0))


def test_replicates_that_all_lie_at_the_bound_decide_nothing() -> None:
    equal = estimate(10.0, 0.0, 5)
    for each in (at_most(10), at_least(10), within(11, 1)):
        judged = verdict(equal, each)
        assert judged.word == "inconclusive"
        assert judged.measured.endswith(", but all replicates lie exactly at the bound")
        assert judged.p_value == judged.adjusted_p_value == 1
    assert verdict(equal, at_most(9.99)).word == "not reproduced"
    assert verdict(equal, at_most(10.01)).word == "reproduced"


def test_within_is_shown_by_two_one_sided_tests() -> None:
    values = np.random.default_rng(0).normal(44, 2, 8)
    met, unmet = p_values(estimate_mean(values), within(45, 4))
    one_sided = [ttest_1samp(values, end, alternative=side).pvalue for end, side in ((41, "greater"), (49, "less"))]
    assert met == pytest.approx(max(one_sided))
    assert unmet == pytest.approx(1 - met)


def test_what_is_decided_alone_may_be_open_among_others() -> None:
    barely = estimate(2.0, 2.0 / 2.9, 5)  # p = 0.044
    assert verdict(barely, at_least(0)).word == "reproduced"
    alone, among = (decide([comparison(barely, at_least(0))] * count)[0] for count in (1, 2))
    assert among.word == "inconclusive"
    assert among.p_value == alone.p_value == alone.adjusted_p_value
    assert among.adjusted_p_value == pytest.approx(2 * alone.p_value)
    assert among.visible > alone.visible


def test_a_claim_that_is_sure_costs_the_next_one_less() -> None:
    barely = estimate(2.0, 2.0 / 2.9, 5)
    sure, open_ = decide([comparison(SURE, at_least(0)), comparison(barely, at_least(0))])
    assert (sure.word, open_.word) == ("reproduced", "reproduced")
    assert open_.adjusted_p_value == open_.p_value


def test_claims_that_are_not_tested_cost_nothing() -> None:
    barely = comparison(estimate(2.0, 2.0 / 2.9, 5), at_least(0))
    assert decide([barely, comparison(ONE, at_least(0))])[0] == decide([barely])[0]


def test_claims_beyond_the_paper_change_no_verdict_on_a_claim_of_the_paper() -> None:
    barely = comparison(estimate(2.0, 2.0 / 2.9, 5), at_least(0), paper="2 points")
    own = [comparison(estimate(2.0, 2.0 / 2.9, 5), at_least(0))] * 2
    first, papers, last = decide([own[0], barely, own[1]])
    assert papers == decide([barely])[0]
    assert [first, last] == decide(own), "they are corrected for their own number"
    assert (papers.word, first.word) == ("reproduced", "inconclusive")
    assert judge("e", [own[0], barely, own[1]])["family"].tolist() == [BEYOND_THE_PAPER, OF_THE_PAPER, BEYOND_THE_PAPER]


def test_on_stand_in_data_a_known_answer_is_found_missed_or_open() -> None:
    criteria = at_most(11), at_least(11), at_most(10.1)
    claims = [*(comparison(SURE, each, paper="7.2 ± 1.5") for each in criteria), comparison(ONE, at_most(11))]
    found = judge("e", claims, stand_in=True)
    assert found["verdict"].tolist() == ["found", "missed", "open", "too few seeds"]
    assert set(found["paper"]) == {STAND_IN}
    assert found.drop(columns=["verdict", "paper"]).equals(judge("e", claims).drop(columns=["verdict", "paper"]))


def test_few_of_many_true_claims_at_their_bound_are_decided() -> None:
    """Of eight claims whose true values are the bounds, at most 5 % of the experiments decide one."""
    generator, wrong = np.random.default_rng(0), 0
    for _ in range(800):
        values = generator.normal(size=(8, 5))
        wrong += any(
            each.word != "inconclusive" for each in decide([comparison(estimate_mean(x), at_least(0)) for x in values])
        )
    assert 0.02 < wrong / 800 < 0.07


@pytest.mark.parametrize("values", [[1.0, 2.0, 1.0, 3.0, math.nan], [1.0, math.inf, 2.0, 4.0, 4.0, 4.0]])
def test_a_diverged_replicate_decides_nothing(values: list[float]) -> None:
    judged = verdict(estimate_mean(values), at_least(0))
    assert judged.word == "inconclusive"
    assert "no finite number" in judged.measured
    assert math.isnan(judged.p_value)


def test_a_difference_of_pairs_has_the_spread_of_the_gain() -> None:
    seeds = pd.Series([70.0, 75.0, 80.0, 85.0, 90.0])  # far apart, but with equal gains
    gain = pd.Series([4.4, 4.6, 4.5, 4.5, 4.5])
    judged = verdict(paired_difference(seeds + gain, seeds), at_least(4))
    assert judged[:2] == ("reproduced", "4.50 ± 0.03 (n = 5, 95% interval 4.41 to 4.59)")


@pytest.mark.parametrize("n", [1, 2, 4])
def test_fewer_than_five_seeds_decide_nothing(n: int) -> None:
    few = estimate(10.0, 0.1, n)
    judged = verdict(few, at_least(9))
    assert judged[:2] == ("too few seeds", f"{describe(few)}, fewer than 5 seeds")
    assert math.isnan(judged.p_value)
    assert verdict(estimate(10.0, 0.1, 5), at_least(9)).word == "reproduced"


@pytest.mark.parametrize(
    ("own", "word"),
    [
        (estimate(2.0, 0.5, 5), "reproduced"),
        (estimate(1.0, 0.5, 5), "control failed"),  # one-sided p = 0.058
        (estimate(1.1, 0.5, 5), "reproduced"),  # one-sided p = 0.046
        (estimate(-1.0, 0.1, 5), "control failed"),
        (estimate(0.0, 0.0, 5), "control failed"),
        (estimate_mean([1.0, 1.0, 1.0, 1.0, math.nan]), "control failed"),
        (estimate(2.0, 0.1, 4), "too few seeds"),
    ],
)
def test_nothing_is_claimed_against_a_control_that_is_no_better_than_its_start(own: Estimate, word: str) -> None:
    sanity = Sanity("bptt beats its start", lambda: own)
    judged = verdict(SURE, at_least(9), sanity=sanity)
    assert judged.word == word
    if word == "control failed":
        assert judged.measured.startswith("10.00 ± 0.10 (n = 10")
        assert judged.measured.endswith(f", but it is not shown that bptt beats its start: {describe(own)}")


def test_too_few_seeds_of_a_check_are_said_to_be_those_of_the_check() -> None:
    judged = verdict(SURE, at_least(9), sanity=Sanity("bptt beats its start", lambda: estimate(2.0, 0.1, 4)))
    assert judged.measured == f"{describe(SURE)}, but fewer than 5 seeds show whether bptt beats its start"


def test_a_control_that_could_not_be_checked_is_not_measured() -> None:
    def start() -> Estimate:
        raise NotMeasuredError("The start was not run.")

    judged = verdict(SURE, at_least(9), sanity=Sanity("bptt beats its start", start))
    assert judged[:2] == ("not measured", "The start was not run.")


def test_measured_can_have_words_of_its_own_and_a_doubt() -> None:
    words = f"log10: {describe(SURE)}"
    assert verdict(Measurement(SURE, "log10: {}"), at_least(9))[:2] == ("reproduced", words)
    doubtful = Measurement(SURE, "log10: {}", "on two machines")
    assert verdict(doubtful, at_least(9))[:2] == ("inconclusive", f"{words}, on two machines")


def test_a_number_is_described_as_far_as_it_is_known() -> None:
    assert describe(ONE) == "10.00 (n = 1: no spread known)"
    assert describe(estimate(12345678.0, 345678.0, 5)) == "(1.23 ± 0.03)e7 (n = 5, 95% interval 1.14e7 to 1.33e7)"


def test_judge_gives_a_row_per_comparison() -> None:
    def not_measured() -> Estimate:
        raise NotMeasuredError("No run has measured experiment 'e', arm 'bptt'.")

    verdicts = judge(
        "e",
        [
            Comparison(
                text="The error is at most 7.2 degrees.",
                arm="meta",
                control="simclr",
                metric="error",
                criterion=at_most(7.2),
                measure=lambda: estimate_mean([2.0, 2.2, 1.9, 2.0, 2.1]),
                evaluation="full",
                paper="7.2 ± 1.5",
            ),
            Comparison("So is BPTT's.", "bptt", "", "error", at_most(7.2), not_measured),
        ],
    )
    numbers = ["mean", "standard_error", "n", "low", "high", "p_value", "adjusted_p_value", "visible_difference"]
    e = estimate_mean([2.0, 2.2, 1.9, 2.0, 2.1])
    assert verdicts[numbers[:5]].iloc[0].tolist() == pytest.approx([e.mean, e.standard_error, 5, e.low, e.high])
    assert verdicts["p_value"][0] == verdicts["adjusted_p_value"][0] == pytest.approx(2 * e.p_below(7.2))
    assert verdicts["visible_difference"][0] == pytest.approx(e.visible(7.2))
    assert verdicts[numbers].iloc[1].isna().all()
    words = verdicts.drop(columns=["measured", *numbers])
    assert words.to_dict("records") == [
        {
            "experiment": "e",
            "family": OF_THE_PAPER,
            "claim": "The error is at most 7.2 degrees.",
            "arm": "meta",
            "control": "simclr",
            "metric": "error",
            "evaluation": "full",
            "criterion": "at most 7.2",
            "least_seeds": 5,
            "paper": "7.2 ± 1.5",
            "verdict": "reproduced",
        },
        {
            "experiment": "e",
            "family": BEYOND_THE_PAPER,
            "claim": "So is BPTT's.",
            "arm": "bptt",
            "control": "",
            "metric": "error",
            "evaluation": "",
            "criterion": "",
            "least_seeds": 5,
            "paper": BEYOND_THE_PAPER,
            "verdict": "not measured",
        },
    ]
    assert verdicts["measured"].iloc[1] == "No run has measured experiment 'e', arm 'bptt'."


def test_no_comparisons_are_a_table_without_rows() -> None:
    verdicts = judge("e", [])
    assert verdicts.empty
    assert verdicts.columns.tolist() == [*judge("e", [comparison(ONE, at_most(11))]).columns]


def test_verdicts_are_counted_in_one_order() -> None:
    assert list(counts(["too few seeds", "reproduced", "reproduced"]).items()) == [
        ("reproduced", 2),
        ("too few seeds", 1),
    ]
