"""The labels of arms in tables and figures, and their colours, lines and markers."""

from __future__ import annotations

from collections.abc import Sequence

from metapt.evaluation import looks as generic
from metapt.evaluation.looks import Look

_LOOKS: generic.Known = {
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


def label(arm: str) -> str:
    """Return the label of an arm."""
    return generic.label(arm, _LOOKS)


def looks(arms: Sequence[str]) -> dict[str, Look]:
    """Return the look of each arm; an arm of the default config has the same look in all figures."""
    return generic.looks(arms, _LOOKS)
