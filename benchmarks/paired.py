"""Compare the FT results of two folders of results, paired by PT seed.

    python benchmarks/paired.py results/float32 results/bfloat16 ppi/finetune/graph_supervised/full_access/metrics.csv

Ends within seconds. Prints mean, mean difference and its standard error over PT seeds; FT seeds are averaged.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from metapt.twostage.replicates import pretrain_seed


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("first", type=Path)
    made.add_argument("second", type=Path)
    made.add_argument("metrics", nargs="+", help="path of a metrics.csv in both folders")
    return made


def main() -> None:
    arguments = parser().parse_args()
    print("| run | evaluation | first | second | second - first | PT seeds |\n| --- | --- | --- | --- | --- | --- |")
    for path in arguments.metrics:
        values = pd.concat({part: by_seed(getattr(arguments, part) / path) for part in ("first", "second")}, axis=1)
        for evaluation, each in values.groupby("evaluation"):
            difference = each["second"] - each["first"]
            n = len(difference)
            print(
                f"| {Path(path).parent} | {evaluation} | {each['first'].mean():.2f} | {each['second'].mean():.2f} "
                f"| {difference.mean():+.2f} ± {difference.std(ddof=1) / n**0.5:.2f} | {n} |",
                flush=True,
            )


def by_seed(path: Path) -> pd.Series:
    """Return the mean test AUROC (%) by evaluation and PT seed."""
    table = pd.read_csv(path)
    table = table[table["metric"].str.contains("test AUROC")]
    return table.groupby(["evaluation", table["replicate"].map(pretrain_seed)])["value"].mean()


if __name__ == "__main__":
    main()
