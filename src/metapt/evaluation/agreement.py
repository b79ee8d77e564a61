"""Agreement of estimates of a derivative with what happened in the runs of a headroom.

An estimate predicts the results of all settings of a table of runs (see `metapt.evaluation.headroom`) by a linear
function of the hyperparameters. Its agreement is that with the measured test results, as data attribution is judged
(Park et al. 2023, "TRAK", section 2.2): Spearman's correlation over settings, and the share of pairs of settings whose
difference has the right sign. Each PT seed makes its own estimate, and the measured results are the means over the
other PT seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from metapt.errors import DataError
from metapt.evaluation.headroom import Grid
from metapt.evaluation.statistics import Estimate, estimate_mean
from metapt.files import reading

SLOPES = ["problem", "estimator", "horizon", "pretrain_seed", "hyperparameter", "slope", "cost"]
"""Columns of a table of slopes: the estimated change of the result per unit of a hyperparameter's coordinate (its
logarithm where it was drawn on a logarithmic scale), and the cost of the whole estimate in plain PT runs."""
SINGLE_RUNS = "one run of each setting"
CHANCE = 50.0
"""Signs (%) that are right by chance."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Agreement:
    """The agreement of an estimator on one problem under one evaluation, means over PT seeds.

    Attributes:
        problem, evaluation: those of the grid.
        estimator: its name.
        horizon: PT steps that it goes back; None if it takes whole runs.
        cost: in plain PT runs.
        spearman: Spearman's correlation, from -1 to 1.
        signs: pairs of settings in the right order, %.
        finite: PT seeds whose estimate is finite; the others count as no knowledge (0 and 50 %).
    """

    problem: str
    evaluation: str
    estimator: str
    horizon: int | None
    cost: float
    spearman: Estimate
    signs: Estimate
    finite: int


def read(path: Path) -> pd.DataFrame:
    """Return the table of slopes in a CSV file; its horizons are whole numbers, and missing for whole runs.

    Raises DataError if the file is not there, lacks a column, is cut or has text where numbers are.
    """
    try:
        with reading(path, "make the experiment `estimators` with snakemake") as file:
            found = pd.read_csv(file)
        if set(SLOPES) <= set(found) and found[SLOPES[-1]].notna().all():
            return found[SLOPES].astype({"horizon": "Int64", "slope": float, "cost": float})
        why = "a column or the end of a row is missing"
    except (ValueError, TypeError) as error:
        why = str(error).strip()
    raise DataError(f"{path} is cut or lacks one of {', '.join(SLOPES)} ({why}); make it again with snakemake.")


def agreements(grid: Grid, slopes: pd.DataFrame, logarithmic: Sequence[str] = ()) -> Iterator[Agreement]:
    """Yield the agreement of each estimator with a grid, in the order of the table; last, that of single runs.

    Args:
        grid: the measured results.
        slopes: a table of slopes; rows of other problems are left out.
        logarithmic: hyperparameters whose coordinate is the logarithm.

    Raises:
        DataError: an estimate has other hyperparameters than the grid.
    """
    place = coordinates(grid.hyperparameters, logarithmic)
    own = slopes[slopes["problem"] == grid.cell["problem"]]
    for (name, _), part in own.groupby(["estimator", "horizon"], sort=False, dropna=False):
        by_seed = part.pivot(index="pretrain_seed", columns="hyperparameter", values="slope")
        if set(by_seed) != set(place):
            estimated, known = (", ".join(map(str, each)) for each in (by_seed, place))
            raise DataError(
                f"the slopes of {name} on {grid.cell['problem']} are along {estimated}, and the table of runs has "
                f"{known}; make both with the same hyperparameters."
            )
        predicted = place.to_numpy() @ by_seed[list(place)].to_numpy(dtype=float).T
        steps = None if part["horizon"].isna().all() else int(part["horizon"].iloc[0])
        cost = float(part.groupby("pretrain_seed")["cost"].first().mean())
        yield _agreement(grid, str(name), steps, cost, predicted, by_seed.index)
    yield _agreement(grid, SINGLE_RUNS, None, float(len(grid.test)), grid.test, grid.seeds)


def linear_fits(grid: Grid, counts: Sequence[int], logarithmic: Sequence[str] = ()) -> Iterator[Agreement]:
    """Yield the agreement of linear fits to the validation results of the first `counts` settings of a PT seed.

    The fit has the smallest slopes of all that have the least squared error. It is judged on the other settings.
    """
    place = coordinates(grid.hyperparameters, logarithmic).to_numpy()
    for count in counts:
        if count > len(place) - 2:
            continue
        known, rest = place[:count], place[count:]
        results = grid.validation[:count]
        weights = np.linalg.pinv(known - known.mean(0)) @ (results - results.mean(0))
        left = replace(grid, test=grid.test[count:])
        yield _agreement(left, f"linear fit to {count} runs", None, count, rest @ weights, grid.seeds)


def coordinates(hyperparameters: Mapping[str, Values], logarithmic: Sequence[str]) -> pd.DataFrame:
    """Return the hyperparameters [settings, hyperparameters], those of `logarithmic` as their logarithms."""
    return pd.DataFrame({name: np.log(at) if name in logarithmic else at for name, at in hyperparameters.items()})


def _agreement(grid: Grid, name: str, horizon: int | None, cost: float, predicted: Values, seeds: Any) -> Agreement:
    """Return the agreement of `predicted` [settings, seeds], one estimate for each of the PT seeds `seeds`."""
    found = [with_others(column, grid.test, grid.seeds, seed) for column, seed in zip(predicted.T, seeds, strict=True)]
    correlations, signs, finite = zip(*found, strict=True)
    cell = grid.cell["problem"], grid.cell["evaluation"]
    return Agreement(*cell, name, horizon, cost, estimate_mean(correlations), estimate_mean(signs), sum(finite))


def with_others(predicted: Values, test: Values, seeds: Sequence[Any], seed: Any) -> tuple[float, float, bool]:
    """Return how a prediction of one PT seed agrees with the mean test results of the other PT seeds.

    Args:
        predicted: a number for each setting [settings].
        test: test results [settings, PT seeds].
        seeds: their PT seeds.
        seed: the PT seed of the prediction.

    Returns:
        Spearman's correlation, the pairs of settings in the right order (%), and whether the prediction is finite; one
        that is not counts as no knowledge (0 and 50 %). The first two are NaN where a test result is not finite.
    """
    if not np.isfinite(predicted).all():
        return 0.0, CHANCE, False
    measured = test[:, [each != seed for each in seeds]].mean(1)
    return spearman(predicted, measured), right_signs(predicted, measured), True


def spearman(predicted: Values, measured: Values) -> float:
    """Return Spearman's rank correlation; 0 where all predictions are equal, NaN where a result is not finite.

    >>> spearman(np.array([1.0, 2.0, 9.0]), np.array([0.1, 0.2, 0.3]))
    1.0
    """
    if not np.isfinite(measured).all():
        return math.nan
    ranks = [rankdata(each) - (len(each) + 1) / 2 for each in (predicted, measured)]
    size = math.sqrt(float(ranks[0] @ ranks[0]) * float(ranks[1] @ ranks[1]))
    return float(ranks[0] @ ranks[1]) / size if size > 0 else 0.0


def right_signs(predicted: Values, measured: Values) -> float:
    """Return the share (%) of pairs with the same order in both; a pair that is equal in one of them counts half.

    It is NaN where a result is not finite.

    >>> right_signs(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    66.66666666666666
    """
    if not np.isfinite(measured).all():
        return math.nan
    first, second = np.triu_indices(len(predicted), 1)
    products = np.sign(predicted[first] - predicted[second]) * np.sign(measured[first] - measured[second])
    return float(100 * np.mean((1 + products) / 2))
