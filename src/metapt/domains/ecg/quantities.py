"""Names of what the runs of this domain measure, in the tables of metrics and series."""

from __future__ import annotations

AUROC = "mean test AUROC over 5 classes (%)"  # of PTB-XL; see `mean_auroc`

WARP_SCALE = "warp scale m"
WARP_STRENGTH = "warp strength"
DISPLACEMENT = "warp displacement (samples)"
CANDIDATE_STRENGTH = "candidate strength"  # of a random search with short runs
CANDIDATE_LOSS = "cross-validated FT loss"

ORIGINAL = "original"
LABEL = "label "  # the start of a name


def mean_auroc(classes: int) -> str:
    """Return the name of the mean test AUROC over so many classes."""
    return f"mean test AUROC over {classes} class{'es' * (classes > 1)} (%)"


def class_auroc(name: str) -> str:
    """Return the name of the test AUROC of a class."""
    return f"test AUROC {name} (%)"


def label(name: str) -> str:
    """Return the name of a series of the study of views: the labels of a class."""
    return f"{LABEL}{name}"


def viewed(arm: str, what: str) -> str:
    """Return the name of a series of the study of views: an arm's `initial` or `learned` views, or its `strength`."""
    return f"{arm}, {what}"
