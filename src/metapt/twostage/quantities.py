"""Names of the numbers and evaluations of PT and FT runs, and the replicate of an FT run: one integer for two seeds."""

from __future__ import annotations

from metapt.errors import ConfigError
from metapt.sections import MOST_FINETUNE_SEEDS

PRETRAINING = "pretraining"  # the evaluation of numbers of PT runs
FULL_TRANSFER, LINEAR_EVALUATION = "full_transfer", "linear_evaluation"
EVALUATIONS = {FULL_TRANSFER: "FT of the whole network", LINEAR_EVALUATION: "linear evaluation"}

TIME_PER_STEP = "PT time per step (s)"
PEAK_MEMORY = "PT peak memory (GB)"
WALL_TIME = "PT wall time (s)"
FT_TIME = "FT wall time (s)"

AUROC_LABEL = "test AUROC (%)"
VALIDATION_AUROC = "validation AUROC (%)"
BEST_EPOCH = "best epoch"
LEARNING_RATE = "learning rate"
CROSS_VALIDATED_AUROC = "cross-validated AUROC (%)"  # of a candidate of a search with whole PT runs


def pair(pretrain_seed: int, finetune_seed: int) -> int:
    """Return the replicate of an FT run. Raises ConfigError if a seed is negative, or that of FT above 999.

    >>> pair(2, 4), pretrain_seed(2004)
    (2004, 2)
    """
    if pretrain_seed < 0 or not 0 <= finetune_seed < MOST_FINETUNE_SEEDS:
        raise ConfigError(
            f"PT seed {pretrain_seed} with FT seed {finetune_seed} is not legal; legal: PT seeds from 0 on, "
            f"FT seeds from 0 to {MOST_FINETUNE_SEEDS - 1}."
        )
    return pretrain_seed * MOST_FINETUNE_SEEDS + finetune_seed


def pretrain_seed(replicate: int) -> int:
    """Return the PT seed of a replicate."""
    return replicate // MOST_FINETUNE_SEEDS
