"""Means with their uncertainty, and differences between arms.

SciPy is imported where it is used, since the workflow imports this module when it starts.

All estimates are an `Estimate`, so that tables and claims treat them alike. A value that is not finite (from a run that
diverged) is never dropped: the estimate is then not finite either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metapt.errors import DataError
from metapt.evaluation.metrics import CELL

if TYPE_CHECKING:  # the library computes estimates where pandas need not be installed
    import pandas as pd

LEVEL = 0.05
"""Level of tests; intervals have the confidence 1 - `LEVEL`."""
CONFIDENCE = 1 - LEVEL
POWER = 0.8
"""Power at which a difference counts as one that could have been seen."""


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard error, the number of independent replicates, and its 95% interval.

    The interval is from `low` to `high`. With n = 1, standard_error, low and high are NaN.
    """

    mean: float
    standard_error: float
    n: int
    low: float
    high: float

    def p_above(self, value: float) -> float:
        """Return the p-value of the one-sided t test that the true value is above `value`; NaN without a spread.

        It is at most 0.025 if and only if `low` is at least `value`. With a standard error of 0 it is 0 or 1, and 1/2
        where the mean is `value`.
        """
        return self._p_value(value, 1)

    def p_below(self, value: float) -> float:
        """Return the p-value of the one-sided t test that the true value is below `value`; see `p_above`."""
        return self._p_value(value, -1)

    @property
    def p_value(self) -> float:
        """The p-value of the two-sided t test (Student, Biometrika 1908) that the true value is 0; see `p_above`."""
        return 2 * min(self.p_above(0.0), self.p_below(0.0))

    def visible(self, value: float, level: float = LEVEL) -> float:
        """Return the smallest distance from `value` of a true value that is seen with the probability `POWER`.

        It is seen if the t test with n replicates, the standard error as it was measured, and the two-sided `level`
        rejects `value` in the right direction. The distance is the noncentrality at which the noncentral t has the
        power, times the standard error (Johnson and Welch, Biometrika 1940). NaN without a spread.
        """
        return noncentrality(self.n - 1, level) * self.standard_error

    def _p_value(self, value: float, sign: int) -> float:
        from scipy.special import stdtr

        if self.standard_error == 0:
            return 0.5 if self.mean == value else float(sign * self.mean < sign * value)
        return float(stdtr(self.n - 1, -sign * self._t(value)))

    def _t(self, value: float) -> float:
        return (self.mean - value) / self.standard_error


@dataclass(frozen=True)
class Ratio(Estimate):
    """A geometric mean of ratios, whose interval and tests are those of the ratios' logarithms.

    `standard_error` is the mean times `log_error`, which is the standard error of the mean logarithm.
    """

    log_error: float

    def visible(self, value: float, level: float = LEVEL) -> float:
        """Return the smallest distance above the ratio `value` of a ratio that is seen; see `Estimate.visible`.

        A ratio that is smaller than `value` by the same factor is seen as well; its distance is smaller.
        """
        return value * float(np.expm1(noncentrality(self.n - 1, level) * self.log_error))

    def _t(self, value: float) -> float:
        with np.errstate(divide="ignore"):
            return float((np.log(self.mean) - np.log(max(value, 0.0))) / self.log_error)


@cache
def noncentrality(degrees: int, level: float) -> float:
    """Return the noncentrality at which a two-sided t test rejects in the right direction with the power `POWER`.

    It is NaN without degrees of freedom.

    >>> round(noncentrality(9, LEVEL), 3)
    3.15
    """
    from scipy.optimize import brentq
    from scipy.special import nctdtr, stdtrit

    if degrees < 1:
        return math.nan
    critical = stdtrit(degrees, 1 - level / 2)
    return float(brentq(lambda shift: nctdtr(degrees, shift, critical) - (1 - POWER), 0, 2 * critical + 10))


def estimate(mean: float, standard_error: float, n: int) -> Estimate:
    """Return an Estimate with the t interval, mean ± t(0.975; n - 1) standard_error.

    It assumes independent replicates and an approximately normal mean; there is no interval for n = 1.

    >>> e = estimate(7.2, 1.5, 10)
    >>> round(e.low, 2), round(e.high, 2)
    (3.81, 10.59)
    """
    from scipy.special import stdtrit

    if n < 2:
        return Estimate(mean, math.nan, n, math.nan, math.nan)
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * standard_error
    return Estimate(mean, standard_error, n, mean - half, mean + half)


def estimate_mean(values: ArrayLike) -> Estimate:
    """Return the mean of `values` [n] with the standard error s / sqrt(n), where s has n - 1 in the denominator.

    Raises DataError if there are no values.

    >>> e = estimate_mean([1.0, 2.0, 3.0, 4.0])
    >>> e.mean, round(e.standard_error, 4), e.n
    (2.5, 0.6455, 4)
    """
    x = _vector(values)
    if x.size == 0:
        raise DataError(
            "A mean needs at least one value, and there is none: no run of this arm has written the number."
        )
    known = x.size > 1 and np.isfinite(x).all()
    return estimate(float(np.mean(x)), float(np.std(x, ddof=1) / math.sqrt(x.size)) if known else math.nan, x.size)


def summarise(metrics: pd.DataFrame) -> pd.DataFrame:
    """Return mean, standard error and n of each cell of the metrics table, in order of first appearance.

    Columns: experiment, arm, setting, evaluation, metric, mean, standard_error (NaN for n = 1), n (of replicates).
    Raises DataError if a cell mixes a number of the whole run with numbers of replicates.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for key, cell in metrics.groupby(CELL, sort=False, dropna=False):
        if len(cell) > 1 and cell["replicate"].isna().any():
            name = ", ".join(str(word) for word in key if word)
            raise DataError(
                f"The numbers of {name} stand both for single replicates and for the whole run; give one of the two."
            )
        e = estimate_mean(cell["value"].to_numpy())
        rows.append(dict(zip(CELL, key, strict=True)) | {"mean": e.mean, "standard_error": e.standard_error, "n": e.n})
    return pd.DataFrame(rows, columns=[*CELL, "mean", "standard_error", "n"])


def paired_difference(a: pd.Series[float], b: pd.Series[float]) -> Estimate:
    """Return the mean of a - b over the replicates of two arms, with the t interval.

    `a` and `b` are indexed by replicate, in any order. The standard error is s_d / sqrt(n) of the differences d = a -
    b, so that `p_value` is that of the paired t test. FT runs that share a PT seed are not pairs: average them first.
    Raises DataError if a replicate is in one arm only.

    >>> import pandas as pd
    >>> a = pd.Series([81.7, 82.1, 81.2, 82.0], index=[0, 1, 2, 3])
    >>> b = pd.Series([79.8, 80.9, 80.1, 80.6], index=[0, 1, 2, 3])
    >>> d = paired_difference(a, b)
    >>> [round(x, 3) for x in (d.mean, d.standard_error, d.low, d.high, d.p_value)]
    [1.4, 0.178, 0.834, 1.966, 0.004]
    """
    return estimate_mean(_vector(a) - _vector(_partners(a, b)))


def paired_ratio(a: pd.Series[float], b: pd.Series[float]) -> Ratio:
    """Return the geometric mean of a / b over the replicates of two arms, with the t interval of the logarithms.

    Times and memory vary by factors, and each replicate's pair shares a seed and mostly a state of the machine, so
    logarithms of paired ratios are what is nearly normal. With five replicates a bootstrap of medians or a rank test
    cannot decide: the former's interval is too narrow, the latter's two-sided p-value is 1/16 at least. An outlier
    widens the t interval and makes a verdict less likely, never more. Values that are not positive give an estimate
    that is not finite. Raises DataError as `paired_difference`, or if there are no values.

    >>> import pandas as pd
    >>> r = paired_ratio(pd.Series([2.0, 2.2, 9.0]), pd.Series([1.0, 1.1, 1.0]))
    >>> round(r.mean, 3), r.n, r.low < 2.0 < r.high
    (3.302, 3, True)
    """
    x, y = (np.where(values > 0, values, math.nan) for values in (_vector(a), _vector(_partners(a, b))))
    logarithm = estimate_mean(np.log(x) - np.log(y))
    mean, low, high = np.exp([logarithm.mean, logarithm.low, logarithm.high]).tolist()
    return Ratio(mean, mean * logarithm.standard_error, logarithm.n, low, high, logarithm.standard_error)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's method.

    The probability that any true null hypothesis is rejected at an adjusted `LEVEL` is at most `LEVEL`.
    The k-th smallest of m is multiplied by m - k + 1, and none is below a smaller one or above 1 (Holm, Scandinavian
    Journal of Statistics 1979). It holds for dependent tests. NaN counts as a test that rejects nothing.

    >>> [round(p, 3) for p in holm([0.01, 0.5, 0.02, math.nan])]
    [0.04, 1.0, 0.06, nan]
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)  # NaN comes last
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(len(p), 0, -1) * p[order]))
    return list(adjusted.tolist())


def _vector(values: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)


def _partners(a: pd.Series[float], b: pd.Series[float]) -> pd.Series[float]:
    """Return b in the order of a's replicates. Raises DataError as `paired_difference`."""
    lonely = a.index.symmetric_difference(b.index)
    if len(lonely):
        raise DataError(
            f"Pairs need the same replicates in both arms; only one of them has replicate "
            f"{', '.join(map(str, lonely))}."
        )
    return b.reindex(a.index)
