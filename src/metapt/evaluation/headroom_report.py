"""Tables of runs in files, and tables, figure and claims on what settings gain (see `metapt.evaluation.headroom`).

Tables of runs that were made on different days can be joined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.errors import DataError
from metapt.evaluation import figures
from metapt.evaluation.comparisons import NOT_BELOW, Comparison
from metapt.evaluation.headroom import CELL, REFERENCE, RUN, SHOWN, Grid, Headroom, grid, headroom, hyperparameters
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import Estimate
from metapt.evaluation.summary import wrapped
from metapt.evaluation.tables import NOTHING, Tables, mean_and_error
from metapt.files import reading

Names = Mapping[str, str]
"""Evaluation or hyperparameter -> its name in tables and figures; one that is not there keeps its own."""


def read(paths: Sequence[Path]) -> pd.DataFrame:
    """Return tables of runs as one, with equal runs of references once. Raises DataError as `check` or for no table."""
    tables = []
    for path in paths:
        try:
            with reading(path, "name the table.csv of a headroom"):
                tables.append(check(pd.read_csv(path, dtype=dict.fromkeys([*CELL, "setting"], str)), str(path)))
        except ValueError as error:
            why = str(error).strip()
            raise DataError(f"{path} is no table of runs ({why}); name the table.csv of a headroom.") from None
    rows = pd.concat(tables, ignore_index=True)
    again = rows.duplicated() & (rows["setting"] == REFERENCE)
    return check(rows[~again], " and ".join(map(str, paths)))


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
    for name in (*RUN[-2:], *hyperparameters(rows.to_dict("records"))):
        if not pd.api.types.is_numeric_dtype(rows[name]):
            raise DataError(f"{where} has text in the column {name!r}; results and hyperparameters are numbers.")
    again = rows[rows.duplicated(RUN[:-2])]
    if len(again):
        run = ", ".join(f"{name} {again.iloc[0][name]}" for name in RUN[:-2])
        if again.iloc[0]["setting"] == REFERENCE and not rows.duplicated().any():
            why = "another kind of machine, or other code, has made the second ones: make both draws in one place"
            raise DataError(f"{where} have other results of the reference run {run}; {why}.")
        raise DataError(f"{where} has a run twice: {run}; name each file once, and each seed in one file.")
    return rows


def grids(rows: pd.DataFrame) -> Iterator[Grid]:
    """Yield the results of each problem and evaluation in a table of runs, in order of first appearance.

    Raises DataError as `grid`.
    """
    for _, part in rows.groupby(CELL, sort=False):
        yield grid(part.to_dict("records"))


def tables(rows: pd.DataFrame, names: Names) -> Tables:
    """Return variance shares and gains, and the responses along hyperparameters; the numbers are the table of runs."""
    found = [headroom(grid) for grid in grids(rows)]
    gains = (
        "What settings of the hyperparameters gain. Shares of the variance of test results with 95 % interval (two-way "
        "random-effects analysis of variance; the rest holds the interaction). Gain over the reference in percentage "
        "points, mean ± standard error of a jackknife over PT seeds: of the setting that test (or validation) results "
        "choose on half of the seeds, on the other half. Most: that of the best setting on the seeds that choose it, "
        "on average too high. Runs: PT runs, half of them of the reference, that show a gain of this size with 80 % "
        "power"
    )
    responses = (
        "The response along single hyperparameters: quadratic fits to the means of the settings over PT seeds, of each "
        f"problem the {SHOWN} with the smallest p-value (F test, not corrected for their number)"
    )
    shown = pd.DataFrame([_cell(each, names) | _gains(each) for each in found])
    return Tables({gains: shown, responses: pd.DataFrame(list(_responses(found, names)))}, rows)


def text(rows: pd.DataFrame) -> str:
    """Return lines for a terminal about each problem and evaluation."""
    blocks = []
    for found in map(headroom, grids(rows)):
        settings, seeds = found.grid.test.shape
        lines = wrapped(f"{_title(found, {})}, settings: {settings}, PT seeds: {seeds}", "  ")
        for line in str(found).splitlines():
            lines += wrapped(f"  {line}", "    ")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def comparisons(rows: pd.DataFrame, reference: str, metric: str, names: Names) -> Iterator[Comparison]:
    """Yield the claim that a setting chosen on half of the seeds beats the reference on the other half."""
    for found in map(headroom, grids(rows)):

        def measure(found: Headroom = found) -> Estimate:
            if found.grid.reference is None:
                raise NotMeasuredError(f"No run of the reference of {found.grid.cell['problem']} was made.")
            return found.gain

        title = f"a setting chosen on half of the seeds beats {reference} on the other half, {_title(found, names)}"
        yield Comparison(title, "best setting", reference, metric, NOT_BELOW, measure, found.grid.cell["evaluation"])


def figure(rows: pd.DataFrame, names: Names, ylabel: str) -> Figure:
    """Draw the gains on the left, then the response along each hyperparameter, at most `SHOWN` of them."""
    found = [headroom(grid) for grid in grids(rows)]
    chosen = _chosen(found)
    columns = min(3, 1 + len(chosen))
    drawn, axes = figures.panels(columns, -(-(1 + len(chosen)) // columns), width=4.4, height=3.4)
    for axis in axes[1 + len(chosen) :]:
        axis.remove()
    _draw_gains(axes[0], found, names)
    for axis, name in zip(axes[1:], chosen, strict=False):
        _draw_response(axis, found, name, names, ylabel)
    figures.legend_above(drawn, axes[1 : 1 + len(chosen)], columns=3)
    return drawn


def _cell(found: Headroom, names: Names) -> dict[str, object]:
    cell = found.grid.cell
    return {"problem": cell["problem"], "evaluation": names.get(cell["evaluation"], cell["evaluation"])}


def _title(found: Headroom, names: Names) -> str:
    return ", ".join(map(str, _cell(found, names).values()))


def _gains(found: Headroom) -> dict[str, object]:
    settings, seeds = found.grid.test.shape
    known = math.isfinite(found.most)

    def points(gain: Estimate) -> str:
        return mean_and_error(gain.mean, gain.standard_error) if known else NOTHING

    return {
        "settings": settings,
        "PT seeds": seeds,
        **{f"{name} (%)": f"{s.share:.0f} [{s.low:.0f}, {s.high:.0f}]" for name, s in found.shares.items()},
        "standard deviation of settings": f"{math.sqrt(found.shares['settings'].variance):.2f}",
        "gain, chosen on test": points(found.gain),
        "gain, chosen on validation": points(found.validated),
        "most": f"{found.most:.2f}" if known else NOTHING,
        "best setting": found.best,
        "runs": NOTHING if found.seeds_to_see is None else 2 * found.seeds_to_see,
    }


def _responses(found: list[Headroom], names: Names) -> Iterator[dict[str, object]]:
    for each in found:
        for name, along in each.strongest():
            yield _cell(each, names) | {
                "hyperparameter": names.get(name, name),
                "best value": f"{along.best:.3g}",
                "highest minus lowest fit": f"{along.effect:.2f}",
                "p-value": f"{along.p_value:.2g}",
                "hyperparameters": len(each.responses),
            }


def _chosen(found: list[Headroom]) -> list[str]:
    """Return the hyperparameters with the smallest p-value in any problem, in their order in the table of runs."""
    least: dict[str, float] = {}
    for each in found:
        for name, along in each.responses.items():
            least[name] = min(along.p_value, least.get(name, math.inf))
    kept = sorted(least, key=lambda name: least[name])[:SHOWN]
    return [name for name in least if name in kept]


def _draw_gains(axis: Axes, found: list[Headroom], names: Names) -> None:
    most: Any = {"marker": "|", "s": 90, "color": figures.INK, "label": "on the seeds that choose"}
    with figures.style():
        for shift, gains, marker, colour, label in (
            (-0.12, [each.gain for each in found], "o", figures.INK, "chosen on test"),
            (0.12, [each.validated for each in found], "s", figures.QUIET, "chosen on validation"),
        ):
            rows, errors = np.arange(len(found)) + shift, np.nan_to_num([gain.standard_error for gain in gains])
            axis.errorbar([gain.mean for gain in gains], rows, xerr=errors, fmt=marker, color=colour, label=label)
        axis.scatter([each.most for each in found], range(len(found)), **most)
        axis.axvline(0.0, color=figures.QUIET, linewidth=1, linestyle="--", zorder=1.5)
        figures.named_rows(axis, [_title(each, names).replace(", ", "\n", 1) for each in found], "gain (points)")
        axis.set_ylim(top=-0.5 - 0.35 * len(found))  # room for the legend above the first row
        axis.legend(fontsize=8, loc="upper right", frameon=True, facecolor="white", edgecolor="none", framealpha=1)
        axis.set_title("best setting over the reference")


def _draw_response(axis: Axes, found: list[Headroom], name: str, names: Names, ylabel: str) -> None:
    with figures.style():
        for place, each in enumerate(found):
            if name not in each.responses:
                continue
            along, colour = each.responses[name], figures.colour(place)
            curve, values = along.curve, each.grid.hyperparameters[name]
            figures.band(axis, curve["value"], curve["low"], curve["mean"], curve["high"], _title(each, names), colour)
            axis.plot(values, each.grid.test.mean(1), "o", markersize=3, color=colour, alpha=0.6)
            axis.set_xscale("log" if along.logarithmic else "linear")
        axis.set(xlabel=names.get(name, name.replace("_", " ")), ylabel=ylabel)
        if axis.get_xscale() == "log":
            figures.plain_log_ticks(axis.xaxis)
