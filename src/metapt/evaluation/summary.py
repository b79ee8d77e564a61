"""Lines for a terminal: a workflow's claims with the number behind each, and one experiment's arms and differences."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from metapt.engine import records
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, COLUMNS, STAND_IN, counts
from metapt.evaluation.results import DIFFERENCES
from metapt.evaluation.statistics import summarise
from metapt.evaluation.tables import mean_and_error, number, read_texts
from metapt.files import sha256

WIDTH = 80
MARKS = {
    "reproduced": "+",
    "not reproduced": "-",
    "inconclusive": "?",
    "found": "*",
    "missed": "x",
    "open": "~",
    "too few seeds": "<",
    "control failed": "!",
    "not measured": ".",
}
"""Mark of a verdict."""
COLOURS = {"+": 32, "-": 31, "?": 33, "*": 36, "x": 34, "~": 2, "<": 2, "!": 35, ".": 2}
"""Colour of a mark, as the number of an ANSI sequence; those of known answers are not those of the paper's claims."""
MOST = 12
"""Claims of a domain that are shown; the others are only counted."""

Claim = dict[str, str]


def newest(folder: Path) -> Path:
    """Return the results folder inside `folder` that a workflow finished last. Raises DataError if there is none."""
    found = sorted(folder.glob("*/claims.csv"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise DataError(f"{folder.resolve()} has no results with a claims.csv, which the workflow makes at its end.")
    return found[-1].parent


def summary(results: Path, colours: bool) -> str:
    """Return lines of at most `WIDTH` columns about the claims in a results folder.

    Raises DataError if it has no table of claims.
    """
    claims = read_claims(results / "claims.csv")
    lines = wrapped(f"{len(claims)} claims in {results}: {_counts(claims)}", "")
    for domain in dict.fromkeys(map(_domain, claims)):
        lines += ["", *about(domain, [claim for claim in claims if _domain(claim) == domain])]
    if colours:
        lines = [f"\033[{COLOURS[line[2]]}m{line}\033[0m" if line[2:3] in COLOURS else line for line in lines]
    lines += ["", *lacking(results), "mean ± standard error (replicates, mostly PT seeds)"]
    lines += wrapped(f"all on one page: {results}/index.html", "        ")
    lines += wrapped(f"tables: {results}/headline.md, {results}/*/*/table.md", "        ")
    report = results / "report.html"
    lines += wrapped(f"report: {report if report.is_file() else f'snakemake --report {report}'}", "        ")
    return "\n".join(lines)


def lacking(results: Path) -> list[str]:
    """Return lines that name the experiments that a results folder's claims and page do not show as they are now.

    A run of one experiment alone, as of an ablation, makes neither of the two anew.
    """
    record, both = results / "run.json", "claims.csv and index.html"
    if not record.is_file():
        return []
    try:
        found = records.read(record)
    except DataError:
        return wrapped(f"lacks:  whether {both} are up to date can't be told from {record}", "        ")
    sums = found["sha256"]["inputs"]
    known = {
        results.joinpath(*Path(path).parts[-3:]): sums.get(name)
        for name, path in found["inputs"].items()
        if name.count("/") == 1 and not name.endswith("/record")  # a file of an experiment's, which tells of no times
    }
    made = {path for path in [*known, *results.glob("*/*/claims.csv")] if path.is_file()}
    names = {"_".join(path.parts[-3:-1]) for path in made if known.get(path) != sha256(path)}
    about = f"lack {', '.join(sorted(names))} as it is now; snakemake without a target adds what its config has"
    return wrapped(f"lacks:  {both} {about}" if names else "", "        ")


def read_claims(path: Path) -> list[Claim]:
    """Return the rows of a table of claims. Raises DataError if there is none, or it is not such a table."""
    claims: list[Any] = read_texts(path, COLUMNS, "claims").to_dict("records")
    if unknown := {claim["verdict"] for claim in claims} - MARKS.keys():
        raise DataError(f"{path} has the unknown verdict {unknown.pop()!r}; remove it and run snakemake again.")
    return claims


def about(name: str, claims: list[Claim]) -> Iterator[str]:
    """Yield the lines about the claims of a domain or an experiment, the paper's claims first."""
    standin = all(claim["paper"] == STAND_IN for claim in claims)
    yield from wrapped(f"{name}{' (stand-in data)' if standin else ''}: {_counts(claims)}", "")
    shown = sorted(claims, key=lambda claim: claim["paper"] == BEYOND_THE_PAPER)[:MOST]
    numbers = [f"{number(claim)} ({claim['n']})" if claim["mean"] else claim["verdict"] for claim in shown]
    place = max(map(len, numbers)) + 1
    for claim, text in zip(shown, numbers, strict=True):
        *above, last = wrapped(f"  {MARKS[claim['verdict']]} {claim['claim']}", "    ", WIDTH - place)
        yield from above
        yield f"{last:<{WIDTH - place}}{text:>{place}}"
    if len(claims) > len(shown):
        yield f"    and {len(claims) - len(shown)} more"


def _domain(claim: Claim) -> str:
    return claim["experiment"].partition("_")[0]


def _counts(claims: list[Claim]) -> str:
    found = counts(claim["verdict"] for claim in claims)
    return ", ".join(f"{count} {word} ({MARKS[word]})" for word, count in found.items()) or "none"


def wrapped(text: str, indent: str, width: int = WIDTH) -> list[str]:
    """Return a text in lines of at most `width` columns, all but the first with an indent."""
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


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


def experiment_text(folder: Path, differences: pd.DataFrame | None = None) -> str:
    """Return the lines about the experiment whose results are in a folder, with those `differences` or its own ones.

    Raises DataError if a table is damaged.
    """
    table = metrics.read(folder / "metrics.csv")
    name, claims = "_".join(folder.parts[-2:]), read_claims(folder / "claims.csv")
    claimed = {claim["metric"] for claim in claims}
    shown = table[table["metric"].isin(claimed)]
    if differences is None:
        differences = read_texts(folder / "differences.csv", DIFFERENCES, "differences")
    else:
        differences = differences.astype(object).where(differences.notna(), "").astype(str)
    lines = [*_arms(shown if len(shown) else table, differences)]
    legend = (
        "mean ± standard error over all runs (their number); minus: difference, paired by PT seed or other replicate"
    )
    lines += wrapped(f"{legend} [95 % interval]", "")
    lines += ["", *about(name, claims), ""] if claims else [""]
    lines += wrapped(f"tables: {folder}/table.md (.csv, .tex, .html), differences.csv", "        ")
    lines += wrapped(f"figure: {folder}/figure.png (.svg)", "        ")
    lines += wrapped(f"runs: {folder}/run.json", "        ")
    return "\n".join([*lines, *lacking(folder.parents[1])])


def _arms(table: pd.DataFrame, differences: pd.DataFrame) -> Iterator[str]:
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
