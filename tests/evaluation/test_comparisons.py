"""Verdicts on both sides of a criterion, for each kind of evidence."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from metapt.evaluation.comparisons import (
    BEYOND_THE_PAPER,
    NOT_BELOW,
    Comparison,
    Criterion,
    Measurement,
    at_least,
    at_most,
    compare,
    decide,
    describe,
    judge,
    within,
)
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate, estimate, estimate_mean, paired_difference

SURE = estimate(10.0, 0.1, 10)  # interval 9.77 to 10.23
ONE = estimate(10.0, math.nan, 1)


def comparison(measured: Estimate | Measurement, criterion: Criterion, least_seeds: int = 1) -> Comparison:
    """Return a claim about an error that is `measured`."""
    return Comparison("The error is small.", "meta", "", "error", criterion, lambda: measured, least_seeds=least_seeds)


@pytest.mark.parametrize("measured", [SURE, ONE], ids=["ten values", "one value"])
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
    ],
    ids=lambda value: value.words if isinstance(value, Criterion) else None,
)
def test_an_interval_on_one_side_decides(measured: Estimate, criterion: Criterion, word: str) -> None:
    assert compare(measured, criterion) == word


@pytest.mark.parametrize(
    "criterion", [at_most(10.1), at_least(9.9), within(10, 0.1), within(11, 1)], ids=lambda each: each.words
)
def test_an_interval_that_holds_an_end_of_the_criterion_is_inconclusive(criterion: Criterion) -> None:
    assert compare(SURE, criterion) == "inconclusive"


def test_the_ends_belong_to_the_criterion() -> None:
    assert compare(ONE, at_most(10)) == compare(ONE, at_least(10)) == compare(ONE, within(11, 1)) == "reproduced"


def test_a_criterion_names_what_it_bounds() -> None:
    assert at_least(4, "difference").words == "difference at least 4"
    assert at_most(1.5, "ratio").words == "ratio at most 1.5"
    assert Criterion(0.0, math.inf, "difference at least 0") == NOT_BELOW


def test_one_value_says_that_it_is_one() -> None:
    assert describe(ONE) == "10.00 (n = 1: no spread known, the value alone decides)"


@pytest.mark.parametrize("values", [[1.0, math.nan], [math.nan], [math.inf], [1.0, math.inf, 2.0]])
@pytest.mark.parametrize("least_seeds", [1, 2])
def test_a_diverged_replicate_decides_nothing(values: list[float], least_seeds: int) -> None:
    verdict = decide(comparison(estimate_mean(values), at_least(0), least_seeds))
    assert verdict.word == "inconclusive"
    assert "no finite number" in verdict.measured


def test_a_difference_of_pairs_has_the_spread_of_the_gain() -> None:
    seeds = pd.Series([70.0, 75.0, 80.0, 85.0])  # far apart, but with equal gains
    gain = pd.Series([4.4, 4.6, 4.5, 4.5])
    verdict = decide(comparison(paired_difference(seeds + gain, seeds), at_least(4, "difference")))
    assert verdict[:2] == ("reproduced", "4.50 ± 0.04 (n = 4, 95% interval 4.37 to 4.63)")


def test_one_of_what_varies_much_decides_nothing() -> None:
    assert decide(comparison(SURE, at_least(9), least_seeds=2)) == decide(comparison(SURE, at_least(9)))
    verdict = decide(comparison(ONE, at_least(9), least_seeds=2))
    assert verdict[:2] == ("inconclusive", "10.00 (n = 1 PT seed: no spread known)")


def test_fewer_seeds_than_the_comparison_asks_for_decide_nothing() -> None:
    few = estimate(10.0, 0.1, 4)
    assert decide(comparison(few, at_least(9), least_seeds=4)).word == "reproduced"
    verdict = decide(comparison(few, at_least(9), least_seeds=5))
    assert verdict[:2] == ("inconclusive", f"{describe(few)}, fewer than 5 PT seeds")


def test_measured_can_have_words_of_its_own_and_a_doubt() -> None:
    assert decide(comparison(Measurement(ONE, "log10: {}"), at_least(9)))[:2] == (
        "reproduced",
        f"log10: {describe(ONE)}",
    )
    doubtful = Measurement(SURE, "log10: {}", "on two machines")
    assert decide(comparison(doubtful, at_least(9)))[:2] == (
        "inconclusive",
        f"log10: {describe(SURE)}, on two machines",
    )


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
                measure=lambda: estimate_mean([2.0, 2.2, 1.9]),
                evaluation="full",
                paper="7.2 ± 1.5",
                least_seeds=2,
            ),
            Comparison("So is BPTT's.", "bptt", "", "error", at_most(7.2), not_measured),
        ],
    )
    assert verdicts[["mean", "n"]].iloc[0].tolist() == [pytest.approx(6.1 / 3), 3]
    assert verdicts[["mean", "standard_error", "n"]].iloc[1].isna().all()
    words = verdicts.drop(columns=["measured", "mean", "standard_error", "n"])
    assert words.to_dict("records") == [
        {
            "experiment": "e",
            "claim": "The error is at most 7.2 degrees.",
            "arm": "meta",
            "control": "simclr",
            "metric": "error",
            "evaluation": "full",
            "criterion": "at most 7.2",
            "least_seeds": 2,
            "paper": "7.2 ± 1.5",
            "verdict": "reproduced",
        },
        {
            "experiment": "e",
            "claim": "So is BPTT's.",
            "arm": "bptt",
            "control": "",
            "metric": "error",
            "evaluation": "",
            "criterion": "",
            "least_seeds": 1,
            "paper": BEYOND_THE_PAPER,
            "verdict": "not measured",
        },
    ]
    assert verdicts["measured"].iloc[1] == "No run has measured experiment 'e', arm 'bptt'."


def test_no_comparisons_are_a_table_without_rows() -> None:
    verdicts = judge("e", [])
    assert verdicts.empty
    assert verdicts.columns.tolist() == [*judge("e", [comparison(ONE, at_most(11))]).columns]
