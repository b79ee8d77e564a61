"""Names of the numbers and evaluations of PT and FT runs, and the replicate of an FT run: one integer for two seeds."""

from __future__ import annotations

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
    """Return the replicate of an FT run; the config has FT seeds below 1,000 only.

    >>> pair(2, 4), pretrain_seed(2004)
    (2004, 2)
    """
    return pretrain_seed * MOST_FINETUNE_SEEDS + finetune_seed


def pretrain_seed(replicate: int) -> int:
    """Return the PT seed of a replicate."""
    return replicate // MOST_FINETUNE_SEEDS
