"""Claims as comparisons, and the verdicts on them.

A verdict compares the 95% interval of what was measured with a criterion:

- *reproduced*: the whole interval meets the criterion.
- *not reproduced*: no part of the interval meets it.
- *inconclusive*: a part of the interval meets it, or a replicate gave no finite number. More replicates may decide it.
- *not measured*: a run that the claim needs was not made.

A true value near a bound of the criterion mostly gives "inconclusive"; at the bound, one verdict in 40 of either kind
is wrong by chance. Nothing corrects for the number of claims. The t interval assumes independent and approximately
normal replicates. A single value (n = 1) has no known spread: unless the comparison asks for more seeds, the value
alone decides, and the verdict says so. "Not reproduced" is about these runs, their config and data, not about the
paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pandas as pd

from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate
from metapt.evaluation.tables import mean_and_error

BEYOND_THE_PAPER = "beyond the paper"
STAND_IN = "not comparable: stand-in data"
"""What stands for the paper's number beside a claim on data that are not of the paper's kind."""
COLUMNS = [
    "experiment", "claim", "arm", "control", "metric", "evaluation",
    "measured", "mean", "standard_error", "n", "criterion", "least_seeds", "paper", "verdict",
]  # fmt: skip

Word = Literal["reproduced", "not reproduced", "inconclusive", "not measured"]


@dataclass(frozen=True)
class Criterion:
    """The values from `low` to `high` that make a claim true; `words` describes them.

    >>> at_least(2).words, at_most(7.2).words, within(45, 4).words
    ('at least 2', 'at most 7.2', 'within 4 of 45')
    """

    low: float
    high: float
    words: str


def at_least(value: float, what: str = "") -> Criterion:
    """Return the criterion that a number, called `what` in words, is at least `value`."""
    return Criterion(value, math.inf, f"{what} at least {value:g}".strip())


def at_most(value: float, what: str = "") -> Criterion:
    """Return the criterion that a number, called `what` in words, is at most `value`."""
    return Criterion(-math.inf, value, f"{what} at most {value:g}".strip())


def within(target: float, tolerance: float) -> Criterion:
    """Return the criterion that a number is within `tolerance` of `target`."""
    return Criterion(target - tolerance, target + tolerance, f"within {tolerance:g} of {target:g}")


NOT_BELOW = at_least(0.0, "difference")  # the criterion that one arm is better than another


@dataclass(frozen=True)
class Measurement:
    """What a comparison measured."""

    estimate: Estimate  # a mean or a difference, with its interval
    words: str = "{}"  # how it is described; `{}` stands for the words of the estimate
    doubt: str = ""  # a reason why nothing is decided, or an empty string


@dataclass(frozen=True)
class Comparison:
    """A claim: a sentence, and what decides it."""

    text: str  # the claim
    arm: str  # the arm that the claim is about
    control: str  # the arm that it is compared with; empty if it is compared with a number
    metric: str  # name of what is compared, as in the metrics table
    criterion: Criterion  # what the measured value must meet
    # returns what was measured; raises NotMeasuredError if a run was not made
    measure: Callable[[], Estimate | Measurement]
    evaluation: str = ""  # name of the evaluation; empty if the metric has none
    paper: str = BEYOND_THE_PAPER  # what the paper reports, in words
    least_seeds: int = 1  # number of PT seeds (replicates) below which nothing is decided
    unit: str = "PT seed"  # name of a replicate


class Judgement(NamedTuple):
    """The outcome of a comparison: the verdict, and mean, standard error, n and interval in words and as numbers."""

    word: Word
    measured: str
    estimate: Estimate | None = None


def judge(experiment: str, comparisons: Iterable[Comparison]) -> pd.DataFrame:
    """Return a table with the columns `COLUMNS` and a row for each comparison, in their order."""
    rows = []
    for each in comparisons:
        word, measured, e = decide(each)
        numbers = (None, None, None) if e is None else (e.mean, e.standard_error, e.n)
        criterion = each.criterion.words if word != "not measured" else ""
        names = (experiment, each.text, each.arm, each.control, each.metric, each.evaluation)
        rows.append((*names, measured, *numbers, criterion, each.least_seeds, each.paper, word))
    return pd.DataFrame(rows, columns=COLUMNS).astype({"n": "Int64"})


def decide(comparison: Comparison) -> Judgement:
    """Return the verdict on a comparison; it is "not measured" if a run is missing."""
    try:
        found = comparison.measure()
    except NotMeasuredError as error:
        return Judgement("not measured", str(error))
    measured = found if isinstance(found, Measurement) else Measurement(found)
    estimate = measured.estimate
    word, words = compare(estimate, comparison.criterion), describe(estimate)
    if estimate.n < comparison.least_seeds and math.isfinite(estimate.mean):
        word, words = "inconclusive", _too_few(estimate, comparison)
    if measured.doubt:
        return Judgement("inconclusive", f"{measured.words.format(words)}, {measured.doubt}", estimate)
    return Judgement(word, measured.words.format(words), estimate)


def compare(measured: Estimate, criterion: Criterion) -> Word:
    """Return the verdict that compares an estimate's interval with a criterion.

    >>> from metapt.evaluation.statistics import estimate
    >>> compare(estimate(3.0, 0.5, 10), at_most(7.2)), compare(estimate(44.0, 2.0, 10), within(45, 4))
    ('reproduced', 'inconclusive')
    """
    low, high = (measured.mean, measured.mean) if measured.n == 1 else (measured.low, measured.high)
    if not (math.isfinite(low) and math.isfinite(high)):
        return "inconclusive"
    if criterion.low <= low and high <= criterion.high:
        return "reproduced"
    if high < criterion.low or criterion.high < low:
        return "not reproduced"
    return "inconclusive"


def describe(measured: Estimate) -> str:
    """Return mean, standard error, n and interval in words.

    >>> from metapt.evaluation.statistics import estimate
    >>> describe(estimate(3.0, 0.5, 10))
    '3.0 ± 0.5 (n = 10, 95% interval 1.9 to 4.1)'
    """
    number = mean_and_error(measured.mean, measured.standard_error)
    if not math.isfinite(measured.mean):
        return f"{number} (n = {measured.n}, a replicate gave no finite number)"
    if measured.n == 1:
        return f"{number} (n = 1: no spread known, the value alone decides)"
    return (
        f"{number} (n = {measured.n}, 95% interval {_end(measured.low, measured)} to {_end(measured.high, measured)})"
    )


def _too_few(measured: Estimate, comparison: Comparison) -> str:
    if measured.n == 1:
        return f"{mean_and_error(measured.mean)} (n = 1 {comparison.unit}: no spread known)"
    return f"{describe(measured)}, fewer than {comparison.least_seeds} {comparison.unit}s"


def _end(value: float, measured: Estimate) -> str:
    """Return a bound of the interval with as many digits as the mean."""
    return mean_and_error(value, measured.standard_error).split(" ± ")[0]
