"""Names of the numbers and evaluations of PT and FT runs, in the tables of metrics and series."""

from __future__ import annotations

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
