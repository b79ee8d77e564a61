"""A replicate of two seeds, of pre-training (PT) and of fine-tuning (FT), as one integer of the metrics table."""

from __future__ import annotations

from metapt.errors import ConfigError

SEEDS = 1000
"""A PT seed has fewer FT seeds than this."""


def pair(pretrain_seed: int, finetune_seed: int) -> int:
    """The replicate of an FT run.

    Raises:
        ConfigError: the FT seed is not below `SEEDS`, or one of them is negative.

    >>> pair(2, 4), pretrain_seed(2004), finetune_seed(2004)
    (2004, 2, 4)
    """
    if pretrain_seed < 0 or not 0 <= finetune_seed < SEEDS:
        raise ConfigError(f"the FT seed {finetune_seed} of the PT seed {pretrain_seed} can't be kept; legal: 0 to {SEEDS - 1}.")
    return pretrain_seed * SEEDS + finetune_seed


def pretrain_seed(replicate: int) -> int:
    """The PT seed of a replicate."""
    return replicate // SEEDS


def finetune_seed(replicate: int) -> int:
    """The FT seed of a replicate."""
    return replicate % SEEDS
