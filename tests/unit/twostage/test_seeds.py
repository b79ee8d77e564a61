"""Statistics of FT runs that share encoders."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from metapt.errors import DataError
from metapt.evaluation.comparisons import decide
from metapt.twostage.arms import Pair
from metapt.twostage.quantities import pair, pretrain_seed
from metapt.twostage.results import Cell, difference, over_seeds, seed_means
from metapt.twostage.tables import arm_differences, better, difference_text


def runs(seeds: list[float], spread: float = 0.1, count: int = 4) -> pd.Series[float]:
    """Return FT runs around the value of each PT seed."""
    found = {
        pair(pt, ft): value + spread * (ft - (count - 1) / 2) for pt, value in enumerate(seeds) for ft in range(count)
    }
    return pd.Series(found)


def test_runs_of_one_encoder_are_averaged_first() -> None:
    values = runs([70.0, 72.0, 74.0])
    assert seed_means(values).to_dict() == pytest.approx({0: 70.0, 1: 72.0, 2: 74.0})
    assert over_seeds(values).standard_error == pytest.approx(2 / math.sqrt(3))
    assert over_seeds(values).mean == pytest.approx(72.0)


def test_what_a_pt_seed_does_to_both_arms_cancels_in_whatever_order_they_stand() -> None:
    a, b = runs([71.0, 75.0, 69.5, 80.0]), runs([70.0, 74.0, 68.5, 79.0])
    d = difference(a, b)
    assert (d.mean, d.standard_error, d.n) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-9), 4)
    for order in (b[::-1], b.sample(frac=1, random_state=0)):
        assert difference(a, order) == d
    with pytest.raises(DataError, match="same replicates"):
        difference(a, runs([70.0]))


def test_the_columns_of_a_difference_are_of_the_first_minus_the_second_arm() -> None:
    a, b = runs([71.0, 75.4, 69.8, 80.9]), runs([70.0, 74.0, 68.5, 79.0])
    found: Any = SimpleNamespace(
        cells=lambda: [Cell(arm, "s", "e", {"arm": arm}) for arm in ("a", "b", "other")],
        runs=lambda arm, setting, evaluation: {"a": a, "b": b}[arm],
        setting_of_control=lambda control, setting: setting,
    )
    d = difference(a, b)
    [row] = arm_differences(found, [Pair("a", "b")]).to_dict("records")
    assert row == {"arm": "a", "minus": "b", "mean": d.mean, "seed_standard_error": d.standard_error, "seeds": 4} | {
        "low": d.low, "high": d.high, "p_value": d.p_value
    }  # fmt: skip
    assert row["mean"] == pytest.approx(1.4)


@pytest.mark.parametrize(("control", "word"), [(60.0, "reproduced"), (70.5, "control failed")])
def test_a_control_that_is_no_better_than_no_pt_is_no_control(control: float, word: str) -> None:
    a, b, start = (
        runs([value + seed * slope for seed in range(5)]) for value, slope in ((75, 1), (70, 0.9), (control, 1))
    )
    both = (lambda: a, lambda: b)
    claim = better("a beats b", "a", "b", "AUROC", "full_transfer", both, without=("no_pt", lambda: start))
    (judged,) = decide([claim])
    assert judged.word == word
    assert ("not shown that b beats no_pt" in judged.measured) == (word == "control failed")


def test_a_pair_of_seeds_is_one_number() -> None:
    pairs = [(pt, ft) for pt in (0, 1, 40) for ft in (0, 7, 999)]
    assert [(pretrain_seed(pair(*each)), pair(*each) % 1000) for each in pairs] == pairs


@pytest.mark.parametrize(("p_value", "words"), [(0.004, "p = 0.004"), (0.0012, "p = 0.0012"), (0.0009, "p < 0.001")])
def test_a_difference_in_words_has_its_p_value_down_to_a_thousandth(p_value: float, words: str) -> None:
    row = {"mean": 1.24, "seed_standard_error": 0.3, "low": 0.5, "high": 2.0, "p_value": p_value}
    assert difference_text(row, p_value=True) == f"1.2 ± 0.3 [0.5, 2.0], {words}"
    assert difference_text(row) == "1.2 ± 0.3 [0.5, 2.0]"
