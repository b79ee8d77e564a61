"""Searches with whole PT runs: where they go, and how often they ask."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metapt.errors import TrainingError
from metapt.hypergrad import Pretrained
from metapt.training.checkpoint import Checkpoint
from metapt.training.pretraining import Pretrainer
from metapt.twostage.run_search import Candidates, Place, at_random, by_secants


class Measured:
    """Candidates with a known AUROC, a function of their place, and the places that were asked for."""

    def __init__(self, function: Callable[[Place], float]) -> None:
        self.function = function
        self.places: list[Place] = []

    def auroc(self, place: Place) -> float:
        if place not in self.places:
            self.places.append(place)
        return self.function(place)


@given(optimum=st.floats(-1, 1), rounds=st.integers(1, 8), step=st.floats(0.1, 5))
def test_secants_in_one_dimension_end_within_a_step_of_the_optimum(optimum: float, rounds: int, step: float) -> None:
    """For an AUROC that falls on both sides of an optimum within reach alike, each round halves the error's bound."""
    best = optimum * step * (2 - 2 ** (1 - rounds))
    measured = Measured(lambda place: -((place[0] - best) ** 2))
    found = by_secants(measured, [(1.0,)] * rounds, step, 0.5)
    assert abs(found[0] - best) <= step / 2 ** (rounds - 1) * (1 + 1e-9)
    assert found in measured.places
    assert len(measured.places) == 2 * rounds


def test_each_round_compares_opposite_sides_of_the_place() -> None:
    measured = Measured(lambda place: place[0] - place[1])
    found = by_secants(measured, [(1.0, 1.0), (1.0, -1.0), (-1.0, 1.0)], 2.0, 0.5)
    assert measured.places[:2] == [(2.0, 2.0), (-2.0, -2.0)]
    assert measured.places[2:4] == [(3.0, 1.0), (1.0, 3.0)]
    assert measured.places[4:] == [(2.5, 1.5), (3.5, 0.5)]
    assert found == (3.5, 0.5)


@pytest.mark.parametrize("seed", range(5))
def test_secants_along_random_signs_climb_a_slope_in_many_dimensions(seed: int) -> None:
    """Each round gains the step times |slope . direction|, whatever the signs."""
    random = np.random.default_rng(seed)
    slope, rounds = random.normal(size=20), 8
    signs = 2.0 * random.integers(0, 2, (rounds, 20)) - 1
    directions: list[Place] = [tuple(map(float, row)) for row in signs]
    found = by_secants(Measured(lambda place: float(slope @ place)), directions, 1.5, 0.85)
    steps = 1.5 * 0.85 ** np.arange(rounds)
    assert float(slope @ found) == pytest.approx(float(steps @ np.abs(signs @ slope)))


@pytest.mark.parametrize("diverged", [1.0, -1.0])
def test_a_diverged_candidate_loses(diverged: float) -> None:
    measured = Measured(lambda place: math.nan if place[0] == diverged else 60.0)
    assert by_secants(measured, [(1.0,)], 1.0, 0.5) == (-diverged,)
    assert at_random(measured, [(diverged,), (0.5,)]) == (0.5,)


@pytest.mark.parametrize(
    ("results", "end"),
    [
        ({1.0: 70.0, -1.0: 60.0}, 1.0),  # both of the second round diverge
        ({0.5: 60.0, -0.5: 70.0}, -0.5),  # both of the first
        ({}, 0.5),  # all: the run of the result ends with the reason
    ],
)
def test_where_both_candidates_diverge_the_search_stays(results: dict[float, float], end: float) -> None:
    measured = Measured(lambda place: results.get(place[0], math.nan))
    assert by_secants(measured, [(1.0,), (1.0,)], 1.0, 0.5) == (end,)


class Trainer:
    """A PT run that diverges, or whose result is its place."""

    def __init__(self, place: Place, diverges: bool) -> None:
        self.place, self.diverges = place, diverges

    def run(self, meta: object, steps: int, label: str, checkpoint: Checkpoint) -> int:
        if self.diverges:
            raise TrainingError("the PT loss is not finite.")
        return steps

    @property
    def pretrained(self) -> Pretrained:
        return Pretrained({"place": torch.tensor(self.place)}, {}, {})


def test_a_candidate_whose_pt_diverges_loses_and_the_search_goes_on(tmp_path: Path) -> None:
    def candidates() -> Candidates:
        return Candidates(
            start=lambda place: (cast(Pretrainer, Trainer(place, place[0] > 0)), {}),
            judge=lambda pretrained: 60.0 + float(pretrained.encoder["place"]),
            described=lambda place: {"place": place[0]},
            steps=3,
            device="cpu",
            checkpoint=lambda part: Checkpoint(tmp_path / f"search{part}.pt", "mine"),
        )

    searched = candidates()
    found = by_secants(searched, [(1.0,), (1.0,)], 1.0, 0.5)
    assert found == (-0.5,)
    assert math.isnan(searched.auroc((1.0,)))
    assert math.isnan(candidates().auroc((1.0,))), "a search that goes on knows it, too"
    (tmp_path / "search-search.pt").write_bytes(b"cut")
    assert len(candidates()._aurocs) == 3, "all but the last result are in the file before"
    assert float(searched.run(found).pretrained.encoder["place"]) == -0.5
    with pytest.raises(TrainingError):
        searched.run((1.0,))


def test_of_random_candidates_the_best_one_is_taken() -> None:
    places: list[Place] = [(0.3, 1.0), (-0.1, 2.0), (math.pi, 0.0)]
    measured = Measured(lambda place: -abs(place[0]))
    assert at_random(measured, places) == (-0.1, 2.0)
    assert measured.places == places
