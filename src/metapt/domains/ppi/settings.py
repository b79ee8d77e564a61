"""What a PT or FT run may see (its setting), and which run serves which setting."""

from __future__ import annotations

import re

from metapt.domains.ppi.config import Arm, uses_labels
from metapt.errors import ConfigError

FOLDS = 4  # number of parts of the FT tasks, each held out in turn

FULL_ACCESS, HALF_DATA = "full_access", "half_data"
HELD_OUT = tuple(f"held_out_{fold}" for fold in range(FOLDS))
SETTINGS = (FULL_ACCESS, HALF_DATA, *HELD_OUT)
"""Names of settings in paths and in the column `setting` of the metrics, besides those of `permuted`."""

_PERMUTED = re.compile(r"permuted_([1-9]\d?)")


def permuted(percent: int) -> str:
    """Return the setting in which `percent` % of the PT tasks have permuted labels, the same ones for all PT seeds.

    >>> permuted(90), permuted(0)
    ('permuted_90', 'full_access')
    """
    return f"permuted_{percent}" if percent else FULL_ACCESS


def group(number: int) -> str:
    """Return the name of the weight of a group of PT tasks, in tables of runs."""
    return f"group_{number:02d}"


def permuted_share(setting: str) -> float:
    """Return the share of the PT tasks whose labels a setting permutes.

    >>> [permuted_share(setting) for setting in ("full_access", "permuted_90")]
    [0.0, 0.9]
    """
    found = _PERMUTED.fullmatch(setting)
    return int(found[1]) / 100 if found else 0.0


def pretrain_setting(arm: Arm, setting: str) -> str:
    """Return the setting of the PT run that serves `setting`.

    Half data and held-out tasks change the FT data only, so PT that sees no FT data is then that of full access. Raises
    ConfigError if there is no such setting.
    """
    if setting not in SETTINGS and not permuted_share(setting):
        raise ConfigError(f"ppi has no setting {setting!r}; legal: {', '.join(SETTINGS)}, permuted_1 to permuted_99.")
    return FULL_ACCESS if setting in (HALF_DATA, *HELD_OUT) and not uses_labels(arm) else setting


def finetune_setting(arm: Arm, setting: str) -> str:
    """Return the setting whose FT runs serve `setting`.

    Under half data, PT has fewer FT graphs, and FT has all of them. Raises ConfigError if there is no such setting.
    """
    return pretrain_setting(arm, setting) if setting == HALF_DATA else setting
