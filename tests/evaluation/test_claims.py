"""Verdicts: each side of a bound, each kind of evidence."""

import math

import pandas as pd
import pytest

from metapt.evaluation import metrics
from metapt.evaluation.claims import Claim, at_least, at_most, difference_at_least, from_several, judge, within
from metapt.evaluation.metrics import row, select
from metapt.evaluation.statistics import estimate, estimate_mean

SURE = estimate(10.0, 0.1, 10)  # interval 9.77 to 10.23
ONE = estimate(10.0, math.nan, 1)


@pytest.mark.parametrize("measured", [SURE, ONE])
@pytest.mark.parametrize(
    ("compare", "word"),
    [
        (lambda e: at_most(e, 11), "reproduced"),
        (lambda e: at_most(e, 9), "not reproduced"),
        (lambda e: at_least(e, 9), "reproduced"),
        (lambda e: at_least(e, 11), "not reproduced"),
        (lambda e: within(e, 10.5, 1), "reproduced"),
        (lambda e: within(e, 12, 1), "not reproduced"),
        (lambda e: within(e, 8, 1), "not reproduced"),
    ],
)
def test_clear_cases(measured, compare, word):
    assert compare(measured).word == word


@pytest.mark.parametrize("verdict", [at_most(SURE, 10.1), at_least(SURE, 9.9), within(SURE, 10, 0.1), within(SURE, 11, 1)])
def test_a_bound_within_the_interval_is_inconclusive(verdict):
    assert verdict.word == "inconclusive"


def test_bounds_belong_to_the_claim():
    assert at_most(ONE, 10).word == at_least(ONE, 10).word == "reproduced"


def test_one_value_says_that_it_is_one():
    assert at_least(ONE, 9).measured == "10.00 (n = 1: no spread known, the value alone decides)"


@pytest.mark.parametrize("values", [[1.0, math.nan], [math.nan], [math.inf], [1.0, math.inf, 2.0]])
def test_a_diverged_replicate_decides_nothing(values):
    verdict = at_least(estimate_mean(values), 0)
    assert verdict.word == "inconclusive"
    assert "no finite number" in verdict.measured


def test_difference_is_paired():
    seeds = pd.Series([70.0, 75.0, 80.0, 85.0])  # far apart, but the gain is the same on each
    gain = pd.Series([4.4, 4.6, 4.5, 4.5])
    verdict = difference_at_least(seeds + gain, seeds, 4)
    assert verdict.word == "reproduced"
    assert verdict.bound == "difference at least 4"
    assert verdict.measured == "4.50 ± 0.04 (n = 4, 95% interval 4.37 to 4.63)"


def test_judge_gives_a_row_per_claim():
    table = metrics.validate([row("e", "meta", "error", v, replicate=i) for i, v in enumerate((2.0, 2.2, 1.9))])

    def error_of(arm):
        return lambda m: at_most(estimate_mean(select(m, experiment="e", arm=arm, metric="error")), 7.2)

    claims = [
        Claim("e", "The error is at most 7.2 degrees.", error_of("meta"), "7.2 ± 1.5"),
        Claim("e", "So is BPTT's.", error_of("bptt")),
    ]
    verdicts = judge(claims, table)
    assert verdicts.columns.tolist() == ["experiment", "claim", "measured", "bound", "paper", "verdict"]
    assert verdicts["verdict"].tolist() == ["reproduced", "not measured"]
    assert verdicts["measured"].iloc[1] == "No run has measured experiment 'e', arm 'bptt', metric 'error'."
    assert verdicts["paper"].tolist() == ["7.2 ± 1.5", ""]


def test_one_of_what_varies_much_decides_nothing():
    def compare(measured):
        return at_least(measured, 9)

    assert from_several(compare, SURE, "PT seed") == compare(SURE)
    verdict = from_several(compare, ONE, "PT seed")
    assert (verdict.word, verdict.bound) == ("inconclusive", "at least 9")
    assert verdict.measured == "10.00 (n = 1 PT seed: no spread known)"
    diverged = from_several(compare, estimate(math.nan, math.nan, 1), "PT seed")
    assert "no finite number" in diverged.measured
