"""Arms that have no look of their own get one by their place."""

from __future__ import annotations

from metapt.evaluation import figures
from metapt.evaluation.looks import looks


def test_an_unknown_arm_has_colour_and_marker_of_its_place_and_a_line_of_its_own() -> None:
    known = {"meta": (3, 2, "-")}
    found = looks({"meta": "Meta", "own_arm": "own arm", "other": "other"}, known)
    assert found["meta"] == ("Meta", figures.colour(3), figures.MARKERS[2], "-")
    assert found["own_arm"] == ("own arm", figures.colour(1), figures.MARKERS[1], "-.")
    assert found["other"] == ("other", figures.colour(2), figures.MARKERS[2], "-.")
