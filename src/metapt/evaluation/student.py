"""Student's t distribution with a whole number of degrees of freedom, in closed form."""

from __future__ import annotations

import math
from functools import lru_cache


def coverage(t: float, degrees: int) -> float:
    """P(|T| <= |t|) for Student's t with `degrees` degrees of freedom.

    The finite sums of Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), 26.7.3 and 26.7.4. With
    theta = arctan(|t| / sqrt(degrees)), for odd and even degrees of freedom (cosines up to the power degrees - 2):

        odd:   2/pi (theta + sin theta (cos theta + 2/3 cos^3 theta + (2 4)/(3 5) cos^5 theta + ...))
        even:  sin theta (1 + 1/2 cos^2 theta + (1 3)/(2 4) cos^4 theta + ...)

    Absolute error about 1e-15. Raises ValueError for less than one degree of freedom.

    >>> round(coverage(2.262, 9), 4)
    0.95
    """
    if degrees < 1:
        raise ValueError(f"Student's t needs at least one degree of freedom, not {degrees}")
    if math.isnan(t):
        return math.nan
    theta = math.atan(abs(t) / math.sqrt(degrees))
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = degrees % 2 == 1
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(3 if odd else 2, degrees - 1, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    return 2 / math.pi * (theta + sine * total) if odd else sine * total


@lru_cache(maxsize=1024)
def critical_value(confidence: float, degrees: int) -> float:
    """The t with P(|T| <= t) = `confidence`, found by bisection. Raises ValueError unless 0 < confidence < 1.

    >>> round(critical_value(0.95, 9), 3)
    2.262
    """
    if not 0 < confidence < 1:
        raise ValueError(f"the confidence must lie between 0 and 1, not {confidence}")
    low, high = 0.0, 1.0
    while coverage(high, degrees) < confidence:
        low, high = high, 2 * high
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if coverage(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
