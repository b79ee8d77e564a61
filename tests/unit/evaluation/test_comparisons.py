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
    COLUMNS,
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
from metapt.evaluation.statistics import Estimate, estimate, estimate_mean, paired_ratio

SURE = estimate(10.0, 0.1, 10)  # interval 9.77 to 10.23
ONE = estimate(10.0, math.nan, 1)


def comparison(measured: Estimate | Measurement, criterion: Criterion, **words: Any) -> Comparison:
    """Return a claim about an error that is `measured`."""
    return Comparison("The error is small.", "meta", "", "error", criterion, lambda: measured, **words)


def verdict(measured: Estimate | Measurement, criterion: Criterion, **words: Any) -> Judgement:
    """Return the verdict on a claim that is its experiment's only one."""
    (judged,) = decide([comparison(measured, criterion, **words)])
    return judged


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


def test_a_number_is_described_and_decided_as_far_as_it_is_known() -> None:
    assert describe(ONE) == "10.00 (n = 1: no spread known)"
    assert describe(estimate(12345678.0, 345678.0, 5)) == "(1.23 ± 0.03)e7 (n = 5, 95% interval 1.14e7 to 1.33e7)"
    for values in ([1.0, 2.0, 1.0, 3.0, math.nan], [1.0, math.inf, 2.0, 4.0, 4.0, 4.0]):
        judged = verdict(estimate_mean(values), at_least(0))
        assert judged.word == "inconclusive"
        assert "no finite number" in judged.measured
        assert math.isnan(judged.p_value)
    for n in (1, 2, 4):
        judged = verdict(few := estimate(10.0, 0.1, n), at_least(9))
        assert judged[:2] == ("too few seeds", f"{describe(few)}, fewer than 5 seeds")
        assert math.isnan(judged.p_value)
    assert verdict(estimate(10.0, 0.1, 5), at_least(9)).word == "reproduced"


def test_criteria_have_the_ends_that_their_words_say() -> None:
    ends = {
        at_most(7.2): (-math.inf, 7.2),
        at_least(2): (2, math.inf),
        within(45, 4): (41, 49),
        NOT_BELOW: (0, math.inf),
    }
    assert all((criterion.low, criterion.high) == each for criterion, each in ends.items())
    found = counts(["too few seeds", "reproduced", "reproduced"])
    assert list(found.items()) == [("reproduced", 2), ("too few seeds", 1)], "in the order of `Word`"


def test_with_two_ends_the_visible_distance_of_a_ratio_is_that_beyond_the_upper_end() -> None:
    """A ratio is seen by a factor, so that its distance grows with the end that it is measured from."""
    ratio = paired_ratio(pd.Series([2.0, 2.2, 1.9, 2.1, 2.0]), pd.Series([1.0] * 5))
    for criterion, end in ((within(3.0, 2.0), 5.0), (at_least(3.0), 3.0), (at_most(3.0), 3.0)):
        assert verdict(ratio, criterion).visible == pytest.approx(ratio.visible(end))


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


def test_verdicts_are_corrected_for_the_number_of_tested_claims_of_their_family() -> None:
    barely, papers = (comparison(estimate(2.0, 2.0 / 2.9, 5), at_least(0), **words) for words in ({}, {"paper": "2"}))
    (alone,), both = decide([barely]), decide([barely, barely])
    assert (alone.word, both[0].word) == ("reproduced", "inconclusive")
    assert both[0].p_value == alone.p_value == alone.adjusted_p_value == pytest.approx(0.044, abs=5e-4)
    assert both[0].adjusted_p_value == pytest.approx(2 * alone.p_value)
    assert both[0].visible > alone.visible
    assert decide([comparison(SURE, at_least(0)), barely])[1][:5] == alone[:5], (
        "one that is sure costs the next nothing"
    )
    assert decide([barely, comparison(ONE, at_least(0))])[0] == alone, "nor does one that is not tested"
    found = decide([barely, papers, barely])
    assert found == [both[0], *decide([papers]), both[1]], "claims beyond the paper change none of the paper's"
    families = judge("e", [barely, papers, barely])["family"]
    assert families.tolist() == [BEYOND_THE_PAPER, OF_THE_PAPER, BEYOND_THE_PAPER]


def test_on_stand_in_data_a_known_answer_is_found_missed_or_open() -> None:
    criteria = at_most(11), at_least(11), at_most(10.1)
    claims = [*(comparison(SURE, each, paper="7.2 ± 1.5") for each in criteria), comparison(ONE, at_most(11))]
    found = judge("e", claims, stand_in=True)
    assert found["verdict"].tolist() == ["found", "missed", "open", "too few seeds"]
    assert set(found["paper"]) == {STAND_IN}
    assert found.drop(columns=["verdict", "paper"]).equals(judge("e", claims).drop(columns=["verdict", "paper"]))


@pytest.mark.parametrize(
    ("own", "word", "why"),
    [
        (estimate(2.0, 0.5, 5), "reproduced", ""),
        (estimate(1.0, 0.5, 5), "control failed", "but it is not shown"),  # one-sided p = 0.058
        (estimate(1.1, 0.5, 5), "reproduced", ""),  # one-sided p = 0.046
        (estimate(-1.0, 0.1, 5), "control failed", "but it is not shown"),
        (estimate(0.0, 0.0, 5), "control failed", "but it is not shown"),
        (estimate_mean([1.0, 1.0, 1.0, 1.0, math.nan]), "control failed", "but it is not shown"),
        (estimate(2.0, 0.1, 4), "too few seeds", "but fewer than 5 seeds show whether bptt beats its start"),
    ],
)
def test_nothing_is_claimed_against_a_control_that_is_no_better_than_its_start(
    own: Estimate, word: str, why: str
) -> None:
    judged = verdict(SURE, at_least(9), sanity=Sanity("bptt beats its start", lambda: own))
    if word == "control failed":
        why += f" that bptt beats its start: {describe(own)}"
    assert judged[:2] == (word, ", ".join(filter(None, [describe(SURE), why])))


def test_measured_can_have_words_of_its_own_and_a_doubt() -> None:
    words = f"log10: {describe(SURE)}"
    assert verdict(Measurement(SURE, "log10: {}"), at_least(9))[:2] == ("reproduced", words)
    doubtful = Measurement(SURE, "log10: {}", "on two machines")
    assert verdict(doubtful, at_least(9))[:2] == ("inconclusive", f"{words}, on two machines")


def test_judge_gives_a_row_per_comparison() -> None:
    def not_measured() -> Estimate:
        raise NotMeasuredError("No run has measured experiment 'e', arm 'bptt'.")

    e = estimate_mean([2.0, 2.2, 1.9, 2.0, 2.1])
    start = Sanity("meta beats its start", not_measured)
    names, words = ("meta", "simclr", "error"), {"evaluation": "full", "paper": "7.2 ± 1.5"}
    claims = [Comparison("The error is small.", *names, at_most(7.2), lambda: e, **words)]
    claims += [Comparison("So is BPTT's.", "bptt", "", "error", at_most(7.2), not_measured)]
    claims += [comparison(SURE, at_least(9), sanity=start)]
    verdicts = judge("e", claims)
    numbers = ["mean", "standard_error", "n", "low", "high", "p_value", "adjusted_p_value", "visible_difference"]
    p_value = 2 * e.p_below(7.2)
    expected = [e.mean, e.standard_error, 5, e.low, e.high, p_value, p_value, e.visible(7.2)]
    assert verdicts[numbers].iloc[0].tolist() == pytest.approx(expected)
    assert verdicts[numbers].iloc[1:].isna().all(axis=None)
    assert verdicts.drop(columns=["measured", *numbers]).to_numpy().tolist() == [
        ["e", OF_THE_PAPER, "The error is small.", *names, "full", "at most 7.2", 5, "7.2 ± 1.5", "reproduced"],
        ["e", BEYOND_THE_PAPER, "So is BPTT's.", "bptt", "", "error", "", "", 5, BEYOND_THE_PAPER, "not measured"],
        [
            "e",
            BEYOND_THE_PAPER,
            "The error is small.",
            "meta",
            "",
            "error",
            "",
            "",
            5,
            BEYOND_THE_PAPER,
            "not measured",
        ],
    ]
    assert verdicts["measured"].tolist()[1:] == ["No run has measured experiment 'e', arm 'bptt'."] * 2
    assert judge("e", []).columns.tolist() == verdicts.columns.tolist() == COLUMNS
