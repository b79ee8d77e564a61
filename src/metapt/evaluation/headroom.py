"""Headroom: what other hyperparameters could gain, from PT runs of several settings with common seeds.

A row for each FT run has the columns `RUN`, and further ones are hyperparameters of PT. Seeds are common: PT runs of
all settings with one PT seed have the same weights, minibatches and draws. Rows are dictionaries, since the library
needs no pandas; `metapt.evaluation.headroom_report` reads tables of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metapt.errors import DataError
from metapt.evaluation.statistics import CONFIDENCE, POWER, Estimate, estimate

CELL = ["experiment", "domain", "problem", "evaluation"]
RUN = [*CELL, "setting", "pretrain_seed", "finetune_seed", "validation", "test"]
"""Columns of a table of runs besides the hyperparameters; `validation` and `test` are results, higher is better."""
REFERENCE = "reference"
"""The setting that the others are compared with. Its hyperparameters are empty where they have no such number."""

_LARGEST_SPLITS = 5000
_MOST_SEEDS = 100_000
SHOWN = 5  # responses of a problem in texts, tables and figures

Values = NDArray[np.float64]
Rows = Sequence[Mapping[Any, Any]]


@dataclass(frozen=True)
class Grid:
    """The results of one problem under one evaluation, means over FT runs.

    Attributes:
        cell: experiment, domain, problem, evaluation.
        settings: their names in order, without the reference.
        seeds: PT seeds in order.
        hyperparameters: [settings], by name.
        validation: [settings, PT seeds].
        test: likewise.
        reference: test results of the reference [PT seeds]; None if it was not run.
    """

    cell: dict[str, str]
    settings: list[str]
    seeds: list[Any]
    hyperparameters: dict[str, Values]
    validation: Values
    test: Values
    reference: Values | None


def hyperparameters(rows: Rows) -> list[str]:
    """Return the columns that are hyperparameters of one of the rows, in their order."""
    given = {name for row in rows for name, value in row.items() if _is_given(value)}
    return [name for name in dict.fromkeys(name for row in rows for name in row) if name in given - {*RUN}]


def grid(rows: Rows) -> Grid:
    """Return the results of the rows of one problem and evaluation.

    Raises DataError if a setting has not been run with all PT seeds, has two values of a hyperparameter, or there are
    fewer than two settings or PT seeds.
    """
    cell = {name: str(rows[0][name]) for name in CELL}
    where, names = f"{cell['problem']}, {cell['evaluation']}", hyperparameters(rows)
    runs: dict[tuple[Any, Any], list[tuple[float, float]]] = {}
    drawn: dict[str, list[float | None]] = {}
    for row in rows:
        setting = row["setting"]
        runs.setdefault((setting, row["pretrain_seed"]), []).append((row["validation"], row["test"]))
        own = [row[name] if _is_given(row.get(name)) else None for name in names]
        if drawn.setdefault(setting, own) != own:
            raise DataError(
                f"{where} has two settings of the name {setting!r}; give the draws of settings different seeds."
            )
    settings, seeds = (sorted(set(each)) for each in zip(*runs, strict=True))
    gaps = [f"{setting} with PT seed {seed}" for setting in settings for seed in seeds if (setting, seed) not in runs]
    if gaps:
        more = f" and {len(gaps) - 1} more" * (len(gaps) > 1)
        raise DataError(f"{where} has no run of {gaps[0]}{more}; all settings need the same PT seeds.")
    others = [setting for setting in settings if setting != REFERENCE]
    for what, count in (("setting", len(others)), ("PT seed", len(seeds))):
        if count < 2:
            raise DataError(f"{where} has {count} {what}{'s' * (count != 1)}; a headroom needs at least two.")
    means = {run: np.mean(np.array(results, dtype=np.float64), 0) for run, results in runs.items()}
    validation, test = np.moveaxis(np.array([[means[setting, seed] for seed in seeds] for setting in others]), -1, 0)
    reference = np.array([means[REFERENCE, seed][1] for seed in seeds]) if REFERENCE in settings else None
    along = dict(zip(names, np.array([drawn[setting] for setting in others], dtype=np.float64).T, strict=True))
    return Grid(cell, others, seeds, along, validation, test, reference)


def _is_given(value: Any) -> bool:
    return value is not None and value == value  # an empty cell is NaN in pandas


@dataclass(frozen=True)
class Share:
    """A component's variance, its share (%) of the total variance, and the share's 95% interval."""

    variance: float
    share: float
    low: float
    high: float


def variance_shares(values: ArrayLike, *, draws: int = 20_000, seed: int = 0) -> dict[str, Share]:
    """Return the shares of the variance of `values` [settings, seeds] that settings, seeds and the rest explain.

    The model is a two-way random-effects analysis of variance with one value per cell, in which the rest holds the
    interaction: y = mean + setting + seed + rest. The variances are the unbiased estimates from the mean squares
    (Searle, Casella and McCulloch, "Variance Components", 1992, section 4.7), truncated at 0. The intervals are
    generalised ones: each expected mean square is drawn as (degrees of freedom) (mean square) / chi-square (Burdick,
    Borror and Montgomery, "Design and Analysis of Gauge R&R Studies", 2005, section 3.4). They assume normal effects.

    Returns:
        `settings`, `seeds` and `rest`.
    """
    y = np.asarray(values, dtype=np.float64)
    rows, columns = y.shape
    centred = y - y.mean()
    by_row, by_column = centred.mean(1, keepdims=True), centred.mean(0, keepdims=True)
    degrees = np.array([rows - 1, columns - 1, (rows - 1) * (columns - 1)])
    sums = columns * np.sum(by_row**2), rows * np.sum(by_column**2), np.sum((centred - by_row - by_column) ** 2)
    squares = np.array(sums) / degrees
    drawn = degrees * squares / np.random.default_rng(seed).chisquare(degrees, (draws, 3))
    # of the estimate, and of the draws of its interval
    of_settings, of_seeds, rest = np.concatenate([squares[None], drawn]).T
    variances = np.stack([(of_settings - rest) / columns, (of_seeds - rest) / rows, rest]).clip(min=0)
    total = variances.sum(0)
    shares = 100 * np.divide(variances, total, out=np.zeros_like(variances), where=~(total <= 0))
    low, high = np.quantile(shares[:, 1:], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=1)
    found = zip(variances[:, 0], shares[:, 0], low, high, strict=True)
    return dict(zip(("settings", "seeds", "rest"), (Share(*map(float, each)) for each in found), strict=True))


def held_out_gain(test: ArrayLike, reference: ArrayLike, criterion: ArrayLike) -> Estimate:
    """Return the gain over the reference of the setting that is best on one half of the seeds, on the other half.

    It is the mean over seeds of a seed's gain in the splits into halves in which it does not choose, of all splits (of
    5,000 random ones if there are more). Since half of the seeds choose worse than all of them, it is on average not
    above the gain of the truly best setting.

    Args:
        test: results [settings, seeds].
        reference: results of the reference [seeds].
        criterion: results [settings, seeds] whose mean over half of the seeds chooses the setting, such as `test`.

    Returns:
        Mean, standard error of the jackknife over seeds (Efron and Stein, Annals of Statistics 1981), and its t
        interval; NaN for two seeds, of which none can be left out. Seeds choose for one another, so the spread of the
        gains over seeds is too small an error: with 24 equal settings, where nothing can be gained, an interval from
        it does not contain 0 in 6.5, 5.5 and 7.2 % of 3,000 simulated worlds with 4, 5 and 8 seeds, and this one in
        3.0, 2.1 and 2.6 %.
    """
    gains = np.asarray(test, dtype=np.float64) - np.asarray(reference, dtype=np.float64)
    by = np.nan_to_num(np.asarray(criterion, dtype=np.float64), nan=-np.inf)
    seeds = gains.shape[1]
    if seeds < 3:
        return estimate(_held_out(gains, by), math.nan, seeds)
    left = [_held_out(*(np.delete(each, seed, 1) for each in (gains, by))) for seed in range(seeds)]
    return estimate(_held_out(gains, by), math.sqrt((seeds - 1) * np.var(left)), seeds)


def _held_out(gains: Values, by: Values) -> float:
    """Return the mean over seeds of each seed's gain in the splits that measure on it; `by` chooses the setting."""
    choosing = _halves(gains.shape[1])
    sizes, means = choosing.sum(1), np.empty((len(choosing), len(by)))  # [splits, settings]
    for size in np.unique(sizes):
        halves = np.nonzero(choosing[sizes == size])[1].reshape(-1, size)
        with np.errstate(invalid="ignore"):
            means[sizes == size] = by[:, halves].mean(2).T
    measured = np.where(choosing, 0.0, gains[means.argmax(1)])  # [splits, seeds]
    return float(np.mean(measured.sum(0) / (~choosing).sum(0)))


@cache
def _halves(seeds: int) -> NDArray[np.bool_]:
    """Return masks [splits, seeds] of the halves that choose; of an odd number, the smaller and the larger half."""
    sizes = sorted({seeds // 2, -(-seeds // 2)})
    if sum(math.comb(seeds, size) for size in sizes) <= _LARGEST_SPLITS:
        chosen = [half for size in sizes for half in combinations(range(seeds), size)]
    else:
        random = np.random.default_rng(0)
        chosen = [tuple(random.permutation(seeds)[: random.choice(sizes)]) for _ in range(_LARGEST_SPLITS)]
    masks = np.zeros((len(chosen), seeds), np.bool_)
    for mask, half in zip(masks, chosen, strict=True):
        mask[list(half)] = True
    return masks


def seeds_to_see(gain: float, deviation: float) -> int | None:
    """Return the number of seeds with which a two-sided paired t test at 5 % finds a gain with 80 % power.

    The power is that of the noncentral t distribution (Cohen, "Statistical Power Analysis", 1988, chapter 2).

    Args:
        gain: the true mean difference.
        deviation: the standard deviation over seeds of the difference.

    Returns:
        At least 2; None if the gain is not above 0, or more than 100,000 seeds are needed.

    >>> seeds_to_see(1.0, 1.0), seeds_to_see(0.5, 1.0), seeds_to_see(0.0, 1.0)
    (10, 34, None)
    """
    from scipy.special import nctdtr, stdtrit

    if not gain > 0 or math.isnan(deviation):
        return None

    def enough(seeds: int) -> bool:
        critical = stdtrit(seeds - 1, (1 + CONFIDENCE) / 2)
        # NaN stands for the power 1 of a gain that is far larger than its deviation.
        return deviation == 0 or not nctdtr(seeds - 1, math.sqrt(seeds) * gain / deviation, critical) > 1 - POWER

    numbers = range(2, _MOST_SEEDS + 1)
    place = bisect_left(numbers, True, key=enough)
    return numbers[place] if place < len(numbers) else None


@dataclass(frozen=True)
class Response:
    """How the result depends on one hyperparameter: a quadratic fit to the settings' means over seeds.

    Attributes:
        curve: value, mean, low, high (pointwise 95% band) at 60 values over the range of the settings, by these names.
        best: the value with the highest fit.
        effect: highest minus lowest fit.
        p_value: of the F test of no dependence.
        logarithmic: whether the fit is quadratic in the logarithm.
    """

    curve: dict[str, Values]
    best: float
    effect: float
    p_value: float
    logarithmic: bool


def response(values: ArrayLike, results: ArrayLike) -> Response | None:
    """Return the response along a hyperparameter with `values` [settings], given the settings' `results` [settings].

    The other hyperparameters add to the scatter, since they are drawn independently of this one. Values that spread
    evenly on a logarithmic scale are fitted on it. Returns None with fewer than five settings or three values.
    """
    from scipy.special import stdtrit

    x, y = np.asarray(values, dtype=np.float64), np.asarray(results, dtype=np.float64)
    if len(x) < 5 or len(np.unique(x)) < 3 or not np.isfinite([x, y]).all():
        return None
    logarithmic = _is_logarithmic(x)
    place = np.log(x) if logarithmic else x
    points = np.linspace(place.min(), place.max(), 60)
    middle, scale = points.mean(), (points[-1] - points[0]) / 2
    here, there = (place - middle) / scale, (points - middle) / scale
    weights, covariance = np.polyfit(here, y, 2, cov=True)
    fitted, design, degrees = np.polyval(weights, there), np.vander(there, 3), len(x) - 3
    half = stdtrit(degrees, (1 + CONFIDENCE) / 2) * np.sqrt(np.sum((design @ covariance) * design, 1))
    rest, total = float(np.sum((y - np.polyval(weights, here)) ** 2)), float(np.sum((y - y.mean()) ** 2))
    # F with two and `degrees` degrees of freedom has a distribution function in closed form.
    p_value = (rest / total) ** (degrees / 2) if rest < total else 1.0
    value = np.exp(points) if logarithmic else points
    curve = {"value": value, "mean": fitted, "low": fitted - half, "high": fitted + half}
    return Response(curve, float(value[fitted.argmax()]), float(np.ptp(fitted)), p_value, logarithmic)


def _is_logarithmic(x: Values) -> bool:
    """Return whether the median is nearer to the middle of the range on a logarithmic scale than on a linear one."""
    if x.min() <= 0:
        return False
    low, high, median = float(x.min()), float(x.max()), float(np.median(x))
    logarithmic = math.log(median / low) / math.log(high / low)
    return abs(logarithmic - 0.5) < abs((median - low) / (high - low) - 0.5)


@dataclass(frozen=True)
class Headroom:
    """What the settings of one problem gain under one evaluation; gains are NaN without a reference.

    Attributes:
        grid: the results.
        shares: see `variance_shares`.
        gain: of the setting that is best on test results, see `held_out_gain`.
        validated: likewise, chosen on validation results.
        best: the setting with the best mean test result.
        most: its gain over the reference on the seeds that choose it, on average too high.
        seeds_to_see: the seeds needed to see the gain `most`, see `seeds_to_see`.
        responses: by hyperparameter.
    """

    grid: Grid = field(repr=False)
    shares: dict[str, Share]
    gain: Estimate
    validated: Estimate
    best: str
    most: float
    seeds_to_see: int | None
    responses: dict[str, Response] = field(repr=False)

    def strongest(self) -> list[tuple[str, Response]]:
        """Return the `SHOWN` responses with the smallest p-values, by hyperparameter."""
        return sorted(self.responses.items(), key=lambda each: each[1].p_value)[:SHOWN]

    @property
    def sentence(self) -> str:
        """What a user needs to know. Settings that were not drawn may gain more, the more hyperparameters there are."""
        share = self.shares["settings"].share
        if math.isnan(share):
            return "a result is not finite, so that neither the share of the variance nor a gain is known"
        explained = f"settings explain {share:.0f} % of the variance"
        if self.grid.reference is None:
            return f"{explained}; without a reference no gain is known"
        if math.isnan(self.most):
            return f"{explained}; a result of the reference is not finite, so that no gain is known"
        if self.most <= 0:
            return f"{explained}; no setting gains anything"
        seeds = self.seeds_to_see
        runs = f"{2 * seeds} runs" if seeds else f"more than {2 * _MOST_SEEDS} runs"
        held_out = f"a setting chosen on half of the PT seeds gains {_points(self.gain)} on the other half"
        best = f"the best of {len(self.grid.settings)} gains {self.most:.3g} on the seeds that choose it"
        return f"{explained}; {held_out}; {best}, and {runs} would show a gain of this size"

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {each.low:.0f} to {each.high:.0f} %" for name, each in self.shares.items())
        lines = [f"{self.sentence}.".replace("; ", ";\n"), f"95 % intervals of the shares of the variance: {shares}."]
        if math.isfinite(self.validated.mean) and self.validated != self.gain:
            lines.append(f"A setting chosen by validation results gains {_points(self.validated)}.")
        for name, along in self.strongest():
            lines.append(f"{name}: best near {along.best:.3g}, p = {along.p_value:.2g} for no response.")
        return "\n".join(lines)


def _points(gain: Estimate) -> str:
    known = f"95 % interval {gain.low:.3g} to {gain.high:.3g}" if gain.n > 2 else "no interval with two PT seeds"
    return f"{gain.mean:.3g} points ({known})"


def headroom(grid: Grid) -> Headroom:
    """Return the headroom of a problem under an evaluation."""
    test, means = grid.test, grid.test.mean(1)
    best = int(np.nan_to_num(means, nan=-np.inf).argmax())
    gain = validated = estimate(math.nan, math.nan, test.shape[1])
    most, seeds = math.nan, None
    if grid.reference is not None:
        gain = held_out_gain(test, grid.reference, test)
        validated = held_out_gain(test, grid.reference, grid.validation)
        differences = test - grid.reference
        most = float(differences[best].mean())
        seeds = seeds_to_see(most, math.sqrt(differences.var(1, ddof=1).mean()))
    found = {name: response(column, means) for name, column in grid.hyperparameters.items()}
    responses = {name: each for name, each in found.items() if each is not None}
    return Headroom(grid, variance_shares(test), gain, validated, grid.settings[best], most, seeds, responses)
