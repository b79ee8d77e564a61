"""Tables for people, in CSV (full precision), Markdown (GitHub), LaTeX (booktabs) and HTML, and the paper's numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from metapt.errors import DataError
from metapt.evaluation.metrics import CELL
from metapt.files import atomic_path, reading

NOTHING = "\N{EN DASH}"  # the text of a cell without a number

_ROUNDING = 1e-6  # a relative error below this comes from sums in float32, not from seeds
_NUMBER = re.compile(r"\(?-?(\d+(\.\d+)?|inf|nan)( ± \d+(\.\d+)?\)?)?(e-?\d+)?")

_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "{}$&#%_"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {"±": r"$\pm$", NOTHING: "--", "\n": " "}
)


class Tables(NamedTuple):
    """Tables for people by caption, and the numbers behind them."""

    blocks: dict[str, pd.DataFrame]
    numbers: pd.DataFrame


def mean_and_error(mean: float, standard_error: float = math.nan) -> str:
    """Return a number with the digits that its standard error allows.

    The error has one significant digit, or two if the first is 1, and the mean ends at the same place. Without an
    error, or with one of the size of rounding errors in float32, the mean has four significant digits. Numbers of at
    least a million and numbers below 0.0001 have a power of ten.

    >>> mean_and_error(7.2345, 1.4962), mean_and_error(78.64, 0.31), mean_and_error(87.6), mean_and_error(float("nan"))
    ('7.2 ± 1.5', '78.6 ± 0.3', '87.60', 'nan')
    >>> mean_and_error(1234567.0, 345678.0), mean_and_error(2.5e-7)
    ('(1.2 ± 0.3)e6', '2.500e-7')
    """
    known = math.isfinite(standard_error)
    size = max(abs(mean), abs(standard_error)) if known else abs(mean)
    if not math.isfinite(mean):
        return str(mean)
    if size != 0 and not 1e-4 <= size < 1e6:
        power = math.floor(math.log10(size))
        shift = 300 if power < -300 else 0  # 10.0**power would be 0 for the least numbers
        scale = 10.0 ** (power + shift)
        scaled = mean_and_error(mean * 10.0**shift / scale, standard_error * 10.0**shift / scale)
        return f"({scaled})e{power}" if known else f"{scaled}e{power}"
    if not known or standard_error <= _ROUNDING * abs(mean):
        text = _rounded(mean, 3 - (math.floor(math.log10(abs(mean))) if mean else 0))
        return f"{text} ± 0" if known else text
    mantissa, exponent = f"{standard_error:.1e}".split("e")
    decimals = (1 if float(mantissa) < 2 else 0) - int(exponent)
    return f"{_rounded(mean, decimals)} ± {_rounded(standard_error, decimals)}"


def published(mean: float, standard_error: float = math.nan) -> str:
    """Return a number of the paper with the fewest digits that give it exactly; `NOTHING` if it is NaN.

    Mean and error have as many digits after the point.

    >>> published(71.0, 0.2), published(7.2, 1.5), published(100.0), published(math.nan) == NOTHING
    ('71.0 ± 0.2', '7.2 ± 1.5', '100', True)
    """
    if math.isnan(mean):
        return NOTHING
    if math.isnan(standard_error):
        return f"{mean:g}"
    decimals = max(len(f"{x:g}".partition(".")[2]) for x in (mean, standard_error))
    return f"{mean:.{decimals}f} ± {standard_error:.{decimals}f}"


def number(row: Mapping[Any, Any]) -> str:
    """Return mean ± standard error of a row of claims or differences as texts; empty if it has none."""
    return mean_and_error(float(row["mean"]), float(row["standard_error"] or "nan")) if row["mean"] else ""


def read_texts(path: Path, columns: Sequence[str], what: str) -> pd.DataFrame:
    """Return a table of claims or of differences, which `what` says, as texts.

    Raises DataError if it is missing or damaged, lacks one of `columns`, or has a text in the place of a number.
    """
    try:
        with reading(path, "run snakemake again") as file:
            found = pd.read_csv(file, dtype=str, keep_default_na=False)
        if missing := [column for column in columns if column not in found]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        for column in ("mean", "standard_error", "low", "high"):
            found[column].map(lambda text: float(text or "nan"))
    except ValueError as error:
        raise DataError(
            f"{path} is not a table of {what} ({str(error).strip()}); remove it and run snakemake again."
        ) from None
    return found


def paper_numbers() -> pd.DataFrame:
    """Return the numbers of the paper (Raghu et al., "Meta-Learning to Improve Pre-Training", NeurIPS 2021).

    Columns: experiment, arm, setting, evaluation, metric, paper_mean, paper_standard_error, paper_note, source (the
    place in the paper). Means and standard errors are in the unit of the metric; the error is NaN if the paper gives
    none.

    >>> numbers = paper_numbers().set_index("experiment")
    >>> numbers.loc[["mnist_rotation_mean"], ["arm", "paper_mean", "paper_standard_error"]].values.tolist()
    [['meta', 7.2, 1.5]]
    """
    file = resources.files("metapt.evaluation") / "paper_numbers.csv"
    with file.open(encoding="utf-8") as stream:
        numbers = pd.read_csv(stream, dtype=str, keep_default_na=False)
    for column in ("paper_mean", "paper_standard_error"):
        numbers[column] = [float(text or "nan") for text in numbers[column]]
    return numbers[[*CELL, "paper_mean", "paper_standard_error", "paper_note", "source"]]


def beside_paper(summary: pd.DataFrame, papers: pd.DataFrame) -> pd.DataFrame:
    """Return `summary` (of `statistics.summarise`) with paper_mean, paper_standard_error and paper_note of `papers`.

    The join is on experiment, arm, setting, evaluation and metric; all rows of `summary` stay, in their order. If the
    paper has no such number, paper_mean and paper_standard_error are NaN and paper_note is "".
    """
    joined = summary.merge(papers.drop(columns="source"), how="left", on=CELL, validate="many_to_one")
    return joined.assign(paper_note=joined["paper_note"].fillna(""))


def ours_and_papers(joined: pd.DataFrame) -> pd.DataFrame:
    """Return the display table of a table from `beside_paper`.

    Columns: arm, setting, evaluation, metric, n, ours, paper, note. Our and the paper's numbers are "mean ± standard
    error". Setting, evaluation, metric and note are left out if they are empty in all rows.
    """
    pairs = zip(joined["mean"], joined["standard_error"], strict=True)
    papers = zip(joined["paper_mean"], joined["paper_standard_error"], strict=True)
    table = pd.DataFrame(
        {
            **{c: joined[c] for c in ("arm", "setting", "evaluation", "metric", "n")},
            "ours": [mean_and_error(m, s) for m, s in pairs],
            "paper": [published(m, s) for m, s in papers],
            "note": joined["paper_note"],
        }
    )
    empty = [c for c in ("setting", "evaluation", "metric", "note") if (table[c] == "").all()]
    return table.drop(columns=empty)


def write_blocks(blocks: Mapping[str, pd.DataFrame], stem: Path, numbers: pd.DataFrame) -> None:
    """Write tables, by caption, below one another as {stem}.md, .tex and .html, and `numbers` as {stem}.csv.

    Floats have all digits in .csv and four significant ones in the others; a missing value is empty in .csv and
    `NOTHING` in the others. The index is left out, and columns of numbers are aligned to the right.
    """
    cells = {caption: table.map(_cell) for caption, table in blocks.items()}
    right = {caption: {str(c): _is_numeric(part[c]) for c in part.columns} for caption, part in cells.items()}
    with atomic_path(stem.with_name(f"{stem.name}.csv")) as path:
        numbers.to_csv(path, index=False, lineterminator="\n", encoding="utf-8")
    for ending, text in ((".md", markdown), (".tex", latex), (".html", html)):
        with atomic_path(stem.with_name(stem.name + ending)) as path:
            parts = [text(part, caption, right[caption]) for caption, part in cells.items()]
            path.write_text("\n".join(parts), encoding="utf-8", newline="\n")


def markdown(cells: pd.DataFrame, caption: str, right: Mapping[str, bool]) -> str:
    """Return texts as a GitHub table below its caption; `right` tells which columns are aligned to the right."""
    rows = [[_escape_markdown(text) for text in line] for line in _lines(cells)]
    widths = [max(3, *(len(line[i]) for line in rows)) for i in range(len(cells.columns))]
    aligned = [right[str(c)] for c in cells.columns]
    padded = [[t.rjust(w) if r else t.ljust(w) for t, w, r in zip(line, widths, aligned, strict=True)] for line in rows]
    rule = ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, aligned, strict=True)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in [padded[0], rule, *padded[1:]])
    return f"{_escape_markdown(caption)}\n\n{table}\n"


def latex(cells: pd.DataFrame, caption: str, right: Mapping[str, bool]) -> str:
    r"""Return texts as a LaTeX table; the document needs \usepackage{booktabs}."""
    header, *body = [" & ".join(escape_latex(text) for text in line) + r" \\" for line in _lines(cells)]
    columns = "".join("r" if right[str(c)] else "l" for c in cells.columns)
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{escape_latex(caption)}}}",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        f"    {header}",
        r"    \midrule",
        *(f"    {line}" for line in body),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def html(cells: pd.DataFrame, caption: str, right: Mapping[str, bool]) -> str:
    """Return texts as an HTML table in ASCII, so that it reads the same in a page of any encoding."""
    header, *body = _lines(cells)
    classes = [' class="number"' if right[name] else "" for name in header]

    def row(line: list[str], tag: str) -> str:
        parts = zip(line, classes, strict=True)
        return f"<tr>{''.join(f'<{tag}{place}>{escape(text)}</{tag}>' for text, place in parts)}</tr>"

    rows = "\n".join(row(line, "td") for line in body)
    table = f"<table>\n<thead>{row(header, 'th')}</thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
    text = f"<figure>\n<figcaption>{escape(caption)}</figcaption>\n{table}\n</figure>\n"
    return text.encode("ascii", "xmlcharrefreplace").decode()


def escape_latex(text: str) -> str:
    r"""Return LaTeX that prints `text` literally.

    >>> print(escape_latex("rate_1: 5% ± 1 & more"))
    rate\_1: 5\% $\pm$ 1 \& more
    """
    return text.translate(_LATEX)


def _escape_markdown(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def _lines(cells: pd.DataFrame) -> list[list[str]]:
    return [[str(c) for c in cells.columns], *cells.to_numpy().tolist()]


def _cell(value: Any) -> str:
    if value is None or value is pd.NA or value == "":
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, Real):
        return str(value)
    if isinstance(value, Integral):
        return str(int(value))
    return NOTHING if math.isnan(value) else mean_and_error(float(value))


def _is_numeric(texts: pd.Series[str]) -> bool:
    """Return whether each text is a number, with or without its error, or `NOTHING`."""
    return all(text == NOTHING or _NUMBER.fullmatch(text) for text in texts)


def _rounded(x: float, decimals: int) -> str:
    return f"{round(x, decimals) + 0.0:.{max(0, decimals)}f}"  # + 0.0 turns -0.0 into 0.0
