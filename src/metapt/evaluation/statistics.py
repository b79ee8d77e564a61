"""Means with their uncertainty, differences between arms, and the bootstrap over clusters.

Whatever is estimated comes as an `Estimate`, so that tables and claims treat all alike. A value that is not finite (a run that
diverged) is never dropped: it makes the estimate not finite too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit  # scipy.stats.t calls them, and its import takes a second

from metapt.errors import DataError
from metapt.evaluation.metrics import CELL

CONFIDENCE = 0.95
EXACT_PAIRS = 16
"""Up to so many pairs the sign-flip test enumerates all 2^n assignments."""

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard error, the number of independent replicates, and a 95% interval from `low` to `high`.

    With n = 1 no spread is known: standard_error, low and high are NaN.
    """

    mean: float
    standard_error: float
    n: int
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Estimate):
    """An estimated difference with the two-sided p-value of "there is none" (NaN where there is no spread to test against)."""

    p_value: float


def estimate(mean: float, standard_error: float, n: int) -> Estimate:
    """An Estimate with the t interval mean +- t(0.975; n - 1) standard_error.

    It supposes independent replicates whose mean is about normal; no interval is known from n = 1.

    >>> e = estimate(7.2, 1.5, 10)
    >>> round(e.low, 2), round(e.high, 2)
    (3.81, 10.59)
    """
    if n < 2:
        return Estimate(mean, math.nan, n, math.nan, math.nan)
    half = _t_quantile(n - 1) * standard_error
    return Estimate(mean, standard_error, n, mean - half, mean + half)


def estimate_mean(values: ArrayLike) -> Estimate:
    """Mean and standard error s / sqrt(n) of `values` [n], s with n - 1 in the denominator. Raises DataError for no values.

    >>> e = estimate_mean([1.0, 2.0, 3.0, 4.0])
    >>> e.mean, round(e.standard_error, 4), e.n
    (2.5, 0.6455, 4)
    """
    x = _vector(values)
    if x.size == 0:
        raise DataError("There is no mean of no values.")
    return estimate(float(np.mean(x)), _standard_error(x), x.size)


def summarise(metrics: pd.DataFrame) -> pd.DataFrame:
    """Mean, standard error and n of every cell of the tidy metrics table, over its replicates, in order of first appearance.

    Columns: experiment, arm, setting, evaluation, metric, mean, standard_error (NaN for n = 1), n.
    Raises DataError when a cell mixes a number of the whole run with numbers of replicates.
    """
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


def paired_difference(
    a: pd.Series[float],
    b: pd.Series[float],
    *,
    test: Literal["t", "permutation"] = "t",
    draws: int = 20_000,
    seed: int = 0,
) -> Difference:
    """Mean of a - b over replicates that a and b share, e.g. two arms with the same PT seeds.

    `a`, `b`: values indexed by replicate; the order does not matter. With d = a - b, the standard error is s_d / sqrt(n) and the
    interval is the t interval of d. The p-value comes from the paired t test (t = mean / standard error, n - 1 degrees of
    freedom; Student, Biometrika 1908) or from the sign-flip permutation test (`sign_flip_p_value`), which supposes only that d
    is symmetric about zero when there is no difference. FT runs that share a PT seed are no pairs of their own: average them
    first, or use `cluster_bootstrap`. Raises DataError when a replicate stands in one arm only, or twice in one.

    >>> a = pd.Series([81.7, 82.1, 81.2, 82.0], index=[0, 1, 2, 3])
    >>> b = pd.Series([79.8, 80.9, 80.1, 80.6], index=[0, 1, 2, 3])
    >>> d = paired_difference(a, b)
    >>> [round(x, 3) for x in (d.mean, d.standard_error, d.low, d.high, d.p_value)]
    [1.4, 0.178, 0.834, 1.966, 0.004]
    >>> paired_difference(a, b, test="permutation").p_value
    0.125
    """
    d = _vector(a) - _vector(_partners(a, b))
    e = estimate_mean(d)
    p = _t_p_value(e.mean, e.standard_error, e.n - 1) if test == "t" else sign_flip_p_value(d, draws=draws, seed=seed)
    return Difference(e.mean, e.standard_error, e.n, e.low, e.high, p)


def unpaired_difference(a: ArrayLike, b: ArrayLike) -> Difference:
    """Difference of the means of independent samples a [n_a] and b [n_b] of unequal variance (Welch, Biometrika 1947).

    The standard error is sqrt(se_a^2 + se_b^2), the degrees of freedom
    (se_a^2 + se_b^2)^2 / (se_a^4 / (n_a - 1) + se_b^4 / (n_b - 1)), rounded down (the cautious side).
    `n` is the smaller of the two; when it is 1, no spread is known.

    >>> d = unpaired_difference([88.0, 87.0, 89.0], [80.0, 81.0, 79.5, 80.5])
    >>> round(d.mean, 2), round(d.standard_error, 3), d.n, d.p_value < 0.01
    (7.75, 0.661, 3, True)
    """
    ea, eb = estimate_mean(a), estimate_mean(b)
    mean, n = ea.mean - eb.mean, min(ea.n, eb.n)
    va, vb = ea.standard_error**2, eb.standard_error**2
    standard_error = math.sqrt(va + vb)
    if n < 2 or math.isnan(standard_error):
        return Difference(mean, math.nan, n, math.nan, math.nan, math.nan)
    spread = va**2 / (ea.n - 1) + vb**2 / (eb.n - 1)
    degrees = max(n - 1, math.floor((va + vb) ** 2 / spread)) if spread > 0 else n - 1
    half = _t_quantile(degrees) * standard_error
    return Difference(mean, standard_error, n, mean - half, mean + half, _t_p_value(mean, standard_error, degrees))


def sign_flip_p_value(differences: ArrayLike, *, draws: int = 20_000, seed: int = 0) -> float:
    """Two-sided p-value of the sign-flip permutation test on paired `differences` [n].

    The share of assignments of signs whose |sum| is at least the observed one (Fisher, "The Design of Experiments", 1935). Up to
    `EXACT_PAIRS` pairs all 2^n assignments are enumerated, so p is never below 2^(1 - n); above, `draws` random ones are taken
    with `seed` and p = (1 + hits) / (1 + draws) (Phipson and Smyth, 2010). NaN when a difference is not finite; raises DataError
    for no pairs.

    >>> sign_flip_p_value([1.0, 2.0, 3.0])
    0.25
    """
    d = _vector(differences)
    if d.size == 0:
        raise DataError("The sign-flip test needs at least one pair.")
    if not np.isfinite(d).all():
        return math.nan
    threshold = abs(d.sum()) - 1e-12 * np.abs(d).sum()  # ties count in spite of rounding
    if d.size <= EXACT_PAIRS:
        signs = 1 - 2 * (np.arange(2**d.size)[:, None] >> np.arange(d.size) & 1)
        return float(np.mean(np.abs(signs @ d) >= threshold))
    generator = np.random.default_rng(seed)
    hits = sum(abs((1 - 2 * generator.integers(0, 2, d.size)) @ d) >= threshold for _ in range(draws))
    return (1 + int(hits)) / (1 + draws)


def cluster_bootstrap(
    values: ArrayLike, clusters: Sequence[Any] | NDArray[Any], *, draws: int = 10_000, seed: int = 0
) -> Estimate:
    """Mean of `values` [m] whose runs share something by `clusters` [m], e.g. FT runs from the same PT seed.

    Whole clusters are drawn with replacement, as many as there are; the statistic of a draw is the mean over all their values, so
    unequal clusters weigh by size. The standard error is the standard deviation of the draws, the interval their 2.5% and 97.5%
    quantiles, and `n` the number of clusters (Davison and Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8).
    With fewer than about ten clusters the interval is too narrow (Cameron, Gelbach and Miller, 2008); the t interval over the
    clusters' own means (`estimate_mean`) is then the one to trust. For the difference of two arms, give it run by run.
    Raises DataError for fewer than two clusters: the spread between clusters can't be seen in one.

    >>> e = cluster_bootstrap([1.0, 3.0, 5.0, 7.0, 9.0, 11.0], ["a", "a", "b", "b", "c", "c"], seed=1)
    >>> e.mean, round(e.standard_error, 1), e.n
    (6.0, 1.9, 3)
    """
    x = _vector(values)
    labels, codes = np.unique(np.asarray(clusters), return_inverse=True)
    if codes.shape != x.shape:
        raise ValueError(f"values and clusters must have the same length, not {x.size} and {codes.size}")
    if labels.size < 2:
        raise DataError(f"A bootstrap over clusters needs at least two of them; here there is {labels.size}.")
    sums, counts = np.bincount(codes, weights=x), np.bincount(codes)
    drawn = np.random.default_rng(seed).integers(0, labels.size, (draws, labels.size))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(float(np.mean(x)), float(np.std(means, ddof=1)), labels.size, float(low), float(high))


def cluster_means(values: pd.Series[float], clusters: Sequence[Any] | NDArray[Any]) -> pd.Series[float]:
    """Mean of the `values` [m] of each of the `clusters` [m], e.g. of the FT runs of each PT seed, indexed by cluster in order.

    These means are independent where the values are not. A value that is not finite makes its cluster's mean not finite.

    >>> cluster_means(pd.Series([1.0, 3.0, 6.0]), [7, 7, 8]).to_dict()
    {7: 2.0, 8: 6.0}
    """
    return values.groupby(np.asarray(clusters)).agg(lambda part: float(np.mean(part.to_numpy())))


def ratio_of_medians(a: pd.Series[float], b: pd.Series[float], *, draws: int = 10_000, seed: int = 0) -> Estimate:
    """median(a) / median(b) over replicates that both share, e.g. the times of two arms, which have outliers upwards.

    The standard error and the 95% interval come from a bootstrap over replicates (drawn in pairs), as in `cluster_bootstrap`.
    As there, the interval is too narrow with few of them; with one replicate there is none. Raises what `paired_difference` does.

    >>> r = ratio_of_medians(pd.Series([2.0, 2.2, 9.0]), pd.Series([1.0, 1.0, 1.1]))
    >>> r.mean, r.n, r.low <= 2.2 <= r.high
    (2.2, 3, True)
    """
    b = _partners(a, b)
    x, y = _vector(a), _vector(b)
    if x.size == 0:
        raise DataError("There is no ratio of no values.")
    ratio = float(np.median(x) / np.median(y))
    if x.size < 2:
        return Estimate(ratio, math.nan, x.size, math.nan, math.nan)
    drawn = np.random.default_rng(seed).integers(0, x.size, (draws, x.size))
    ratios = np.median(x[drawn], axis=1) / np.median(y[drawn], axis=1)
    low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(ratio, float(np.std(ratios, ddof=1)), x.size, float(low), float(high))


def _vector(values: ArrayLike) -> Vector:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1:
        raise ValueError(f"expected one dimension, not the shape {x.shape}")
    return x


def _standard_error(x: Vector) -> float:
    if x.size < 2 or not np.isfinite(x).all():
        return math.nan
    return float(np.std(x, ddof=1) / math.sqrt(x.size))


def _partners(a: pd.Series[float], b: pd.Series[float]) -> pd.Series[float]:
    """b in the order of a's replicates."""
    for name, values in (("first", a), ("second", b)):
        if not values.index.is_unique:
            raise DataError(
                f"The {name} arm has a replicate twice ({_names(values.index[values.index.duplicated()])})."
            )
    lonely = a.index.symmetric_difference(b.index)
    if len(lonely):
        raise DataError(f"Pairs need the same replicates in both arms; only one of them has {_names(lonely)}.")
    return b.reindex(a.index)


def _names(replicates: pd.Index[Any]) -> str:
    return "replicate " + ", ".join(str(r) for r in replicates)


def _t_quantile(degrees: int) -> float:
    """Return the t with P(|T| <= t) = `CONFIDENCE` for Student's t with `degrees` degrees of freedom."""
    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))


def _t_p_value(mean: float, standard_error: float, degrees: int) -> float:
    if math.isnan(mean) or math.isnan(standard_error):
        return math.nan
    if standard_error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stdtr(degrees, -abs(mean / standard_error)))
