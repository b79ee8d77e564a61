"""FT runs that share encoders count by PT seed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from metapt.errors import DataError
from metapt.twostage.pairs import pair
from metapt.twostage.seeded import (
    bootstrap,
    difference,
    difference_columns,
    machine_of,
    not_below,
    over_runs,
    over_seeds,
    seed_means,
)


def runs(seeds: list[float], spread: float = 0.1, count: int = 4) -> pd.Series[float]:
    """FT runs around the value of each PT seed."""
    found = {pair(pt, ft): value + spread * (ft - (count - 1) / 2) for pt, value in enumerate(seeds) for ft in range(count)}
    return pd.Series(found)


def test_runs_of_one_encoder_are_averaged_first() -> None:
    values = runs([70.0, 72.0, 74.0])
    assert seed_means(values).to_dict() == pytest.approx({0: 70.0, 1: 72.0, 2: 74.0})
    assert over_seeds(values).standard_error == pytest.approx(2 / math.sqrt(3))
    assert over_runs(values).standard_error == pytest.approx(np.std(values, ddof=1) / math.sqrt(12))
    assert over_runs(values).mean == over_seeds(values).mean == pytest.approx(72.0)


def test_what_a_pt_seed_does_to_both_arms_cancels() -> None:
    d = difference(runs([71.0, 75.0, 69.5]), runs([70.0, 74.0, 68.5]))
    assert (d.mean, d.standard_error, d.n) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-9), 3)


def test_the_bootstrap_pairs_runs_by_their_seeds_in_whatever_order_they_stand() -> None:
    a, b = runs([71.0, 75.0, 69.5, 80.0]), runs([70.0, 74.0, 68.5, 79.0])
    for order in (b[::-1], b.sample(frac=1, random_state=0)):
        drawn = bootstrap(a, order)
        assert (drawn.mean, drawn.low, drawn.high, drawn.n) == (*[pytest.approx(1.0)] * 3, 4)


def test_the_bootstrap_draws_pt_seeds_and_not_runs() -> None:
    a, b = runs([71.0, 72.0, 73.0, 78.0], spread=0.0, count=50), runs([70.0] * 4, spread=0.0, count=50)
    drawn = bootstrap(a, b)
    assert drawn.standard_error == pytest.approx(np.std([1.0, 2.0, 3.0, 8.0]) / 2, rel=0.05)


def test_a_bootstrap_of_one_pt_seed_has_no_interval() -> None:
    drawn = bootstrap(runs([71.0]), runs([70.0]))
    assert (drawn.mean, drawn.n) == (pytest.approx(1.0), 1)
    assert math.isnan(drawn.low)


def test_the_columns_of_a_difference_are_of_the_first_minus_the_second_arm() -> None:
    a, b = runs([71.0, 75.4, 69.8, 80.9]), runs([70.0, 74.0, 68.5, 79.0])
    columns, d, drawn = difference_columns(a, b), difference(a, b), bootstrap(a, b)
    assert columns["mean"] == pytest.approx(1.4)
    assert (columns["seeds"], columns["seed_standard_error"], columns["p_value"]) == (4, d.standard_error, d.p_value)
    assert (columns["low"], columns["high"]) == (d.low, d.high)
    assert (columns["bootstrap_low"], columns["bootstrap_high"]) == (drawn.low, drawn.high)
    assert columns["low"] < columns["bootstrap_low"] < 1.4 < columns["bootstrap_high"] < columns["high"]


def test_arms_of_other_pt_seeds_are_no_pairs() -> None:
    with pytest.raises(DataError, match="same replicates"):
        difference(runs([71.0, 75.0]), runs([70.0]))


def test_one_pt_seed_decides_nothing() -> None:
    verdict = not_below(difference(runs([71.0]), runs([70.0])), 0.0)
    assert (verdict.word, verdict.bound) == ("inconclusive", "difference at least 0")


def test_a_file_that_is_no_record_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"machine": {}}')
    with pytest.raises(DataError, match="is not the record of a run"):
        machine_of(path)
    path.write_text('{"machine": {"name": "a CPU", "device": "cpu", "threads": 2}}')
    assert machine_of(path) == "a CPU, threads: 2"
