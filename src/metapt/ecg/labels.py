"""What the arms are called in tables and figures and in the paper, and how they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from metapt.evaluation import figures


class Look(NamedTuple):
    """An arm in a figure: its label, colour, marker, and matplotlib's style of its line."""

    label: str
    colour: str
    marker: str
    line: str


# Indices into the palette and the markers; arms that share a colour differ in line and marker.
_LOOKS = {
    "no_pt": ("no PT", 6, 6, "-"),
    "simclr": ("SimCLR", 0, 0, "-"),
    "simclr-mild": ("SimCLR, mild warp", 0, 5, "--"),
    "optsla": ("SimCLR + OptSLA", 5, 4, "-"),
    "meta": ("meta (K = 1)", 1, 1, "-"),
    "meta-k0": ("meta, K = 0", 4, 4, "--"),
    "meta-k5": ("meta, K = 5", 3, 3, "--"),
    "meta-k10": ("meta, K = 10", 2, 5, "--"),
    "meta-identity": ("meta, no inverse", 1, 6, "--"),
    "meta-stable": ("meta-stable", 2, 2, "-"),
    "meta-refitted": ("meta, refitted head", 5, 3, "--"),
    "random_search": ("random search", 3, 3, "-"),
    "branch_search": ("branch search", 4, 5, "-"),
    "branch_search-random": ("branch search, random", 6, 0, "--"),
    "branch_search-lower": ("branch search, lower", 5, 1, "--"),
}

PAPERS_ARMS = {
    "full_access": {"optsla": "simclr_optsla"},
    "unroll_steps": {"meta-k0": "K=0", "meta": "K=1", "meta-k5": "K=5", "meta-k10": "K=10"},
}
"""For each experiment: our name of an arm -> the paper's, where it is another (`evaluation/paper_numbers.csv`)."""

EVALUATIONS = {"full_transfer": "FT of the whole network", "linear_evaluation": "linear evaluation"}
AUROC_LABEL = "test AUROC (%)"


def label(arm: str) -> str:
    return _LOOKS[arm][0] if arm in _LOOKS else arm.replace("_", " ")


def looks(arms: Sequence[str]) -> dict[str, Look]:
    """The look of each arm; those of the default config always have the same one."""
    found = {}
    for place, arm in enumerate(arms):
        name, colour, marker, line = _LOOKS.get(arm, (label(arm), place, place, "-."))
        found[arm] = Look(name, figures.colour(colour), figures.MARKERS[marker % len(figures.MARKERS)], line)
    return found
