"""Compare the FT results of two folders of results, paired by PT seed.

    python benchmarks/paired.py results/float32 results/bfloat16 ppi/finetune/graph_supervised/full_access

Ends within seconds. Prints mean, mean difference and its standard error over PT seeds; FT seeds are averaged.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from metapt.twostage.quantities import pretrain_seed


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("first", type=Path)
    made.add_argument("second", type=Path)
    made.add_argument("runs", nargs="+", help="folder of the FT runs of an arm in both folders")
    return made


def main() -> None:
    arguments = parser().parse_args()
    print("| run | evaluation | first | second | second - first | PT seeds |\n| --- | --- | --- | --- | --- | --- |")
    for run in arguments.runs:
        values = pd.concat({part: by_seed(getattr(arguments, part) / run) for part in ("first", "second")}, axis=1)
        for evaluation, each in values.groupby("evaluation"):
            difference = each["second"] - each["first"]
            n = len(difference)
            print(
                f"| {run} | {evaluation} | {each['first'].mean():.2f} | {each['second'].mean():.2f} "
                f"| {difference.mean():+.2f} ± {difference.std(ddof=1) / n**0.5:.2f} | {n} |",
                flush=True,
            )


def by_seed(folder: Path) -> pd.Series:
    """Return the mean test AUROC (%) by evaluation and PT seed."""
    table = pd.concat(map(pd.read_csv, sorted(folder.glob("seed*/metrics.csv"))))
    table = table[table["metric"].str.contains("test AUROC")]
    return table.groupby(["evaluation", table["replicate"].map(pretrain_seed)])["value"].mean()


if __name__ == "__main__":
    main()
