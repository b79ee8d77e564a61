"""The figures of AUROC and of representations; those of the task weights are in `metapt.domains.ppi.weight_figures`.

Error bars and bands are standard errors over the PT seeds' means, which none are known of where there is a single PT seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from metapt.domains.ppi.gain_tables import gains, losing, scratch, transfer
from metapt.domains.ppi.labels import SETTINGS, label, looks
from metapt.domains.ppi.results import ONLINE, Results, auroc_cells, papers_cells, papers_number
from metapt.domains.ppi.settings import FULL_ACCESS, RELEASED_CENTRE
from metapt.domains.ppi.tables import BASELINE, best_cells, cka, differences
from metapt.errors import DataError
from metapt.evaluation import figures
from metapt.evaluation.looks import AUROC_LABEL, EVALUATIONS
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.statistics import estimate_mean

ROW = 0.5
"""Inches of height per arm in a panel of dots."""


def auroc(results: Results) -> Figure:
    """AUROC of each arm under each evaluation beside the paper's, and the paired differences to plain PT."""
    cells, papers = auroc_cells(results, [results.key]), papers_cells(results.key, results.arms)
    pairs = [
        ((arm, results.key), (BASELINE, results.key)) for arm in results.arms if arm != BASELINE and BASELINE in results.arms
    ]
    below = differences(results, pairs)
    below = below[below["seeds"] > 1] if len(below) else below
    evaluations = [each for each in results.config.evaluations if (cells["evaluation"] == each).any()]
    rows = 2 if len(below) else 1
    height = max(2.2, ROW * len(results.arms) + 1.1)
    figure, axes = figures.panels(columns=len(evaluations), rows=rows, width=5.6, height=height)
    for axis, evaluation in zip(axes, evaluations, strict=False):
        dots(axis, _of(cells, evaluation), _of(papers, evaluation))
        figures.title(axis, f"{SETTINGS[results.key]}, {EVALUATIONS[evaluation]}")
    for axis, evaluation in zip(axes[len(evaluations) :], evaluations, strict=False):
        part = _of(below, evaluation)
        intervals(
            axis,
            [label(arm) for arm in part["arm"]],
            part,
            f"AUROC minus {label(BASELINE)}'s\n(points, 95% interval over PT seeds)",
        )
    if rows == 2:
        figures.same_range(axes[len(evaluations) :], "x")
    figures.legend_above(figure, axes)
    return figure


def summary(results: Results) -> Figure:
    """The better of the two evaluations in each setting, beside the paper's."""
    cells, papers = best_cells(results), papers_cells(results.key, results.arms)
    settings = list(dict.fromkeys(cells["setting"]))
    height = max(2.2, ROW * len(results.arms) + 1.1)
    figure, axes = figures.panels(columns=len(settings), width=5.2, height=height)
    for axis, setting in zip(axes, settings, strict=True):
        dots(axis, cells[cells["setting"] == setting], papers[papers["setting"] == setting])
        figures.title(axis, f"{SETTINGS[setting]}, better evaluation")
    figures.legend_above(figure, axes)
    return figure


def online(results: Results) -> Figure:
    """AUROC of the FT head that PT trains along, over PT steps, and the paper's when its PT ended."""
    if not set(ONLINE.values()) & set(results.series["name"]):
        return _online_ends(results)
    figure, axes = figures.panels(columns=2, width=5.4, height=3.8)
    look = looks(results.arms)
    for axis, (which, metric) in zip(axes, ONLINE.items(), strict=True):
        with figures.style():
            for arm, looked in look.items():
                try:
                    table = results.by_seed(arm, metric)
                except NotMeasuredError:
                    continue
                mean, error = table.mean(axis=1, skipna=False), table.sem(axis=1, skipna=False).fillna(0.0)
                figures.band(axis, table.index, mean - error, mean, mean + error, looked.label, looked.colour)
                axis.plot(table.index, mean, looked.marker, color=looked.colour, markersize=4.5)
            axis.margins(x=0.06)
            right = axis.get_xlim()[1]
            for arm, looked in look.items():
                papers = papers_number(results.key, arm, f"{which} AUROC (%)")
                if math.isfinite(papers):
                    marks: dict[str, Any] = {
                        "color": looked.colour,
                        "markerfacecolor": "white",
                        "markersize": 8,
                        "clip_on": False,
                    }
                    axis.plot(right, papers, looked.marker, **marks)
            axis.plot([], [], "o", color=figures.QUIET, markerfacecolor="white", markersize=8, label="the paper's, at the end")
            axis.set(xlabel="PT step", ylabel=f"{which} AUROC (%), mean ± SE")
        figures.title(axis, f"FT head during PT, {which} graphs")
    figures.legend_above(figure, axes, columns=3)
    return figure


def _online_ends(results: Results) -> Figure:
    """The same where the runs were not tested on the way."""
    figure, axes = figures.panels(columns=2, width=5.4, height=max(2.2, ROW * len(results.arms) + 1.1))
    for axis, (which, metric) in zip(axes, ONLINE.items(), strict=True):
        rows = []
        for arm in results.arms:
            with suppress(NotMeasuredError):
                e = estimate_mean(results.pretraining(arm, metric).to_numpy(dtype=float))
                papers = papers_number(results.key, arm, f"{which} AUROC (%)")
                rows.append({"arm": arm, "mean": e.mean, "seed_standard_error": e.standard_error, "paper": papers})
        if not rows:
            raise DataError(f"No PT run of {results.experiment} has measured {metric!r}.")
        ours = pd.DataFrame(rows)
        theirs = ours.assign(mean=ours["paper"], seed_standard_error=math.nan)
        dots(axis, ours, theirs.dropna(subset="mean"))
        axis.set_xlabel(f"{which} AUROC (%)")
    figures.legend_above(figure, axes)
    return figure


def heat_map(results: Results) -> Figure:
    """Centred kernel alignment between arms, mean over PT seeds."""
    table = cka(results).pivot(index="arm", columns="other", values="mean").loc[results.arms, results.arms]
    values, names = table.to_numpy(dtype=float), [label(arm) for arm in results.arms]
    size = 0.62 * len(names) + 2.3
    figure, (axis,) = figures.panels(width=size + 1.3, height=size)
    shades = LinearSegmentedColormap.from_list("blues", ["#FFFFFF", figures.PALETTE[0]])
    with figures.style():
        image = axis.imshow(values, cmap=shades, vmin=0.0, vmax=1.0)
        for i, j in np.ndindex(values.shape):
            text = "–" if math.isnan(values[i, j]) else f"{values[i, j]:.2f}"
            ink = "white" if values[i, j] > 0.65 else figures.INK
            axis.annotate(text, (j, i), ha="center", va="center", fontsize=9, color=ink)
        axis.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
        axis.set_yticks(range(len(names)), names)
        axis.tick_params(length=0)
        axis.grid(visible=False)
        axis.spines[:].set_visible(False)
        figure.colorbar(image, ax=axis, label="CKA, mean over PT seeds", shrink=0.8)
    return figure


def negative_transfer(results: Results) -> Figure:
    """Test AUROC of each FT task with PT over that without; below the diagonal it loses."""
    base = scratch(results)
    arms = [arm for arm in results.arms if base is not None and arm != base[0]]
    found = {
        (arm, evaluation): table
        for arm in arms
        for evaluation in results.config.evaluations
        if (table := _transfer(results, arm, evaluation)) is not None
    }
    arms = [arm for arm in arms if any(arm == each for each, _ in found)]
    if base is None or not arms:
        raise DataError(f"{results.experiment} has no arm with PT and none without; name both in its arms.")
    columns = next((count for count in (5, 4, 3) if len(arms) % count == 0), min(4, len(arms)))
    figure, axes = figures.panels(columns=columns, rows=-(-len(arms) // columns), width=3.7, height=3.8)
    for axis, arm in zip(axes, arms, strict=False):
        lines = []
        with figures.style():
            for place, evaluation in enumerate(results.config.evaluations):
                table = found.get((arm, evaluation))
                if table is None:
                    continue
                colour, marker = figures.colour(place), figures.MARKERS[place]
                axis.scatter(
                    table["without"], table["with"], s=22, color=colour, marker=marker, alpha=0.75, label=EVALUATIONS[evaluation]
                )
                share = losing(results, arm, evaluation).mean(skipna=False)
                lines.append((f"{share:.0f} % lose" if math.isfinite(share) else "not all scored", colour))
            for number, (text, colour) in enumerate(lines):
                axis.annotate(
                    text,
                    (0.97, 0.03 + 0.08 * (len(lines) - 1 - number)),
                    xycoords="axes fraction",
                    ha="right",
                    fontsize=10,
                    color=colour,
                )
            axis.set(xlabel="AUROC without PT (%)", ylabel="AUROC with PT (%)")
        figures.title(axis, label(arm))
    for axis in axes[len(arms) :]:
        axis.remove()
    axes = axes[: len(arms)]
    values = pd.concat(list(found.values()))[["without", "with"]].to_numpy(dtype=float)
    low, high = np.nanmin(values, initial=100.0) - 3, np.nanmax(values, initial=0.0) + 3
    for axis in axes:
        axis.axline((low, low), slope=1, color=figures.QUIET, linewidth=1.2, linestyle="--", zorder=1.5)
        axis.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    figures.legend_above(figure, axes)
    return figure


def centre_offset(results: Results) -> Figure:
    """AUROC with the centre nodes right and as released, and what arms gain over plain PT under both."""
    cells, gained = auroc_cells(results, [FULL_ACCESS, RELEASED_CENTRE]), gains(results)
    shown = gained[(gained["seeds"] > 1) & (gained["gain"] != "right minus released")] if len(gained) else gained
    evaluations = [each for each in results.config.evaluations if (cells["evaluation"] == each).any()]
    height = max(2.4, 0.62 * len(results.arms) + 1.2)
    figure, axes = figures.panels(columns=len(evaluations), rows=2 if len(shown) else 1, width=5.6, height=height)
    for axis, evaluation in zip(axes, evaluations, strict=False):
        part = _of(cells, evaluation)
        right, released = (part[part["setting"] == setting] for setting in (FULL_ACCESS, RELEASED_CENTRE))
        dots(axis, right, released, names=("centre nodes right", "released batching"))
        figures.title(axis, EVALUATIONS[evaluation])
    for axis, evaluation in zip(axes[len(evaluations) :], evaluations, strict=False):
        part = _of(shown, evaluation)
        names = [f"{label(row['arm'])}, {row['gain']}" for row in part.to_dict("records")]
        intervals(axis, names, part, f"gain over {label(str(part['minus'].iloc[0]))}\n(points, 95% interval over PT seeds)")
    if len(shown):
        figures.same_range(axes[len(evaluations) :], "x")
    figures.legend_above(figure, axes)
    return figure


def dots(axis: Axes, ours: pd.DataFrame, others: pd.DataFrame, names: tuple[str, str] = ("ours", "paper")) -> None:
    """A row per arm of `ours`: its mean with the standard error over PT seeds, and `others` of the same arm hollow below it."""
    shown = pd.DataFrame(
        {
            "label": [label(a) for a in ours["arm"]],
            "mean": list(ours["mean"]),
            "standard_error": list(ours["seed_standard_error"]),
        }
    )
    others = others[others["arm"].isin(ours["arm"])]
    error = others["seed_standard_error"] if "seed_standard_error" in others else others["standard_error"]
    beside = pd.DataFrame(
        {"label": [label(a) for a in others["arm"]], "mean": list(others["mean"]), "standard_error": list(error)}
    )
    figures.bars_with_error(shown, beside, xlabel=AUROC_LABEL, names=names, axis=axis)


def intervals(axis: Axes, names: Sequence[str], rows: pd.DataFrame, xlabel: str) -> None:
    """A row per difference: its mean, and its 95% interval as a bar. `rows`: mean, low, high."""
    means = rows["mean"].to_numpy(dtype=float)
    reach = np.stack([means - rows["low"].to_numpy(dtype=float), rows["high"].to_numpy(dtype=float) - means])
    with figures.style():
        axis.axvline(0.0, color=figures.QUIET, linewidth=1.2, linestyle="--", zorder=1.5)
        axis.errorbar(means, range(len(means)), xerr=np.nan_to_num(reach), fmt="o", color=figures.colour(0), elinewidth=1.6)
        axis.set_yticks(range(len(means)), list(names))
        axis.set_ylim(len(means) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", visible=False)
        axis.set_xlabel(xlabel)


def _transfer(results: Results, arm: str, evaluation: str) -> pd.DataFrame | None:
    try:
        return transfer(results, arm, evaluation)
    except NotMeasuredError:
        return None


def _of(cells: pd.DataFrame, evaluation: str) -> pd.DataFrame:
    return cells[cells["evaluation"] == evaluation] if len(cells) else cells
