"""Real data files that may lie beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED_DATA = Path(os.environ.get("METAPT_SHARED_DATA", Path(__file__).parents[1] / "../shared/data"))
SAMPLE = "ppi/bio_dataset_sample.zip"  # of the archive of Hu et al.


def shared(*names: str) -> list[Path]:
    """Return the paths of real files or folders; skip the test if one is not there."""
    found = [SHARED_DATA / name for name in names]
    if not all(path.exists() for path in found):
        pytest.skip(f"{found[0]} is not there (METAPT_SHARED_DATA names another folder)")
    return found
