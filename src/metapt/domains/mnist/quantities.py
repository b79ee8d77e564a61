"""Names of the quantities that the studies measure, as in the tables of metrics and series."""

from __future__ import annotations

DIAGNOSIS = "diagnosis"  # the evaluation of numbers on the course of the meta-PT loop

# The rotation studies.
ERROR = "absolute error of learned mean (degrees)"
MEAN = "learned mean (degrees)"
INITIAL_MEAN = "initial mean (degrees)"
DEVIATION = "learned standard deviation (degrees)"

# Example weighting; those with a gap exist for each of `KINDS`.
RATIO = "ratio of mean weight clean/noisy"
MEAN_WEIGHT = "mean weight, {}"
WEIGHT = "weight, {}"
KINDS = ("clean", "noisy")  # labels of PT examples

# The comparison with backpropagation through PT and FT, and the headroom.
ACCURACY = "FT test accuracy (%)"
VALIDATION_ACCURACY = "FT validation accuracy (%)"
WALL_TIME = "wall time (s)"
PEAK_MEMORY = "peak memory (MB)"
OUTER_STEPS = "outer steps"
SKIPPED = "outer steps whose hypergradient was skipped"

# The fidelity study.
COSINE = "cosine to the exact hypergradient"
NORM_RATIO = "norm over that of the exact hypergradient"
