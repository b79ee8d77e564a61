"""Headroom: what other hyperparameters could gain, from PT runs of several settings with common seeds.

All functions start from a table with a row for each FT run. Its columns are `RUN`, and further ones are hyperparameters
of PT. Tables that were made on different days can be joined. Seeds are common: PT runs of all settings with one PT seed
have the same weights, minibatches and draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import fdtrc, nctdtr, stdtrit

from metapt.errors import DataError
from metapt.evaluation.statistics import CONFIDENCE, POWER, Estimate, estimate, estimate_mean
from metapt.files import reading

CELL = ["experiment", "domain", "problem", "evaluation"]
RUN = [*CELL, "setting", "pretrain_seed", "finetune_seed", "validation", "test"]
"""Columns of a table of runs besides the hyperparameters; `validation` and `test` are results, higher is better."""
REFERENCE = "reference"
"""The setting that the others are compared with. Its hyperparameters are empty where they have no such number."""

_LARGEST_SPLITS = 5000
_MOST_SEEDS = 100_000

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """The results of one problem under one evaluation, means over FT runs.

    Attributes:
        cell: experiment, domain, problem, evaluation.
        hyperparameters: [settings, hyperparameters].
        validation: [settings, PT seeds], without the reference.
        test: likewise.
        reference: test results of the reference [PT seeds]; None if it was not run.
    """

    cell: dict[str, str]
    hyperparameters: pd.DataFrame
    validation: pd.DataFrame
    test: pd.DataFrame
    reference: pd.Series[float] | None


def read(paths: Sequence[Path]) -> pd.DataFrame:
    """Return the tables of runs in CSV files as one. Raises DataError as `check`, and for a file that is no table."""
    tables = []
    for path in paths:
        try:
            with reading(path, "name the table.csv of a headroom"):
                tables.append(check(pd.read_csv(path), str(path)))
        except ValueError as error:
            why = str(error).strip()
            raise DataError(f"{path} is no table of runs ({why}); name the table.csv of a headroom.") from None
    return check(pd.concat(tables, ignore_index=True), " and ".join(map(str, paths)))


def check(rows: pd.DataFrame, where: str = "the table of runs") -> pd.DataFrame:
    """Return a table of runs.

    Raises DataError, which names `where`, if a column is missing, a run has no name or seed, or a run stands twice.
    """
    if missing := [name for name in RUN if name not in rows]:
        raise DataError(f"{where} lacks the column {missing[0]!r}; a table of runs has {', '.join(RUN)}.")
    for name in RUN[:-2]:
        empty = rows[name].isna().to_numpy()
        if empty.any():
            row = int(empty.argmax()) + 1
            raise DataError(f"{where} has no {name} in row {row}; it is cut or was edited, so make it again.")
    for name in (*RUN[-2:], *hyperparameters(rows)):
        if not pd.api.types.is_numeric_dtype(rows[name]):
            raise DataError(f"{where} has text in the column {name!r}; results and hyperparameters are numbers.")
    again = rows[rows.duplicated(RUN[:-2])]
    if len(again):
        run = ", ".join(f"{name} {again.iloc[0][name]}" for name in RUN[:-2])
        raise DataError(f"{where} has a run twice: {run}; name each file once, and each seed in one file.")
    return rows


def hyperparameters(rows: pd.DataFrame) -> list[str]:
    """Return the columns that are hyperparameters of one of the runs, in their order."""
    return [str(name) for name in rows if name not in RUN and rows[name].notna().any()]


def grids(rows: pd.DataFrame) -> Iterator[Grid]:
    """Yield the results of each problem and evaluation in a table of runs, in order of first appearance.

    Raises DataError if a setting has not been run with all PT seeds, has two values of a hyperparameter, or there are
    fewer than two settings or PT seeds.
    """
    for cell, part in rows.groupby(CELL, sort=False):
        yield _grid(dict(zip(CELL, map(str, cell), strict=True)), part)


def _grid(cell: dict[str, str], rows: pd.DataFrame) -> Grid:
    where = f"{cell['problem']}, {cell['evaluation']}"
    runs = rows.groupby(["setting", "pretrain_seed"], sort=False)
    ran = set(runs.indices)
    pairs = ((setting, seed) for setting in rows["setting"].unique() for seed in rows["pretrain_seed"].unique())
    gaps = [f"{setting} with PT seed {seed}" for setting, seed in pairs if (setting, seed) not in ran]
    if gaps:
        more = f" and {len(gaps) - 1} more" * (len(gaps) > 1)
        raise DataError(f"{where} has no run of {gaps[0]}{more}; all settings need the same PT seeds.")
    validation, test = (  # a result that is NaN makes the mean NaN
        runs[name].agg(lambda part: float(np.mean(part.to_numpy()))).unstack() for name in ("validation", "test")
    )
    names = hyperparameters(rows)
    values = rows[["setting", *names]].drop_duplicates().set_index("setting")
    if not values.index.is_unique:
        twice = values.index[values.index.duplicated()][0]
        raise DataError(f"{where} has two settings of the name {twice!r}; give the draws of settings different seeds.")
    settings = [setting for setting in test.index if setting != REFERENCE]
    for what, count in (("setting", len(settings)), ("PT seed", test.shape[1])):
        if count < 2:
            raise DataError(f"{where} has {count} {what}{'s' * (count != 1)}; a headroom needs at least two.")
    reference = test.T[REFERENCE] if REFERENCE in test.index else None
    return Grid(cell, values.loc[settings], validation.loc[settings], test.loc[settings], reference)


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
    random = np.random.default_rng(seed)
    drawn = degrees * squares / random.chisquare(degrees, (draws, 3))

    def components(mean_squares: Values) -> Values:
        settings, seeds, rest = np.moveaxis(mean_squares, -1, 0)
        found = np.stack([(settings - rest) / columns, (seeds - rest) / rows, rest], -1)
        return np.asarray(found.clip(min=0), dtype=np.float64)

    def shares(variances: Values) -> Values:
        total = variances.sum(-1, keepdims=True)
        found = np.divide(variances, total, out=np.zeros_like(variances), where=~(total <= 0))
        return np.asarray(100 * found, dtype=np.float64)

    variances = components(squares)
    low, high = np.quantile(shares(components(drawn)), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    found = zip(variances, shares(variances), low, high, strict=True)
    return dict(zip(("settings", "seeds", "rest"), (Share(*map(float, each)) for each in found), strict=True))


def held_out_gain(test: ArrayLike, reference: ArrayLike, criterion: ArrayLike) -> Estimate:
    """Return the gain over the reference of the setting that is best on one half of the seeds, on the other half.

    It is the mean over all splits of the seeds into halves (over 5,000 random ones if there are more). Since half of
    the seeds choose worse than all of them, it is on average not above the gain of the truly best setting.

    Args:
        test: results [settings, seeds].
        reference: results of the reference [seeds].
        criterion: results [settings, seeds] whose mean over half of the seeds chooses the setting, such as `test`.

    Returns:
        Mean, standard error and t interval over seeds of each seed's gain in the splits that measure on it. The
        interval is too short, since seeds choose for one another and their gains are not independent: in simulations
        with 24 settings and 4 or 8 seeds it misses the mean gain in 5 to 13 % of the cases, not in 5 %.
    """
    gains = np.asarray(test, dtype=np.float64) - np.asarray(reference, dtype=np.float64)
    by = np.nan_to_num(np.asarray(criterion, dtype=np.float64), nan=-np.inf)
    choosing = _halves(gains.shape[1])
    with np.errstate(invalid="ignore"):
        means = np.stack([by[:, half].mean(1) for half in choosing])  # [splits, settings]
    measured = np.where(choosing, 0.0, gains[means.argmax(1)])  # [splits, seeds]
    return estimate_mean(measured.sum(0) / (~choosing).sum(0))


def _halves(seeds: int) -> NDArray[np.bool_]:
    """Return masks [splits, seeds] of the halves that choose; of an odd number, the smaller and the larger half."""
    sizes = sorted({seeds // 2, -(-seeds // 2)})
    if sum(math.comb(seeds, size) for size in sizes) <= _LARGEST_SPLITS:
        chosen = [half for size in sizes for half in combinations(range(seeds), size)]
    else:
        random = np.random.default_rng(0)
        chosen = [tuple(random.permutation(seeds)[: random.choice(sizes)]) for _ in range(_LARGEST_SPLITS)]
    return np.array([np.isin(np.arange(seeds), half) for half in chosen])


def largest_gain(test: ArrayLike, reference: ArrayLike) -> tuple[int, float]:
    """Return the setting with the best mean over all seeds, and its gain over the reference on these seeds.

    On average it is not below the gain of the truly best setting, since the seeds that choose also measure.
    """
    gains = (np.asarray(test, dtype=np.float64) - np.asarray(reference, dtype=np.float64)).mean(1)
    best = int(np.nan_to_num(gains, nan=-np.inf).argmax())
    return best, float(gains[best])


def paired_deviation(test: ArrayLike, reference: ArrayLike) -> float:
    """Return the standard deviation over seeds of a setting's difference to the reference, pooled over settings."""
    differences = np.asarray(test, dtype=np.float64) - np.asarray(reference, dtype=np.float64)
    return float(np.sqrt(differences.var(1, ddof=1).mean()))


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
    if not gain > 0 or math.isnan(deviation):
        return None

    def enough(seeds: int) -> bool:
        critical = stdtrit(seeds - 1, (1 + CONFIDENCE) / 2)
        return deviation == 0 or bool(nctdtr(seeds - 1, math.sqrt(seeds) * gain / deviation, critical) <= 1 - POWER)

    low, high = 1, 2
    while not enough(high):
        low, high = high, 2 * high
        if low >= _MOST_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high if high <= _MOST_SEEDS else None


@dataclass(frozen=True)
class Response:
    """How the result depends on one hyperparameter: a quadratic fit to the settings' means over seeds.

    Attributes:
        curve: value, mean, low, high (pointwise 95% band) at 60 values over the range of the settings.
        best: the value with the highest fit.
        effect: highest minus lowest fit.
        p_value: of the F test of no dependence.
        logarithmic: whether the fit is quadratic in the logarithm.
    """

    curve: pd.DataFrame
    best: float
    effect: float
    p_value: float
    logarithmic: bool


def response(values: ArrayLike, results: ArrayLike) -> Response | None:
    """Return the response along a hyperparameter with `values` [settings], given the settings' `results` [settings].

    The other hyperparameters add to the scatter, since they are drawn independently of this one. Values that spread
    evenly on a logarithmic scale are fitted on it. Returns None with fewer than five settings or three values.
    """
    x, y = np.asarray(values, dtype=np.float64), np.asarray(results, dtype=np.float64)
    if len(x) < 5 or len(np.unique(x)) < 3 or not np.isfinite([x, y]).all():
        return None
    logarithmic = _is_logarithmic(x)
    place = np.log(x) if logarithmic else x
    points = np.linspace(place.min(), place.max(), 60)
    middle, scale = points.mean(), (points[-1] - points[0]) / 2
    design, at = (np.vander((each - middle) / scale, 3) for each in (place, points))
    inverse = np.linalg.pinv(design.T @ design)
    weights = inverse @ design.T @ y
    degrees = len(x) - 3
    rest = float(np.sum((y - design @ weights) ** 2)) / degrees
    half = stdtrit(degrees, (1 + CONFIDENCE) / 2) * np.sqrt(rest * np.sum((at @ inverse) * at, 1))
    fitted = at @ weights
    explained = (float(np.sum((y - y.mean()) ** 2)) - rest * degrees) / 2
    p_value = float(fdtrc(2, degrees, max(explained, 0.0) / rest)) if rest > 0 else float(explained <= 0)
    value = np.exp(points) if logarithmic else points
    curve = pd.DataFrame({"value": value, "mean": fitted, "low": fitted - half, "high": fitted + half})
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
        most: see `largest_gain`.
        seeds_to_see: the seeds needed to see the gain `most`, see `seeds_to_see`.
        responses: by hyperparameter.
    """

    grid: Grid
    shares: dict[str, Share]
    gain: Estimate
    validated: Estimate
    best: str
    most: float
    seeds_to_see: int | None
    responses: dict[str, Response]

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
        best = f"at most about {self.most:.2g} points can be gained with the best of {len(self.grid.test)}"
        return f"{explained}; {best}; {runs} would be needed to see it"


def headroom(grid: Grid) -> Headroom:
    """Return the headroom of a problem under an evaluation."""
    test, means = grid.test.to_numpy(dtype=float), grid.test.mean(axis=1, skipna=False)
    found = {name: response(column, means) for name, column in grid.hyperparameters.items()}
    gain = validated = estimate(math.nan, math.nan, test.shape[1])
    best, most, seeds = int(np.nan_to_num(means, nan=-np.inf).argmax()), math.nan, None
    if grid.reference is not None:
        reference = grid.reference.to_numpy(dtype=float)
        gain = held_out_gain(test, reference, test)
        validated = held_out_gain(test, reference, grid.validation)
        most = largest_gain(test, reference)[1]
        seeds = seeds_to_see(most, paired_deviation(test, reference))
    return Headroom(
        grid=grid,
        shares=variance_shares(test),
        gain=gain,
        validated=validated,
        best=str(grid.test.index[best]),
        most=most,
        seeds_to_see=seeds,
        responses={str(name): each for name, each in found.items() if each is not None},
    )
