"""Draw the figures of headrooms, estimates and objectives from the tables of this folder.

    python docs/results/draw.py                       # all of them
    python docs/results/draw.py estimators/ppi-4x64   # one

`update.py` draws the figures of arms, and `gains.py` that of the summary.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from metapt.domains.ecg.experiments import labelled_ecgs
from metapt.domains.ecg.experiments.estimators import HYPERPARAMETERS
from metapt.domains.ecg.experiments.headroom import NAMES as VIEWS
from metapt.domains.mnist.experiments.estimators import MnistEstimators, near
from metapt.domains.mnist.experiments.headroom import NAMES as ROTATION
from metapt.domains.mnist.quantities import ACCURACY
from metapt.errors import DataError
from metapt.evaluation import agreement, agreement_report, figures, headroom_report, objectives
from metapt.evaluation.headroom_table import read
from metapt.twostage.quantities import AUROC_LABEL, EVALUATIONS

HERE = Path(__file__).parent
NAMES = {**EVALUATIONS, **ROTATION, **VIEWS}
FURTHER = "-further-seeds"  # tables that repeat a result and have no figure


def names() -> list[str]:
    """Return the tables that have a figure, such as `headroom/mnist`."""
    paths = [HERE / "objectives" / "ecg.csv", *HERE.glob("objectives/labelled_ecgs-*.csv")]
    paths += [*HERE.glob("headroom/*.csv"), *HERE.glob("estimators/*.csv")]
    return sorted(f"{path.parent.name}/{path.stem}" for path in paths if not path.stem.endswith(FURTHER))


def draw(table: str) -> Figure:
    """Return the figure of one of `names`.

    Raises DataError if a table of runs or of slopes that it needs is not there, is no such table or is cut.
    """
    folder, name = table.split("/")
    domain = name.partition("-")[0]
    if domain == "labelled_ecgs":
        return labelled_ecgs.draw(pd.read_csv(HERE / f"{table}.csv"), "simclr")
    runs = read([HERE / "headroom" / f"{name}.csv"])
    if folder == "headroom":
        return headroom_report.figure(runs, NAMES, ACCURACY if domain == "mnist" else AUROC_LABEL)
    if folder == "objectives":
        found = objectives.agreements(runs, pd.read_csv(HERE / f"{table}.csv"))
        return objectives.figure(list(found), EVALUATIONS)
    compared = near(runs, MnistEstimators.model_fields["reach"].default) if domain == "mnist" else runs
    logarithmic = HYPERPARAMETERS if domain == "ecg" else ()
    slopes = agreement.read(HERE / f"{table}.csv")
    return agreement_report.figure(agreement_report.measured(compared, slopes, logarithmic), EVALUATIONS)


def main() -> None:
    """Draw the figures that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="*", help=f"one of {', '.join(names())}; default: all")
    for table in parser.parse_args().table or names():
        if table not in names():
            parser.error(f"there is no figure of a table {table!r}; there are {', '.join(names())}")
        try:
            figure = draw(table)
        except DataError as error:
            parser.error(str(error))
        figures.save_png(figure, HERE / f"{table}.png")
        print(HERE / f"{table}.png")


if __name__ == "__main__":
    main()
