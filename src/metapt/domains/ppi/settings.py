"""What a PT or FT run may see: the word in paths and in the metrics' column `setting`."""

from __future__ import annotations

FOLDS = 4
"""Parts of the FT tasks that are held out in turn."""

FULL_ACCESS, HALF_DATA, PERMUTED_TASKS, RELEASED_CENTRE = "full_access", "half_data", "permuted_tasks", "released_centre"
HELD_OUT = tuple(f"held_out_{fold}" for fold in range(FOLDS))
SETTINGS = (FULL_ACCESS, HALF_DATA, *HELD_OUT, PERMUTED_TASKS, RELEASED_CENTRE)
