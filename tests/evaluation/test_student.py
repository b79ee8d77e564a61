"""Student's t distribution is that of SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import nctdtr, stdtr, stdtrit

from metapt.evaluation import student

DEGREES = [1, 2, 4, 7, 30, 1000, 100_000]


@pytest.mark.parametrize("degrees", DEGREES)
def test_the_distribution_function_holds_into_the_tail(degrees: int) -> None:
    t = np.array([-1e6, -300.0, -9.0, -2.0, -0.1, 0.0, 0.5, 3.0, 50.0])
    found = [student.below(each, degrees) for each in t]
    np.testing.assert_allclose(found, stdtr(degrees, t), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("degrees", DEGREES)
def test_quantiles_are_those_of_the_distribution(degrees: int) -> None:
    shares = [0.001, 0.2, 0.5, 0.9, 0.975, 0.99999]
    found = [student.quantile(share, degrees) for share in shares]
    np.testing.assert_allclose(found, stdtrit(degrees, shares), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("level", [0.05, 0.002])
def test_the_t_test_has_the_power_at_the_noncentrality(degrees: int, level: float) -> None:
    shift, critical = student.noncentrality(degrees, level, 0.8), stdtrit(degrees, 1 - level / 2)
    assert nctdtr(degrees, shift, critical) == pytest.approx(0.2, abs=1e-5)
    assert student.below(critical, degrees, shift / 2) == pytest.approx(nctdtr(degrees, shift / 2, critical), rel=1e-4)


def test_ends_and_what_is_not_known() -> None:
    assert (student.below(-math.inf, 3), student.below(math.inf, 3)) == (0.0, 1.0)
    unknown = (
        student.below(math.nan, 3),
        student.below(1.0, 0),
        student.quantile(0.9, 0),
        student.noncentrality(0, 0.05, 0.8),
    )
    assert np.isnan(unknown).all()
