"""Add the runs of a results folder to a table of this folder; `update.py` does so for those with FT runs of arms.

    python docs/results/tables.py headroom/ppi-4x64 results/headroom
    python docs/results/tables.py estimators/ppi-3x16 results/estimators
    python docs/results/tables.py objectives/labelled_ecgs-mild results/real-small
    python docs/results/tables.py mnist/bptt results/paper
    python docs/results/tables.py mnist/example_weighting results/paper

A run that is already in the table keeps its place and gets the new numbers. A table that does not exist is begun.
`draw.py` draws the figures of headrooms, estimates and objectives anew.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from metapt.domains.ecg.experiments import labelled_ecgs
from metapt.domains.ecg.experiments.objectives import EPOCHS
from metapt.domains.mnist import quantities as mnist
from metapt.errors import DataError
from metapt.evaluation import agreement, headroom, headroom_table, metrics
from metapt.evaluation.agreement import SLOPES

HERE = Path(__file__).parent
DIGITS = 4  # significant digits of hyperparameters, and digits after the point of results
MEASURED_DIGITS = 6  # significant digits of slopes, their cost and learned weights
BPTT = {
    "accuracy": mnist.ACCURACY,
    "mean": mnist.MEAN,
    "outer_steps": mnist.OUTER_STEPS,
    "skipped": mnist.SKIPPED,
    "seconds": mnist.WALL_TIME,
    "peak_mb": mnist.PEAK_MEMORY,
}
"""The metric of each column of `mnist/bptt.csv`."""
PLACES = {"peak_mb": 1}  # of BPTT's columns; the others have three digits after the point
UPDATES = (150, 3000)  # meta-updates after which `mnist/example_weighting.csv` has the mean weights


def settings(results: Path, table: str) -> pd.DataFrame:
    """Return the runs of a headroom; `table` begins with its domain, as in `ppi-4x64`."""
    runs = headroom_table.read([_of_experiment(results, table, "headroom")])
    runs = _significant(runs, headroom.hyperparameters(runs.to_dict("records")), DIGITS)
    return runs.round({"validation": DIGITS, "test": DIGITS})


def slopes(results: Path, table: str) -> pd.DataFrame:
    """Return the slopes of an experiment `estimators`; `table` begins with its domain, as in `ppi-3x16`."""
    found = agreement.read(_of_experiment(results, table, "estimators"))
    return _significant(found, ["slope", "cost"], MEASURED_DIGITS)


def objectives(results: Path, table: str) -> pd.DataFrame:
    """Return what objectives on labelled ECGs see, by PT run: after `EPOCHS`, and after the best epoch.

    `table` ends with what the arm changes that is compared with `simclr`, as in `labelled_ecgs-mild`. Test results are
    not among the rows, since those of the pages are of other PT runs. Raises DataError if there is no run.
    """
    arms = ("simclr", f"simclr-{table.partition('-')[2]}")
    folder = results / "ecg" / "labelled_ecgs"
    runs = [path.parent for arm in arms for path in sorted(folder.glob(f"{arm}/seed*/metrics.csv"))]
    if not runs:
        raise DataError(f"{folder} has no runs of {' or '.join(arms)}; make ecg_labelled_ecgs with snakemake.")
    tables = []
    for run in runs:
        best = metrics.read(run / "metrics.csv").assign(epoch=labelled_ecgs.BEST)
        words = best["evaluation"] + ", " + best["setting"]
        series = metrics.read_series(run / "series.csv").rename(columns={"step": "epoch"})
        curves = series[series["epoch"].isin(EPOCHS)].merge(
            best.assign(name=words)[["name", "evaluation", "setting"]], on="name"
        )
        both = pd.concat([best, curves], ignore_index=True)
        seed = int(run.name.removeprefix("seed"))
        tables.append(both.assign(arm=run.parent.name, pretrain_seed=seed, auroc=both["value"].round(DIGITS)))
    found = pd.concat(tables, ignore_index=True)
    found["labelled"] = found["setting"].map(lambda setting: int(setting.partition("=")[2]))
    return found.astype({"epoch": str})[labelled_ecgs.COLUMNS]


def backpropagation(results: Path) -> pd.DataFrame:
    """Return a row for each replicate of the arms of `mnist_bptt`."""
    runs = metrics.read(_of_arms(results, "bptt", "metrics.csv"))
    wide = runs.pivot(index=["arm", "replicate"], columns="metric", values="value")
    columns = {column: wide.get(metric, float("nan")) for column, metric in BPTT.items()}
    return pd.DataFrame(columns, wide.index).round({name: PLACES.get(name, 3) for name in BPTT}).reset_index()


def example_weights(results: Path) -> pd.DataFrame:
    """Return the mean weights of clean and noisy examples by arm, seed and number of meta-updates, `UPDATES`."""
    tables = []
    for path in _of_arms(results, "example_weighting", "series.csv"):
        names = {mnist.MEAN_WEIGHT.format(kind): kind for kind in mnist.KINDS}
        series = metrics.read_series(path).query("name in @names and step in @UPDATES").replace({"name": names})
        series = series.rename(columns={"replicate": "seed", "step": "update"})
        wide = series.pivot(index=["seed", "update"], columns="name", values="value").reset_index()
        tables.append(wide.assign(arm=path.parent.name)[["arm", "seed", "update", *mnist.KINDS]])
    both = pd.concat(tables, ignore_index=True)
    return _significant(both, [*mnist.KINDS], MEASURED_DIGITS)


def _significant(table: pd.DataFrame, columns: list[str], digits: int) -> pd.DataFrame:
    """Return the table with these columns rounded to so many significant digits."""
    return table.assign(**{name: table[name].map(lambda value: float(f"{value:.{digits}g}")) for name in columns})


def _of_experiment(results: Path, table: str, experiment: str) -> Path:
    """Return the place of an experiment's table of numbers; `table` begins with its domain."""
    return results / table.partition("-")[0] / experiment / "table.csv"


def _of_arms(results: Path, experiment: str, file: str) -> list[Path]:
    """Return a file of each arm of an experiment on MNIST. Raises DataError if there is none."""
    folder = results / "mnist" / experiment
    if paths := sorted(folder.glob(f"*/{file}")):
        return paths
    raise DataError(f"{folder} has no arm with {file}; make the arms of {experiment} with snakemake.")


def updated(path: Path, new: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return the table at `path` with the rows of `new`; one with the key of an old row takes its place."""
    if not path.exists():
        return new
    rows = pd.concat([pd.read_csv(path), new], ignore_index=True)
    rows = rows.astype(dict.fromkeys(new.select_dtypes("Int64"), "Int64"))  # else 10 is written as 10.0
    return rows[key].drop_duplicates().merge(rows.drop_duplicates(key, keep="last"), on=key)[list(new.columns)]


def main() -> None:
    """Add the runs that the command line names; see the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = "headroom/NAME, estimators/NAME, objectives/labelled_ecgs-NAME, mnist/bptt, mnist/example_weighting"
    parser.add_argument("table", help=tables)
    parser.add_argument("results", type=Path, help="results folder of the runs, such as results/headroom")
    arguments = parser.parse_args()
    folder, _, name = arguments.table.partition("/")
    try:
        if arguments.table == "mnist/bptt":
            new, key = backpropagation(arguments.results), ["arm", "replicate"]
        elif arguments.table == "mnist/example_weighting":
            new, key = example_weights(arguments.results), ["arm", "seed", "update"]
        elif folder == "headroom" and name:
            new, key = settings(arguments.results, name), headroom.RUN[:-2]
        elif folder == "estimators" and name:
            new, key = slopes(arguments.results, name), SLOPES[:-2]
        elif folder == "objectives" and name.startswith("labelled_ecgs-"):
            new, key = objectives(arguments.results, name), labelled_ecgs.COLUMNS[:-1]
        else:
            parser.error(f"there is no table {arguments.table!r}; see --help")
    except DataError as error:
        parser.error(str(error))
    path = HERE / f"{arguments.table}.csv"
    updated(path, new, key).to_csv(path, index=False)


if __name__ == "__main__":
    main()
