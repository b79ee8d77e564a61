"""The comparisons of these pages: what is compared, pooled over machines, and the verdicts on the paper's claims.

comparisons.csv has a row for each: its words, what is compared, and in which files its runs are. Files of one machine
are joined by "+", machines are separated by " / ", and "file:problem" has the rows of one problem. A file in claims/
stands for runs that are not kept: it has their mean, standard error and number. protocol.md has the formulas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from metapt.evaluation.comparisons import LEAST_SEEDS, Criterion, at_least, at_most, p_values, within
from metapt.evaluation.statistics import Estimate, estimate, holm
from metapt.evaluation.tables import paper_numbers

HERE = Path(__file__).parent
COMPARISONS = pd.read_csv(HERE / "comparisons.csv", keep_default_na=False)
FT, LINEAR = "full_transfer", "linear_evaluation"


@dataclass(frozen=True)
class Group:
    """The differences of one machine: their number, mean and sum of squares around it; by PT seed if they are kept."""

    n: int
    mean: float
    squares: float
    seeds: pd.Series[float] | None = None


@dataclass(frozen=True)
class Pooled:
    """The estimate of a comparison over all its machines. `seeds` are the differences that are kept."""

    row: Any
    n: int
    estimate: Estimate  # its `n` is the degrees of freedom + 1
    seeds: list[float]
    lost: bool

    def shown(self) -> Estimate:
        """Return the estimate as the pages have it: of logarithms the geometric mean, without its error."""
        own = self.estimate
        if not self.row.scale:
            return own
        return Estimate(math.exp(own.mean), math.nan, own.n, math.exp(own.low), math.exp(own.high))


@cache
def runs(name: str) -> pd.DataFrame:
    """Return a table of runs by evaluation, arm and seed; "file:problem" has the rows of a problem."""
    file, _, problem = name.partition(":")
    found = pd.read_csv(HERE / f"{file}.csv").rename(columns={"pretrain_seed": "seed", "replicate": "seed"})
    if problem:
        found = found[found["problem"].str.endswith(problem)]
    if "clean" in found:
        found = found[found["update"] == found["update"].max()]
        found = found.assign(log_ratio=np.log10(found["clean"] / found["noisy"]))
    found = found.assign(evaluation=found.get("evaluation", ""))
    return found.groupby(["evaluation", "arm", "seed"]).mean(numeric_only=True)


def group(row: Any, part: str) -> Group:
    """Return the differences of a comparison on one machine."""
    names = part.split("+")
    found = [claimed(row, name) for name in names if name.startswith("claims/")]
    if kept := [name for name in names if not name.startswith("claims/")]:
        table = pd.concat([runs(name) for name in kept])[row.metric].dropna().sort_index()
        table = np.log(table) if row.scale else table
        own = table[row.evaluation, row.arm]
        own = (own - table[row.evaluation, row.control]).dropna() if row.control else own
        found.append(Group(len(own), own.mean(), ((own - own.mean()) ** 2).sum(), own))
    n = sum(each.n for each in found)
    mean = sum(each.n * each.mean for each in found) / n
    squares = sum(each.squares + each.n * (each.mean - mean) ** 2 for each in found)
    return Group(n, mean, squares, found[-1].seeds)


def claimed(row: Any, name: str) -> Group:
    """Return the differences of which only a table of claims has the mean and the standard error."""
    file, _, words = name.partition(":")
    claims = pd.read_csv(HERE / f"{file}.csv", keep_default_na=False)
    same = claims["claim"].str.contains(words, regex=False)
    same &= (claims["arm"] == row.arm) & (claims["control"] == row.control) & (claims["evaluation"] == row.evaluation)
    same &= (claims["metric"] == row.metric) | (row.metric == "test")
    (claim,) = claims[same].itertuples()
    mean, error, n = claim.mean, claim.standard_error, int(claim.n)
    mean, error = (math.log(mean), error / mean) if row.scale else (mean, error)
    return Group(n, mean, error**2 * n * (n - 1))


def combined(groups: Sequence[Group]) -> Estimate:
    """Return the estimate of groups, with a fixed effect of the machine (protocol.md)."""
    n, freedom = sum(each.n for each in groups), sum(each.n - 1 for each in groups)
    mean = sum(each.n * each.mean for each in groups) / n
    return estimate(mean, math.sqrt(sum(each.squares for each in groups) / freedom / n), freedom + 1)


@cache
def pooled(index: int) -> Pooled:
    """Return the estimate of a row of comparisons.csv."""
    row = COMPARISONS.iloc[index]
    groups = [group(row, part) for part in row.runs.split(" / ")]
    seeds = [float(value) for each in groups if each.seeds is not None for value in each.seeds]
    return Pooled(row, sum(each.n for each in groups), combined(groups), seeds, "claims/" in row.runs)


def papers(row: Any) -> tuple[float, float]:
    """Return the paper's number and its standard error, NaN where it has none."""
    if ";" in row.paper:
        mean, _, error = row.paper.partition(";")
        return float(mean), float(error or "nan")
    if not row.paper:
        return math.nan, math.nan
    known = paper_numbers().query("experiment == @row.paper and setting in ('full_access', 'ft_size=500')")
    known = known.set_index(["arm", "evaluation"])[["paper_mean", "paper_standard_error"]]
    own = known.loc[row.arm, row.evaluation]
    other = known.loc[row.control, row.evaluation if (row.control, row.evaluation) in known.index else FT]
    return own.iloc[0] - other.iloc[0], math.hypot(own.iloc[1], other.iloc[1])


def criterion(row: Any) -> Criterion:
    """Return what a claim must meet."""
    numbers = [float(word) for word in re.findall(r"-?[\d.]+", row.criterion)]
    if row.criterion.startswith("within"):
        return within(numbers[1], numbers[0])
    bound = math.log(numbers[0]) if row.scale else numbers[0]
    return at_least(bound) if row.criterion.startswith("at least") else at_most(bound)


@cache
def verdict(index: int) -> str:
    """Return the verdict on a claim of the paper, corrected for the paper's claims of its experiment."""
    row, family = COMPARISONS.iloc[index], COMPARISONS["family"]
    if not row.family:
        return ""
    claims = [i for i in COMPARISONS.index[family == row.family] if pooled(i).n >= LEAST_SEEDS]
    p = {i: p_values(pooled(i).estimate, criterion(COMPARISONS.iloc[i])) for i in claims}
    adjusted = dict(zip(claims, holm([2 * min(each) for each in p.values()]), strict=True))
    words = "reproduced" if p[index][0] <= p[index][1] else "not reproduced"
    words = words if adjusted[index] <= 0.05 else "open"
    mean, error = papers(row)
    found = pooled(index)
    apart = math.hypot(found.estimate.standard_error, error if error > 0 else 0.0)
    away = abs(mean - found.estimate.mean) > stdtrit(found.estimate.n - 1, 0.975) * apart
    excluded = away and row.criterion == "at least 0"
    return f"{words}, excludes {mean:.1f}" if excluded else words
