"""Statistics of FT runs that share encoders.

The paper reports means over all runs; only means over PT seeds are independent.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from metapt.evaluation.statistics import Estimate, estimate_mean, paired_difference
from metapt.twostage.quantities import pretrain_seed


def seed_means(values: pd.Series[float]) -> pd.Series[float]:
    """Return the mean over the FT runs of each PT seed."""
    seeds, found = _pretrain_seeds(values), values.to_numpy(dtype=float)
    return pd.Series({int(seed): float(np.mean(found[seeds == seed])) for seed in np.unique(seeds)}, dtype=float)


def over_seeds(values: pd.Series[float]) -> Estimate:
    """Return mean and standard error over the means of the PT seeds."""
    return estimate_mean(seed_means(values))


def difference(a: pd.Series[float], b: pd.Series[float]) -> Estimate:
    """Return the difference between two arms' means of PT seeds, paired by PT seed.

    Raises DataError if the arms have different PT seeds.
    """
    return paired_difference(seed_means(a), seed_means(b))


def _pretrain_seeds(values: pd.Series[float]) -> NDArray[np.int64]:
    return np.array([pretrain_seed(int(replicate)) for replicate in values.index])
