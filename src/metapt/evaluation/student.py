"""Student's t distribution, in NumPy alone: the library computes intervals where SciPy need not be installed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np


def below(t: float, degrees: int, shift: float = 0.0) -> float:
    """Return P(T <= t) of the noncentral t with `degrees` degrees of freedom and the noncentrality `shift`.

    T = (Z + shift) / S, where Z is standard normal and degrees S^2 is chi-square. So it is the mean of the normal
    distribution function at t S - shift, by the trapezoidal rule in log S, which is exact up to rounding for a smooth
    integrand that vanishes at both ends (Trefethen and Weideman, SIAM Review 2014).

    >>> round(below(2.5706, 5), 4), below(-math.inf, 5)
    (0.975, 0.0)
    """
    if math.isnan(t) or math.isinf(t) or degrees < 1:
        return math.nan if math.isnan(t) or degrees < 1 else float(t > 0)
    reach = math.sqrt(40 / degrees)
    least = -0.5 * math.log1p(t * t / degrees) - reach - 40 / degrees  # the integrand peaks there where t is far below
    step = min(0.1, 0.3 / math.sqrt(degrees), 0.5 / (1 + abs(t)) if shift else 1.0)
    place = np.arange(least, min(reach, 2.5), step)
    weights = np.exp(degrees * (place - np.expm1(2 * place) / 2))
    normal = np.array([math.erfc(each) for each in ((shift - t * np.exp(place)) / math.sqrt(2)).tolist()]) / 2
    return float(weights @ normal / weights.sum())


@cache
def quantile(share: float, degrees: int) -> float:
    """Return the t of Student's distribution with P(T <= t) = `share`; NaN without degrees of freedom.

    >>> round(quantile(0.975, 5), 4)
    2.5706
    """
    if share > 0.5:
        return -quantile(1 - share, degrees)
    return -_root(lambda t: below(-t, degrees) <= share) if degrees > 0 else math.nan


@cache
def noncentrality(degrees: int, level: float, power: float) -> float:
    """Return the noncentrality at which a two-sided t test at `level` rejects in the right direction with `power`."""
    critical = quantile(1 - level / 2, degrees)
    return _root(lambda shift: below(critical, degrees, shift) <= 1 - power) if degrees > 0 else math.nan


def _root(reached: Callable[[float], bool]) -> float:
    """Return the least number from 0 on at which a monotone condition holds, by bisection."""
    low, high = 0.0, 1.0
    while not reached(high):
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return (low + high) / 2
