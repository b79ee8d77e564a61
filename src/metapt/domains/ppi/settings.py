"""What a PT or FT run may see (its setting), and which run serves which setting."""

from __future__ import annotations

from metapt.domains.ppi.config import Arm, uses_labels
from metapt.errors import ConfigError

FOLDS = 4  # number of parts of the FT tasks, each held out in turn

FULL_ACCESS, HALF_DATA = "full_access", "half_data"
PERMUTED_TASKS, RELEASED_CENTRE = "permuted_tasks", "released_centre"
HELD_OUT = tuple(f"held_out_{fold}" for fold in range(FOLDS))
SETTINGS = (FULL_ACCESS, HALF_DATA, *HELD_OUT, PERMUTED_TASKS, RELEASED_CENTRE)
"""Names of settings in paths and in the column `setting` of the metrics."""


def pretrain_setting(arm: Arm, setting: str) -> str:
    """Return the setting of the PT run that serves `setting`; PT that sees no FT data ignores changes of them.

    Raises ConfigError if there is no such setting.
    """
    if setting not in SETTINGS:
        raise ConfigError(f"ppi has no setting {setting!r}; legal: {', '.join(SETTINGS)}.")
    return FULL_ACCESS if setting in (HALF_DATA, *HELD_OUT) and not uses_labels(arm) else setting


def finetune_setting(arm: Arm, setting: str) -> str:
    """Return the setting whose FT runs serve `setting`; FT uses all FT data under half data, too.

    Raises ConfigError if there is no such setting.
    """
    return pretrain_setting(arm, setting) if setting == HALF_DATA else setting
