"""The jackknife of a held-out gain, whose intervals the page on the headroom compares with those of its own."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from metapt.evaluation.headroom import held_out_gain
from metapt.evaluation.statistics import Estimate

Values = NDArray[np.float64]


def jackknifed(test: Values, reference: Values, criterion: Values) -> Estimate:
    """Return the held-out gain with the standard error, and 95 % interval, of the jackknife over PT seeds.

    The arguments are those of `held_out_gain`. The jackknife is that of Efron and Stein (Annals of Statistics 1981).
    """
    gain, n = held_out_gain(test, reference, criterion).mean, len(reference)
    left = [
        held_out_gain(*(np.delete(each, seed, -1) for each in (test, reference, criterion))).mean for seed in range(n)
    ]
    error = math.sqrt((n - 1) * np.var(left))
    half = error * float(stdtrit(n - 1, 0.975))
    return Estimate(gain, error, n, gain - half, gain + half)
