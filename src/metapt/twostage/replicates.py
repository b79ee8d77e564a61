"""Replicates of FT: one integer for two seeds, of pre-training (PT) and of fine-tuning (FT)."""

from __future__ import annotations

from metapt.errors import ConfigError
from metapt.sections import MOST_FINETUNE_SEEDS

SEEDS = MOST_FINETUNE_SEEDS
"""FT seeds are below this number."""


def pair(pretrain_seed: int, finetune_seed: int) -> int:
    """Return the replicate of an FT run.

    Raises ConfigError if the FT seed is not below `SEEDS`, or one of them is negative.

    >>> pair(2, 4), pretrain_seed(2004)
    (2004, 2)
    """
    if pretrain_seed < 0 or not 0 <= finetune_seed < SEEDS:
        raise ConfigError(
            f"PT seed {pretrain_seed} with FT seed {finetune_seed} is not legal; legal: PT seeds from 0 on, "
            f"FT seeds from 0 to {SEEDS - 1}."
        )
    return pretrain_seed * SEEDS + finetune_seed


def pretrain_seed(replicate: int) -> int:
    """Return the PT seed of a replicate."""
    return replicate // SEEDS
