"""Labels of arms in tables and figures, and the style in which they are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from metapt.evaluation import figures


class Look(NamedTuple):
    """An arm in a figure: label, colour, marker, and matplotlib's style of the line."""

    label: str
    colour: str
    marker: str
    line: str


Style = tuple[int, int, str]
"""Index into the palette, index into the markers, and line; arms of one colour differ in the last two."""


def looks(labels: Mapping[str, str], styles: Mapping[str, Style]) -> dict[str, Look]:
    """Return the look of each arm, given labels by arm: in its style, else one that depends on its position."""
    found = {}
    for place, (arm, name) in enumerate(labels.items()):
        colour, marker, line = styles.get(arm, (place, place, "-."))
        found[arm] = Look(name, figures.colour(colour), figures.MARKERS[marker % len(figures.MARKERS)], line)
    return found
