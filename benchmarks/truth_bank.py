"""Score estimates of a hypergradient against the truth bank: what whole PT runs gave with other hyperparameters.

    python benchmarks/truth_bank.py slopes.csv     # yours, beside rivals that need no derivative
    python benchmarks/truth_bank.py                # those that this project has measured

The truth bank is docs/results/headroom/: the test results of 24 random settings of the hyperparameters. An estimate
predicts them by a linear function, and slopes.csv has a row for each of its coefficients (see `COLUMNS`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial.distance import cosine
from scipy.stats import spearmanr

from metapt.errors import DataError
from metapt.evaluation import headroom_report
from metapt.evaluation.headroom import REFERENCE, Grid
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import NOTHING, markdown, mean_and_error
from metapt.twostage.quantities import EVALUATIONS

RESULTS = Path(__file__).parents[1] / "docs" / "results"
BANK = ("mnist", "ecg", "ppi-3x16", "ppi-4x64")
COLUMNS = ["problem", "estimator", "horizon", "pretrain_seed", "hyperparameter", "slope", "cost"]
"""`slope`: estimated rise of the test result (minus the derivative of a loss) per unit of a hyperparameter, or of its
logarithm for `LOGARITHMIC` ones; `horizon`: PT steps that the estimate goes back, empty if it takes whole runs; `cost`:
of the whole estimate, in plain PT runs."""
LOGARITHMIC = ("strength", "crop", "noise", "temperature")
REACH = 45.0  # degrees from the reference of MNIST that settings may have, since no line can follow a peak
SCORES = {"signs": "right signs (%)", "spearman": "Spearman", "cosine": "cosine", "choice": "choice (points)"}
CELL, RUN = ["problem", "evaluation", "estimator", "horizon"], ["estimator", "horizon", "pretrain_seed"]


def read(path: Path) -> pd.DataFrame:
    """Return a table of slopes. Raises DataError if there is none, it lacks one of `COLUMNS`, or a row is cut."""
    try:
        found = pd.read_csv(path)[COLUMNS].astype({"slope": float, "cost": float})
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} is no table of slopes with {', '.join(COLUMNS)}: {error}.") from None
    if found.empty or found["cost"].isna().any():
        raise DataError(f"{path} is empty, or a row lacks its cost, the last of {', '.join(COLUMNS)}.")
    return found


def truth() -> list[Grid]:
    """Return the results of each problem and evaluation, those within `REACH`, in the coordinates of slopes."""
    found: list[Grid] = []
    for table in BANK:
        runs = headroom_report.read([RESULTS / "headroom" / f"{table}.csv"])
        if "mean" in runs:
            runs = runs[(runs["mean"] - runs.loc[runs["setting"] == REFERENCE, "mean"].iloc[0]).abs() <= REACH]
        for grid in headroom_report.grids(runs):
            at = {name: np.log(own) if name in LOGARITHMIC else own for name, own in grid.hyperparameters.items()}
            found.append(replace(grid, hyperparameters=at))
    return found


def scores(slopes: pd.DataFrame, bank: Sequence[Grid]) -> pd.DataFrame:
    """Return a row of `SCORES` for each problem, evaluation, estimator, horizon and PT seed.

    Cosine: with the mean slopes between whole PT runs of other PT seeds, NaN if there are none. Raises DataError for a
    problem that the bank does not have, and for slopes along other hyperparameters than its own.
    """
    known = {grid.cell["problem"] for grid in bank}
    if unknown := set(slopes["problem"]) - known:
        raise DataError(f"the truth bank has no problem {min(unknown)!r}; it has {', '.join(sorted(known))}.")
    measured, rows = pd.concat([read(RESULTS / "estimators" / f"{table}.csv") for table in BANK]), []
    for grid in bank:
        at, own = pd.DataFrame(grid.hyperparameters), slopes[slopes["problem"] == grid.cell["problem"]]
        between = {"secant", "perturbed runs", f"secant, {EVALUATIONS[grid.cell['evaluation']]}"}
        runs = measured[(measured["problem"] == grid.cell["problem"]) & measured["estimator"].isin(between)]
        for (name, steps, seed), part in own.groupby(RUN, sort=False, dropna=False):
            slope = part.set_index("hyperparameter")["slope"]
            if sorted(slope.index) != sorted(at):
                along = f"{', '.join(slope.index)}; {grid.cell['problem']} needs one along each of {', '.join(at)}"
                raise DataError(f"{name} has slopes along {along}.")
            others = runs[runs["pretrain_seed"] != seed].groupby("hyperparameter")["slope"].mean()
            words = {"estimator": name, "horizon": steps, "cost": part["cost"].iloc[0]}
            words["cosine"] = 1 - cosine(slope, others.reindex(slope.index)) if slope.any() else np.nan
            rows.append(score(grid, at.to_numpy() @ slope[list(at)].to_numpy(), seed, **words))
    return pd.DataFrame(rows)


def rivals(bank: Iterable[Grid]) -> pd.DataFrame:
    """Return the rows of one run of each setting, a ceiling, and of lines fitted to some, scored on the others."""
    rows = []
    for grid in bank:
        at, words = pd.DataFrame(grid.hyperparameters).to_numpy(), {"horizon": np.nan, "cosine": np.nan}
        single = words | {"estimator": "one run of each setting", "cost": len(at)}
        rows += [score(grid, own, seed, **single) for seed, own in zip(grid.seeds, grid.test.T, strict=True)]
        for count in (each for each in (6, 12) if each <= len(at) - 2):
            known, results = at[:count], grid.validation[:count]
            lines = at[count:] @ np.linalg.pinv(known - known.mean(0)) @ (results - results.mean(0))
            left, fitted = replace(grid, test=grid.test[count:]), {"estimator": f"linear fit to {count} runs"}
            fitted |= words | {"cost": count}
            rows += [score(left, own, seed, **fitted) for seed, own in zip(grid.seeds, lines.T, strict=True)]
    return pd.DataFrame(rows)


def score(grid: Grid, predicted: NDArray[np.float64], seed: Any, **words: Any) -> dict[str, Any]:
    """Return how a prediction [settings] of a PT seed agrees with the mean test results of the other PT seeds.

    Signs: share of pairs of settings in the right order, those that are equal counted half. Choice: what the settings
    with the highest prediction gain over the mean setting. A prediction that is not finite counts as no knowledge.
    """
    test = grid.test[:, [each != seed for each in grid.seeds]].mean(1)
    found = {"signs": 50.0, "spearman": 0.0, "choice": 0.0}
    if np.isfinite(predicted).all() and np.ptp(predicted) > 0:
        first, second = np.triu_indices(len(test), 1)
        right = np.sign(predicted[first] - predicted[second]) * np.sign(test[first] - test[second])
        chosen = test[predicted == predicted.max()].mean() - test.mean()
        found = {"signs": 50 + 50 * right.mean(), "spearman": spearmanr(predicted, test).statistic, "choice": chosen}
    return grid.cell | words | found | {"pretrain_seed": seed}


def summary(rows: pd.DataFrame) -> str:
    """Return a table of the mean ± standard error of each score over PT seeds."""
    shown = []
    for cell, part in rows.groupby(CELL, sort=False, dropna=False):
        found = [estimate_mean(part[score].tolist()) for score in SCORES]
        texts = (NOTHING if np.isnan(each.mean) else mean_and_error(each.mean, each.standard_error) for each in found)
        steps = "whole run" if pd.isna(cell[-1]) else f"{cell[-1]:.0f}"
        shown.append([*cell[:-1], steps, f"{part['cost'].mean():.3g}", *texts, str(len(part))])
    table = pd.DataFrame(shown, columns=[*CELL, "cost", *SCORES.values(), "PT seeds"]).replace(EVALUATIONS)
    return markdown(table, "Agreement with whole PT runs, mean ± SE over PT seeds", dict.fromkeys(table, False))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slopes", nargs="*", type=Path, help="tables of slopes; default: those of docs/results")
    paths = parser.parse_args().slopes or [RESULTS / "estimators" / f"{table}.csv" for table in BANK]
    try:
        given, bank = pd.concat([read(path) for path in paths], ignore_index=True), truth()
        own = [grid for grid in bank if grid.cell["problem"] in set(given["problem"])]
        rows = pd.concat([scores(given, bank), rivals(own)]).sort_values(CELL[:2], kind="stable")
    except DataError as error:
        parser.error(str(error))
    print(summary(rows))
