"""Table, figure and claims of the agreement of estimates with a table of runs (see `metapt.evaluation.agreement`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.errors import DataError
from metapt.evaluation import figures
from metapt.evaluation.agreement import CHANCE, SINGLE_RUNS, Agreement, agreements, linear_fits
from metapt.evaluation.comparisons import Comparison, Measurement, at_least
from metapt.evaluation.headroom_table import grids
from metapt.evaluation.statistics import Estimate
from metapt.evaluation.tables import NOTHING, Tables, mean_and_error

SIGNS = "pairs of settings in the right order (%)"
FITTED = (6, 12)
"""Numbers of random settings of the linear fits."""


def measured(runs: pd.DataFrame, slopes: pd.DataFrame, logarithmic: Sequence[str]) -> list[Agreement]:
    """Return the agreement of each estimator with each problem and evaluation that it has slopes for.

    Raises DataError as `agreements`, and if the runs are of other problems than the slopes.
    """
    known = set(slopes["problem"])
    found: list[Agreement] = []
    for grid in grids(runs):
        if grid.cell["problem"] in known:
            found += agreements(grid, slopes, logarithmic)
            found += linear_fits(grid, FITTED, logarithmic)
    if not found:
        raise DataError(
            f"the table of runs is of {_listed(runs)}, and the estimates are of {_listed(slopes)}; name a table of the "
            "same data and network."
        )
    return found


def _listed(table: pd.DataFrame) -> str:
    return ", ".join(repr(each) for each in dict.fromkeys(table["problem"]))


def tables(found: list[Agreement], slopes: pd.DataFrame, names: Mapping[str, str]) -> Tables:
    """Return the agreements; the numbers are the table of slopes. `names` has those of evaluations."""
    caption = (
        "Agreement of estimates with what happened: each PT seed predicts the results of all settings by its own "
        "estimate, and is compared with the mean test results of the other PT seeds. Mean ± standard error over PT "
        "seeds, which share one truth, so that the error is no test against chance. Right signs: pairs of settings in "
        "the right order; 50 % is chance, and what an estimate that is not finite counts as. Horizon: PT steps that an "
        "estimate goes back. Cost: in plain PT runs; of a linear fit, and of single runs (the measured results of one "
        "PT seed as a prediction, a ceiling), without FT"
    )
    rows = [
        {
            "problem": each.problem,
            "evaluation": names.get(each.evaluation, each.evaluation),
            "estimator": each.estimator,
            "horizon": "whole run" if each.horizon is None else each.horizon,
            "cost": f"{each.cost:.3g}",
            "Spearman's correlation": _number(each.spearman),
            "right signs (%)": _number(each.signs),
            "PT seeds": each.signs.n,
            "PT seeds with a finite estimate": each.finite,
        }
        for each in found
    ]
    return Tables({caption: pd.DataFrame(rows)}, slopes)


def comparisons(found: list[Agreement], names: Mapping[str, str]) -> Iterator[Comparison]:
    """Yield, for each estimator except `SINGLE_RUNS`, the claim that it orders settings better than chance.

    None is decided. The PT seeds are compared with one truth on the same settings, so that their results are not
    independent: an estimate that is the same for all PT seeds and has nothing to do with the truth is decided on in
    most cases by a t test over them.
    """
    for each in found:
        if each.estimator == SINGLE_RUNS:
            continue
        back = each.horizon
        steps = "" if back is None else f" {back} PT step{'s' if back > 1 else ''} back,"
        where = f"{each.problem}, {names.get(each.evaluation, each.evaluation)}"
        text = f"{each.estimator},{steps} orders pairs of settings better than chance, {where}"

        def measure(each: Agreement = each) -> Measurement:
            return Measurement(each.signs, doubt="not decided, since all PT seeds share one truth and its settings")

        yield Comparison(text, each.estimator, "", SIGNS, at_least(CHANCE), measure, each.evaluation)


def figure(found: list[Agreement], names: Mapping[str, str]) -> Figure:
    """Draw the right signs against horizon and against cost, a row of panels for each problem and evaluation."""
    cells = list(dict.fromkeys((each.problem, each.evaluation) for each in found))
    drawn, axes = figures.panels(2, len(cells), width=5.6, height=3.6)
    looks = _looks(list(dict.fromkeys(each.estimator for each in found)))
    for row, (problem, evaluation) in enumerate(cells):
        own = [each for each in found if (each.problem, each.evaluation) == (problem, evaluation)]
        longest = max((each.horizon for each in own if each.horizon is not None), default=1)
        horizons = [longest if each.horizon is None else each.horizon for each in own]
        _draw(axes[2 * row], own, horizons, "PT steps that the estimate goes back", looks, spread=1.6)
        _draw(axes[2 * row + 1], own, [each.cost for each in own], "cost (plain PT runs)", looks)
        for axis in axes[2 * row : 2 * row + 2]:
            figures.title(axis, f"{problem}, {names.get(evaluation, evaluation)}")
    figures.legend_above(drawn, axes, columns=4)
    return drawn


def _looks(names: list[str]) -> dict[str, dict[str, Any]]:
    """Return colour and marker of each estimator: the colour is that of its PT part, the marker that of its FT part."""
    parts = [name.partition(", ")[::2] for name in names]
    first, second = (list(dict.fromkeys(part)) for part in zip(*parts, strict=True))
    return {
        name: {
            "color": figures.colour(first.index(pt)),
            "marker": figures.MARKERS[second.index(ft) % len(figures.MARKERS)],
        }
        for name, (pt, ft) in zip(names, parts, strict=True)
    }


def _draw(
    axis: Axes,
    found: list[Agreement],
    places: Sequence[float],
    label: str,
    looks: dict[str, dict[str, Any]],
    spread: float = 1.0,
) -> None:
    """Draw right signs at `places`; marks of different estimators are up to the factor `spread` apart."""
    with figures.style():
        axis.axhline(CHANCE, color=figures.QUIET, linewidth=1, linestyle="--", zorder=1.5)
        for number, (name, look) in enumerate(looks.items()):
            shift = spread ** (number / max(1, len(looks) - 1) - 0.5)
            own = [
                (place * shift, each.signs) for place, each in zip(places, found, strict=True) if each.estimator == name
            ]
            if own:
                errors = [0.0 if math.isnan(signs.standard_error) else signs.standard_error for _, signs in own]
                means = [signs.mean for _, signs in own]
                style: Any = {
                    "label": name,
                    "linewidth": 1.2,
                    "elinewidth": 1.2,
                    "linestyle": figures.joined(own),
                }
                axis.errorbar([place for place, _ in own], means, errors, **style, **look)
        axis.set(xscale="log", xlabel=label, ylabel="right signs (%),\nmean ± SE")
        figures.plain_log_ticks(axis.xaxis)


def _number(found: Estimate) -> str:
    if math.isnan(found.mean):
        return NOTHING
    return mean_and_error(found.mean, found.standard_error)
