"""Labels of arms in tables and figures, and the style in which they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from metapt.evaluation import figures


class Look(NamedTuple):
    """An arm in a figure: label, colour, marker, and matplotlib's style of the line."""

    label: str
    colour: str
    marker: str
    line: str


Known = Mapping[str, tuple[str, int, int, str]]
"""Label, index into the palette, index into the markers and line, by arm; arms of one colour differ in the last two."""


def label(arm: str, known: Known) -> str:
    """Return the label of an arm: the known one, else its name with spaces."""
    return known[arm][0] if arm in known else arm.replace("_", " ")


def looks(arms: Sequence[str], known: Known) -> dict[str, Look]:
    """Return the look of each arm: the known one, else one that depends on its position in `arms`."""
    found = {}
    for place, arm in enumerate(arms):
        name, colour, marker, line = known.get(arm, (label(arm, known), place, place, "-."))
        found[arm] = Look(name, figures.colour(colour), figures.MARKERS[marker % len(figures.MARKERS)], line)
    return found
