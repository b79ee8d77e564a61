"""Claims as comparisons, and the verdicts on them.

A verdict compares what was measured with a criterion, over at least five replicates (PT seeds):

- *reproduced*: it is shown that the criterion is met.
- *not reproduced*: it is shown that the criterion is not met.
- *inconclusive*: neither is shown, a replicate gave no finite number, all replicates lie exactly at the bound, as
  those of two equal arms do, or there is a doubt, such as runs on several machines. More replicates may decide it.
- *too few seeds*: there are fewer replicates than a verdict needs.
- *control failed*: the control has not passed its check (`Sanity`), such as that it beats an arm without PT, so nothing
  is claimed against it.
- *not measured*: a run that the claim needs was not made.

On data that stand in for the paper's, a claim is a question with a known answer. Its verdict is *found*, *missed* or
*open* in place of the first three: it tests the program and says nothing about the paper.

Each comparison has two one-sided t tests: that the criterion is met, and that it is not. A criterion with two ends is
met if both ends are rejected (Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 1987), and not met if a
value beyond one of them is shown. The p-value of the comparison is twice the smaller of the two. The p-values of a
family are adjusted together (`holm`), and at an adjusted p-value of at most 0.05 the verdict is the side of the smaller
one. The paper's claims in an experiment are one family, and those beyond the paper another, so that an arm that someone
adds changes no verdict on a claim of the paper. A comparison alone in its family is decided where its whole 95%
interval lies on one side of the criterion.

The t tests assume independent and approximately normal replicates. "Not reproduced" is about these runs, their config
and data, not about the paper.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import pandas as pd

from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import LEVEL, Estimate, holm
from metapt.evaluation.tables import mean_and_error

BEYOND_THE_PAPER = "beyond the paper"
"""What stands for the paper's number beside a claim that the paper does not make, and the name of their family."""
OF_THE_PAPER = "of the paper"
"""The family of the paper's claims."""
STAND_IN = "not comparable: stand-in data"
"""What stands for the paper's number beside a claim on data that are not of the paper's kind."""
OWN_DATA = "not comparable: your own data"
"""What stands for it beside a claim on data of the user's own."""
COLUMNS = [
    "experiment", "family", "claim", "arm", "control", "metric", "evaluation",
    "measured", "mean", "standard_error", "n", "low", "high", "p_value", "adjusted_p_value", "visible_difference",
    "criterion", "least_seeds", "paper", "verdict",
]  # fmt: skip
LEAST_SEEDS = 5
"""Number of replicates (PT seeds) below which nothing is decided."""

Word = Literal[
    "reproduced", "not reproduced", "inconclusive", "found", "missed", "open",
    "too few seeds", "control failed", "not measured",
]  # fmt: skip
KNOWN_ANSWER: dict[Word, Word] = {"reproduced": "found", "not reproduced": "missed", "inconclusive": "open"}
"""The verdicts on stand-in data, by those on the paper's kind of data."""


@dataclass(frozen=True)
class Criterion:
    """The values from `low` to `high` that make a claim true; `words` describes them.

    >>> at_least(2).words, at_most(7.2).words, within(45, 4).words
    ('at least 2', 'at most 7.2', 'within 4 of 45')
    """

    low: float
    high: float
    words: str


def at_least(value: float) -> Criterion:
    """Return the criterion that a number is at least `value`."""
    return Criterion(value, math.inf, f"at least {value:g}")


def at_most(value: float) -> Criterion:
    """Return the criterion that a number is at most `value`."""
    return Criterion(-math.inf, value, f"at most {value:g}")


def within(target: float, tolerance: float) -> Criterion:
    """Return the criterion that a number is within `tolerance` of `target`."""
    return Criterion(target - tolerance, target + tolerance, f"within {tolerance:g} of {target:g}")


NOT_BELOW = Criterion(0.0, math.inf, "difference at least 0")  # the criterion that one arm is better than another


@dataclass(frozen=True)
class Measurement:
    """What a comparison measured."""

    estimate: Estimate  # a mean or a difference, with its interval
    words: str = "{}"  # how it is described; `{}` stands for the words of the estimate
    doubt: str = ""  # a reason why nothing is decided, or an empty string


def machines_doubt(machines: Mapping[str, list[str]], *arms: str) -> str:
    """Return why times of arms can't be compared, if their runs were not all on one machine; else an empty text."""
    found = {tuple(machines.get(arm, [])) for arm in arms}
    several = len(found) > 1 or any(len(names) > 1 for names in found)
    return "but not all runs were on the same machine" if several else ""


@dataclass(frozen=True)
class Sanity:
    """What must hold of a control before anything is claimed against it: a number of it is above 0."""

    text: str  # the sentence that must be shown, as in "bptt beats its start"
    # returns the number, such as the control's accuracy minus that of its start; raises NotMeasuredError if a run was
    # not made
    measure: Callable[[], Estimate]


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
    sanity: Sanity | None = None  # what the control must show first, by a one-sided t test

    @property
    def family(self) -> str:
        """The claims with which this one is corrected for their number."""
        return BEYOND_THE_PAPER if self.paper == BEYOND_THE_PAPER else OF_THE_PAPER


class Judgement(NamedTuple):
    """The verdict on a comparison, and what was measured in words and as numbers.

    `p_value` is two-sided. `visible` is the smallest distance of a true value from the criterion's bound that would
    have been seen with a power of 80 %, at the level that is left after a correction for the number of comparisons in
    the family. With two ends it is the distance beyond an end at which "not reproduced" would have been seen; a value
    inside needs the same distance from both ends. They are NaN where nothing is tested.
    """

    word: Word
    measured: str
    estimate: Estimate | None = None
    p_value: float = math.nan
    adjusted_p_value: float = math.nan
    visible: float = math.nan


def judge(
    experiment: str, comparisons: Iterable[Comparison], stand_in: bool = False, own: bool = False
) -> pd.DataFrame:
    """Return a table with the columns `COLUMNS` and a row for each comparison, in their order.

    On `stand_in` data the verdicts are those of `KNOWN_ANSWER`. No number of the paper stands beside them, nor beside
    those on the user's `own` data.
    """
    rows, claims = [], list(comparisons)
    for each, judged in zip(claims, decide(claims), strict=True):
        e = judged.estimate
        numbers = (None,) * 5 if e is None else (e.mean, e.standard_error, e.n, e.low, e.high)
        criterion = each.criterion.words if judged.word != "not measured" else ""
        names = (experiment, each.family, each.text, each.arm, each.control, each.metric, each.evaluation)
        paper = STAND_IN if stand_in else OWN_DATA if own else each.paper
        verdict = KNOWN_ANSWER.get(judged.word, judged.word) if stand_in else judged.word
        rest = (criterion, LEAST_SEEDS, paper, verdict)
        rows.append((*names, judged.measured, *numbers, *judged[3:], *rest))
    return pd.DataFrame(rows, columns=COLUMNS).astype({"n": "Int64"})


def decide(comparisons: Iterable[Comparison]) -> list[Judgement]:
    """Return the verdicts on an experiment's comparisons; a verdict is "not measured" if a run is missing.

    The correction counts each comparison of a family with enough replicates, whatever its verdict.
    """
    claims = list(comparisons)
    found: list[_Test | Judgement] = [_measured(each) for each in claims]
    for family in (OF_THE_PAPER, BEYOND_THE_PAPER):
        tests = {i: each for i, each in enumerate(found) if isinstance(each, _Test) and claims[i].family == family}
        adjusted = holm([each.p_value for each in tests.values()])
        for (place, test), p_value in zip(tests.items(), adjusted, strict=True):
            found[place] = _judgement(test, p_value, LEVEL / len(tests))
    return [each for each in found if isinstance(each, Judgement)]


def p_values(measured: Estimate, criterion: Criterion) -> tuple[float, float]:
    """Return the one-sided p-values that a criterion is met and that it is not met; NaN without a spread.

    >>> from metapt.evaluation.statistics import estimate
    >>> [round(p, 3) for p in p_values(estimate(44.0, 2.0, 10), within(45, 4))]
    [0.084, 0.916]
    """
    if not math.isfinite(measured.standard_error):
        return math.nan, math.nan
    inside = measured.p_above(criterion.low), measured.p_below(criterion.high)
    outside = measured.p_below(criterion.low), measured.p_above(criterion.high)
    return max(inside), min(outside)


def describe(measured: Estimate) -> str:
    """Return mean, standard error, n and interval in words.

    >>> from metapt.evaluation.statistics import estimate
    >>> describe(estimate(3.0, 0.5, 10))
    '3.0 ± 0.5 (n = 10, 95% interval 1.9 to 4.1)'
    """
    number = mean_and_error(measured.mean, measured.standard_error)
    if not math.isfinite(measured.mean):
        return f"{number} (n = {measured.n}, a replicate gave no finite number)"
    if not math.isfinite(measured.standard_error):
        return f"{number} (n = {measured.n}: no spread known)"
    low, high = (like_mean(value, measured.standard_error) for value in (measured.low, measured.high))
    return f"{number} (n = {measured.n}, 95% interval {low} to {high})"


def counts(verdicts: Iterable[str]) -> dict[str, int]:
    """Return how often each verdict was given, in the order of `Word`, without those that were not."""
    found = Counter(verdicts)
    return {word: found[word] for word in get_args(Word) if found[word]}


class _Test(NamedTuple):
    """A comparison with enough replicates, before the correction."""

    criterion: Criterion
    measured: Measurement
    failure: str  # why the control failed, or an empty string
    p_value: float  # two-sided


def _measured(comparison: Comparison) -> _Test | Judgement:
    """Measure what a comparison needs. Return a judgement if there is nothing to test."""
    check, criterion, failure = comparison.sanity, comparison.criterion, ""
    try:
        found = comparison.measure()
        own = None if check is None else check.measure()
    except NotMeasuredError as error:
        return Judgement("not measured", str(error))
    measured = found if isinstance(found, Measurement) else Measurement(found)
    estimate = measured.estimate
    if min(estimate.n, estimate.n if own is None else own.n) < LEAST_SEEDS:
        few = f"fewer than {LEAST_SEEDS} seeds"
        if check is not None and estimate.n >= LEAST_SEEDS:
            few = f"but {few} show whether {check.text}"
        return Judgement("too few seeds", f"{measured.words.format(describe(estimate))}, {few}", estimate)
    if check is not None and own is not None and not (own.mean > 0 and own.p_above(0.0) <= LEVEL):
        failure = f"but it is not shown that {check.text}: {describe(own)}"
    return _Test(criterion, measured, failure, 2 * min(p_values(estimate, criterion)))


def _judgement(test: _Test, adjusted: float, level: float) -> Judgement:
    """Return the verdict for an adjusted p-value, and what could have been seen at a two-sided level."""
    criterion, measured, estimate = test.criterion, test.measured, test.measured.estimate
    word: Word = "inconclusive"
    reason = measured.doubt
    if test.failure and math.isfinite(adjusted):
        word, reason = "control failed", test.failure
    elif estimate.standard_error == 0 and estimate.mean in (criterion.low, criterion.high):
        reason = "but all replicates lie exactly at the bound"
    elif not reason and adjusted <= LEVEL:
        met, unmet = p_values(estimate, criterion)
        word = "reproduced" if met <= unmet else "not reproduced"
    words = ", ".join(filter(None, [measured.words.format(describe(estimate)), reason]))
    visible = estimate.visible(criterion.high if math.isfinite(criterion.high) else criterion.low, level)
    return Judgement(word, words, estimate, test.p_value, adjusted, visible)


def like_mean(value: float, standard_error: float) -> str:
    """Return a value, such as an end of an interval, with as many digits as a mean with this standard error."""
    number, _, rest = mean_and_error(value, standard_error).partition(" ± ")
    return number.removeprefix("(") + rest.partition(")")[2]  # in "(1.2 ± 0.3)e6" the power stands at the end
