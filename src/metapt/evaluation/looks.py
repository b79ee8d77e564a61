"""What the arms of a domain are called in tables and figures, and how they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from metapt.evaluation import figures


class Look(NamedTuple):
    """An arm in a figure: its label, colour, marker, and matplotlib's style of its line."""

    label: str
    colour: str
    marker: str
    line: str


Known = Mapping[str, tuple[str, int, int, str]]
"""Arm -> label, index into the palette, index into the markers, line; arms of one colour differ in line and marker."""


def label(arm: str, known: Known) -> str:
    return known[arm][0] if arm in known else arm.replace("_", " ")


def looks(arms: Sequence[str], known: Known) -> dict[str, Look]:
    """The look of each arm: what is known of it, else what its place gives."""
    found = {}
    for place, arm in enumerate(arms):
        name, colour, marker, line = known.get(arm, (label(arm, known), place, place, "-."))
        found[arm] = Look(name, figures.colour(colour), figures.MARKERS[marker % len(figures.MARKERS)], line)
    return found
