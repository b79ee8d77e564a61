"""Verdicts on claims: a sentence, what was measured, and whether the one bears out the other.

The verdict compares the 95% interval of what was measured with a bound:

- *reproduced*: the whole interval lies on the claim's side of the bound;
- *not reproduced*: the whole interval lies on the other side;
- *inconclusive*: the bound lies within the interval, or a replicate gave no finite number; more replicates may decide it;
- *not measured*: a run that the claim needs was not made.

A claim that is true with nothing to spare is mostly inconclusive: the verdict asks for evidence, not for a good mean. Where the
truth lies on the bound, one verdict in 40 of either kind is wrong by chance, and nothing corrects for the number of claims. The
t interval supposes independent, about normal replicates. From a single value (n = 1) no spread is known: the value alone decides,
and the verdict says so; it is then weak evidence. "Not reproduced" speaks of these runs, their config and data, not of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate, paired_difference
from metapt.evaluation.tables import mean_and_error

COLUMNS = ["experiment", "claim", "measured", "bound", "paper", "verdict"]

Word = Literal["reproduced", "not reproduced", "inconclusive", "not measured"]


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison: the word, what was measured (mean, standard error, n, interval) and the bound, in words."""

    word: Word
    measured: str
    bound: str


@dataclass(frozen=True)
class Claim:
    """A sentence that runs can bear out.

    `text`: the claim; `check`: tidy metrics table -> Verdict; `paper`: what the paper reports, in words ("" if nothing).
    """

    experiment: str
    text: str
    check: Callable[[pd.DataFrame], Verdict]
    paper: str = ""


def at_most(measured: Estimate, bound: float) -> Verdict:
    """Is the quantity at most `bound`?

    >>> from metapt.evaluation.statistics import estimate
    >>> at_most(estimate(3.0, 0.5, 10), 7.2)
    Verdict(word='reproduced', measured='3.0 ± 0.5 (n = 10, 95% interval 1.9 to 4.1)', bound='at most 7.2')
    """
    return _between(measured, -math.inf, bound, f"at most {bound:g}")


def at_least(measured: Estimate, bound: float) -> Verdict:
    """Is the quantity at least `bound`?

    >>> from metapt.evaluation.statistics import estimate
    >>> at_least(estimate(84.0, math.nan, 1), 90)
    Verdict(word='not reproduced', measured='84.00 (n = 1: no spread known, the value alone decides)', bound='at least 90')
    """
    return _between(measured, bound, math.inf, f"at least {bound:g}")


def within(measured: Estimate, target: float, tolerance: float) -> Verdict:
    """Does the quantity lie within `tolerance` of `target`?

    >>> from metapt.evaluation.statistics import estimate
    >>> within(estimate(44.0, 2.0, 10), 45, 4).word
    'inconclusive'
    """
    return _between(measured, target - tolerance, target + tolerance, f"within {tolerance:g} of {target:g}")


def difference_at_least(a: pd.Series[float], b: pd.Series[float], bound: float) -> Verdict:
    """Is the mean of a - b, paired by replicate, at least `bound`? Takes and raises what `paired_difference` does."""
    verdict = at_least(paired_difference(a, b), bound)
    return Verdict(verdict.word, verdict.measured, f"difference at least {bound:g}")


def from_several(compare: Callable[[Estimate], Verdict], measured: Estimate, unit: str) -> Verdict:
    """`compare(measured)`, but inconclusive where there is one `unit` ("PT seed") only: for numbers that vary much between units.

    >>> from metapt.evaluation.statistics import estimate
    >>> from_several(lambda e: at_least(e, 0), estimate(1.5, math.nan, 1), "PT seed")
    Verdict(word='inconclusive', measured='1.500 (n = 1 PT seed: no spread known)', bound='at least 0')
    """
    verdict = compare(measured)
    if measured.n > 1 or not math.isfinite(measured.mean):
        return verdict
    return Verdict("inconclusive", f"{mean_and_error(measured.mean)} (n = 1 {unit}: no spread known)", verdict.bound)


def judge(claims: Iterable[Claim], metrics: pd.DataFrame) -> pd.DataFrame:
    """One row per claim, in their order: experiment, claim, measured, bound, paper, verdict.

    A claim whose check raises NotMeasuredError (`metrics.select` does) gets the verdict "not measured".
    """
    rows = []
    for claim in claims:
        try:
            verdict = claim.check(metrics)
        except NotMeasuredError as error:
            verdict = Verdict("not measured", str(error), "")
        rows.append((claim.experiment, claim.text, verdict.measured, verdict.bound, claim.paper, verdict.word))
    return pd.DataFrame(rows, columns=COLUMNS)


def _between(measured: Estimate, lowest: float, highest: float, bound: str) -> Verdict:
    low, high = (measured.mean, measured.mean) if measured.n == 1 else (measured.low, measured.high)
    word: Word
    if not (math.isfinite(low) and math.isfinite(high)):
        word = "inconclusive"
    elif lowest <= low and high <= highest:
        word = "reproduced"
    elif high < lowest or highest < low:
        word = "not reproduced"
    else:
        word = "inconclusive"
    return Verdict(word, _describe(measured), bound)


def _describe(measured: Estimate) -> str:
    number = mean_and_error(measured.mean, measured.standard_error)
    if not math.isfinite(measured.mean):
        return f"{number} (n = {measured.n}, a replicate gave no finite number)"
    if measured.n == 1:
        return f"{number} (n = 1: no spread known, the value alone decides)"
    return f"{number} (n = {measured.n}, 95% interval {_end(measured.low, measured)} to {_end(measured.high, measured)})"


def _end(value: float, measured: Estimate) -> str:
    """An end of the interval with the digits of the mean."""
    return mean_and_error(value, measured.standard_error).split(" ± ")[0]
