"""Names of the quantities that the studies measure, as in the tables of metrics and series."""

from __future__ import annotations

from metapt.domains.mnist.config import RotationMeanStd
from metapt.sections import seed_numbers

DIAGNOSIS = "diagnosis"  # the evaluation of numbers on the course of the meta-PT loop

ERROR = "absolute error of learned mean (degrees)"
MEAN = "learned mean (degrees)"
INITIAL_MEAN = "initial mean (degrees)"
DEVIATION = "learned standard deviation (degrees)"
"""Of the rotation studies."""

RATIO = "ratio of mean weight clean/noisy"
MEAN_WEIGHT = "mean weight, {}"
WEIGHT = "weight, {}"
"""Of example weighting; those with a gap exist for each of `KINDS`."""

KINDS = ("clean", "noisy")  # labels of PT examples

ACCURACY = "FT test accuracy (%)"
VALIDATION_ACCURACY = "FT validation accuracy (%)"
WALL_TIME = "wall time (s)"
PEAK_MEMORY = "peak memory (MB)"
OUTER_STEPS = "outer steps"
SKIPPED = "outer steps whose hypergradient was skipped"
"""Of the comparison with backpropagation through PT and FT."""

PROBLEM = "mnist rotation"
"""The problem in tables of runs."""

COSINE = "cosine to the exact hypergradient"
NORM_RATIO = "norm over that of the exact hypergradient"
"""Of the fidelity study."""


def setting_mean_std(study: RotationMeanStd, start: int) -> str:
    """Return the setting of a start of the study of mean and standard deviation, in the paper's words."""
    (mean, deviation), (target_mean, target_deviation) = study.starts[start], study.target
    return f"init mean {mean:g} std {deviation:g}, target {target_mean:g}/{target_deviation:g}"


def seed_of_start(study: RotationMeanStd, start: int, seed: int) -> int:
    """Return a number that is unique for each start, which is an index of `starts`, and each seed.

    It names the random streams, and the replicates of the series table. With the first start it is the seed.
    """
    return start * (max(seed_numbers(study.replicates)) + 1) + seed


def setting_fidelity(pretrain_steps: int, unroll_steps: int, terms: int) -> str:
    """Return the setting of a case of the fidelity study, as in the metrics table."""
    return f"{pretrain_steps} PT steps, K={unroll_steps}, {terms} Neumann terms"
