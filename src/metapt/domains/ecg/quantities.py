"""Names of what the runs of this domain measure, in the tables of metrics and series."""

from __future__ import annotations

from metapt.domains.ecg.data.sources import CLASSES

AUROC = "mean test AUROC over 5 classes (%)"
CLASS_AUROCS = {name: f"test AUROC {name} (%)" for name in CLASSES}

WARP_SCALE = "warp scale m"
WARP_STRENGTH = "warp strength"
DISPLACEMENT = "warp displacement (samples)"
CANDIDATE_STRENGTH = "candidate strength"  # of a random search with short runs
CANDIDATE_LOSS = "cross-validated FT loss"

ORIGINAL = "original"
LABELS = {name: f"label {name}" for name in CLASSES}


def viewed(arm: str, what: str) -> str:
    """Return the name of a series of the study of views: an arm's `initial` or `learned` views, or its `strength`."""
    return f"{arm}, {what}"
