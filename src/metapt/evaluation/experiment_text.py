"""One experiment in lines for a terminal: each arm, its paired differences to controls, the claims and the files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.differences import COLUMNS
from metapt.evaluation.statistics import summarise
from metapt.evaluation.summary import about, older, read_claims, wrapped
from metapt.evaluation.tables import mean_and_error, number, read_texts


def find(experiment: str, results: Path | None) -> Path:
    """Return the folder of an experiment in a results folder, or else the last one made in any folder of `results/`.

    Raises DataError if there is none.
    """
    root = Path("results") if results is None else results
    known: dict[str, list[Path]] = {}
    for path in sorted(root.glob(f"{'*/' if results is None else ''}*/*/differences.csv")):
        known.setdefault("_".join(path.parts[-3:-1]), []).append(path)
    if experiment not in known:
        there = f"there are {', '.join(sorted(known))}" if known else "there is none yet"
        raise DataError(
            f"{root.resolve()} has no results of {experiment}; {there}. Name an experiment, such as mnist_bptt; if it "
            f"has not been run, run its target first."
        )
    return max(known[experiment], key=lambda path: path.stat().st_mtime).parent


def text(folder: Path, differences: pd.DataFrame | None = None) -> str:
    """Return the lines about the experiment whose results are in a folder, with those `differences` or its own ones.

    Raises DataError if a table is damaged.
    """
    table = metrics.read(folder / "metrics.csv")
    name, claims = "_".join(folder.parts[-2:]), read_claims(folder / "claims.csv")
    claimed = {claim["metric"] for claim in claims}
    shown = table[table["metric"].isin(claimed)]
    if differences is None:
        differences = read_texts(folder / "differences.csv", COLUMNS, "differences")
    else:
        differences = differences.astype(object).where(differences.notna(), "").astype(str)
    lines = [*_numbers(shown if len(shown) else table, differences)]
    lines += ["mean ± standard error (replicates); minus: paired difference [95 % interval]"]
    lines += ["", *about(name, claims), ""] if claims else [""]
    lines += wrapped(f"tables: {folder}/table.md (.csv, .tex, .html), differences.csv", "        ")
    lines += wrapped(f"figure: {folder}/figure.png (.svg)", "        ")
    lines += wrapped(f"runs: {folder}/run.json", "        ")
    return "\n".join([*lines, *older(folder.parents[1])])


def _numbers(table: pd.DataFrame, differences: pd.DataFrame) -> Iterator[str]:
    """Yield a block for each number: a line for each arm, and below it its differences."""
    summary = summarise(table)
    width = summary["arm"].str.len().max()
    cell = ["setting", "evaluation", "metric"]
    for key, part in summary.groupby(cell, sort=False):
        yield from wrapped(", ".join(str(name) for name in reversed(key) if name), "  ")
        for row in part.to_dict("records"):
            yield f"  {row['arm']:<{width}}  {mean_and_error(row['mean'], row['standard_error'])} ({row['n']})"
            same = (differences[["arm", *cell]] == [row["arm"], *key]).all(axis=1)
            for each in differences[same].to_dict("records"):
                between = f" [{float(each['low']):.3g}, {float(each['high']):.3g}]" if each["low"] else ""
                changed = f" ({each['changed']})" if each["changed"] else ""
                yield from wrapped(f"    minus {each['control']}: {number(each) or 'nan'}{between}{changed}", "      ")
        yield ""
