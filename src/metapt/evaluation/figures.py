"""The house style of figures, and the few kinds that the experiments need.

Every figure is a `matplotlib.figure.Figure` of its own (no pyplot, no global state), about 12 cm wide with text that can still be
read at half that width. Colours are those of Okabe and Ito ("Color Universal Design", 2008), which people with any colour vision
can tell apart. Every function that draws takes an `axis`, to draw into a panel of `panels(...)`, and without one makes its own
figure; it returns the figure. Labels carry their units: "learned mean (degrees)".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import matplotlib
import numpy as np
import pandas as pd
from cycler import cycler
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from numpy.typing import ArrayLike

from metapt.files import atomic_path

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B5B5B")
"""Blue, vermilion, green, pink, orange, sky, grey."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#262626"
QUIET = "#767676"
"""For what stands behind the data: targets, the paper's numbers."""

PANEL = (4.8, 3.3)
"""Width and height of one panel in inches."""

_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.labelsize": 11,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=PALETTE),
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "lines.linewidth": 1.9,
    "lines.markersize": 5.5,
    "errorbar.capsize": 0,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "metapt",
    "svg.fonttype": "path",
}


@contextmanager
def style() -> Iterator[None]:
    """The house style for all that is drawn inside the `with`, on top of matplotlib's defaults, whatever the user has set."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def colour(index: int) -> str:
    """The colour of group `index`; after the last one the palette begins anew."""
    return PALETTE[index % len(PALETTE)]


def ramp(count: int) -> list[str]:
    """Colours of `count` groups that have an order, from dark blue to light green (viridis without its yellow)."""
    return [to_hex(colormaps["viridis"](0.82 * i / max(1, count - 1))) for i in range(count)]


def panels(
    columns: int = 1, rows: int = 1, *, width: float = PANEL[0], height: float = PANEL[1]
) -> tuple[Figure, list[Axes]]:
    """An empty figure and its axes, row by row. `width` and `height` of a panel in inches."""
    with style():
        figure = Figure(figsize=(columns * width, rows * height))
        grid = figure.subplots(rows, columns, squeeze=False)
    return figure, list(grid.flat)


def save(figure: Figure, stem: Path) -> None:
    """Write {stem}.svg and {stem}.png (150 dots per inch). Equal figures give equal bytes: no dates, no versions, fixed ids."""
    with style():
        with atomic_path(stem.with_name(stem.name + ".svg")) as path:
            figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        with atomic_path(stem.with_name(stem.name + ".png")) as path:
            figure.savefig(path, format="png", dpi=150, metadata={"Software": None})


def legend_above(figure: Figure, axes: Sequence[Axes], columns: int = 5) -> None:
    """One legend for all panels, above them, in place of their own; what several of them name stands there once."""
    found: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
        legend = axis.get_legend()
        if legend is not None:
            legend.remove()
    if found:
        with style():
            handles, labels = list(found.values()), list(found)
            figure.legend(handles, labels, loc="outside upper center", ncols=min(columns, len(labels)), frameon=False)


def same_range(axes: Sequence[Axes], which: Literal["x", "y"]) -> None:
    """Lets panels compare: all get the range that holds all of their data."""
    ranges = [axis.get_xlim() if which == "x" else axis.get_ylim() for axis in axes]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    for axis in axes:
        axis.set(**{f"{which}lim": (low, high)})


def plain_log_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis as plain numbers where these are short, and within decades where the axis spans few."""
    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,), numticks=8))
    if low >= 1e-4 and high < 1e5:
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())


def title(axis: Axes, text: str) -> None:
    with style():
        axis.set_title(text)


def once(axis: Axes, text: str) -> str | None:
    """The label of one of several equal marks: none once the axis has it."""
    return None if text in axis.get_legend_handles_labels()[1] else text


def band(
    axis: Axes, steps: ArrayLike, lower: ArrayLike, centre: ArrayLike, upper: ArrayLike, label: str, colour: str
) -> None:
    """A line `centre` with the band from `lower` to `upper` behind it; all [steps]."""
    axis.fill_between(np.asarray(steps), np.asarray(lower), np.asarray(upper), color=colour, alpha=0.2, linewidth=0)
    axis.plot(np.asarray(steps), np.asarray(centre), color=colour, label=label)


def over_replicates(
    series: pd.DataFrame, name: str, quantiles: tuple[float, float, float] = (0.1, 0.5, 0.9)
) -> pd.DataFrame:
    """A band from a series table: step, and as lower, centre, upper the `quantiles` of `name` over the replicates.

    It has a gap at the steps where a replicate has diverged (NaN): the others alone would look better than they are.
    """
    values = series[series["name"] == name].groupby("step")["value"]
    lower, centre, upper = (values.quantile(q).where(values.count() == values.size()) for q in quantiles)
    return pd.DataFrame({"lower": lower, "centre": centre, "upper": upper}).reset_index()


def trajectories(
    bands: Mapping[str, pd.DataFrame],
    *,
    xlabel: str,
    ylabel: str,
    target: float | tuple[float, float, float] | None = None,
    axis: Axes | None = None,
) -> Figure:
    """One line with its band per group over the steps of a run.

    `bands`: label -> DataFrame with the columns step, lower, centre, upper (`over_replicates` makes one; a learned mean plus and
    minus the learned deviation is another). `target`: the value to be found, a dashed line; or (lower, centre, upper), with its
    ends dotted.
    """
    with style():
        figure, axis = _place(axis)
        for i, (label, frame) in enumerate(bands.items()):
            band(axis, frame["step"], frame["lower"], frame["centre"], frame["upper"], label, colour(i))
        if target is not None:
            lower, centre, upper = target if isinstance(target, tuple) else (None, target, None)
            axis.axhline(centre, color=INK, linewidth=1.2, linestyle="--", label="target", zorder=1.5)
            for end in (lower, upper):
                if end is not None:
                    axis.axhline(end, color=INK, linewidth=1, linestyle=":", zorder=1.5)
        axis.margins(x=0)
        _finish(axis, xlabel, ylabel)
    return figure


def distributions(
    groups: Mapping[str, ArrayLike],
    *,
    xlabel: str,
    ylabel: str = "share (%)",
    bins: int = 40,
    logarithmic: bool = False,
    axis: Axes | None = None,
) -> Figure:
    """Histograms of two or more groups over the same bins, as shares of each group, so that groups of different size compare.

    `groups`: label -> values [n]. `logarithmic`: bins of equal ratio, for values over several decades; zeros count in
    the lowest bin.
    """
    samples = {label: np.asarray(values, dtype=float) for label, values in groups.items()}
    everything = np.concatenate(list(samples.values()))
    if logarithmic:
        edges = 10.0 ** np.histogram_bin_edges(np.log10(everything[everything > 0]), bins)
        samples = {label: np.clip(x, edges[0], edges[-1]) for label, x in samples.items()}
    else:
        edges = np.histogram_bin_edges(everything, bins)
    with style():
        figure, axis = _place(axis)
        for i, (label, x) in enumerate(samples.items()):
            weights = np.full(x.size, 100 / max(1, x.size))
            axis.hist(x, edges.tolist(), weights=weights, color=colour(i), alpha=0.3)
            axis.hist(x, edges.tolist(), weights=weights, color=colour(i), histtype="step", linewidth=1.6, label=label)
        if logarithmic:
            axis.set_xscale("log")
        axis.grid(axis="x", visible=False)
        _finish(axis, xlabel, ylabel)
    return figure


def lines_with_error(
    table: pd.DataFrame,
    *,
    x: str,
    group: str,
    xlabel: str,
    ylabel: str,
    xscale: str = "linear",
    yscale: str = "linear",
    axis: Axes | None = None,
) -> Figure:
    """One line with error bars per group: `table` has the columns `x`, `group`, mean and standard_error (NaN: no bar).

    Scales are matplotlib's ("linear", "log", "symlog"); a tick stands at every x where there are at most eight.
    """
    with style():
        figure, axis = _place(axis)
        for i, (label, part) in enumerate(table.groupby(group, sort=False)):
            line = part.sort_values(x)
            marker = MARKERS[i % len(MARKERS)]
            error = line["standard_error"].fillna(0.0)
            axis.errorbar(
                line[x], line["mean"], error, color=colour(i), marker=marker, elinewidth=1.4, label=str(label)
            )
        axis.set_xscale(xscale)
        axis.set_yscale(yscale)
        ticks = np.unique(table[x].to_numpy(dtype=float))
        if ticks.size <= 8:
            axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
            axis.set_xticks([], minor=True)
        _finish(axis, xlabel, ylabel)
    return figure


def bars_with_error(
    ours: pd.DataFrame,
    papers: pd.DataFrame | None = None,
    *,
    xlabel: str,
    names: tuple[str, str] = ("ours", "paper"),
    axis: Axes | None = None,
) -> Figure:
    """Ours beside the paper's, one row per label from top to bottom: a dot with its standard error as a bar, and its number.

    `names`: what the two are called in the legend, where they are something else.

    `ours`, `papers`: columns label, mean, standard_error (NaN: no bar); a label that only one has is drawn alone. Dots rather
    than filled bars, because their positions compare without an axis that starts at zero.
    """
    labels = list(dict.fromkeys([*ours["label"], *([] if papers is None else papers["label"])]))
    place = {label: i for i, label in enumerate(labels)}
    two = papers is not None and len(papers) > 0
    with style():
        if axis is None:
            figure, (axis,) = panels(height=max(1.6, (0.62 if two else 0.45) * len(labels) + 1.0))
        else:
            figure = cast(Figure, axis.figure)
        _dots(axis, ours, place, -0.16 if two else 0.0, names[0], colour(0), filled=True)
        if papers is not None and two:
            _dots(axis, papers, place, 0.16, names[1], QUIET, filled=False)
        axis.set_yticks(range(len(labels)), labels)
        axis.set_ylim(len(labels) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", visible=False)
        axis.margins(x=0.14)
        axis.set_xlabel(xlabel)
        if two:
            axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)
    return figure


def _dots(
    axis: Axes, table: pd.DataFrame, place: Mapping[str, int], shift: float, label: str, colour: str, *, filled: bool
) -> None:
    rows = np.array([place[name] for name in table["label"]]) + shift
    errors = table["standard_error"].fillna(0.0)
    face = colour if filled else "white"
    marker = "o" if filled else "D"
    largest = float(table["mean"].abs().max())
    decimals = max(0, 2 - math.floor(math.log10(largest))) if 0 < largest < math.inf else 1
    axis.errorbar(
        table["mean"],
        rows,
        xerr=errors,
        fmt=marker,
        color=colour,
        markerfacecolor=face,
        elinewidth=1.6,
        label=label,
        clip_on=False,
    )
    for mean, error, row in zip(table["mean"], errors, rows, strict=True):
        axis.annotate(
            f"{mean:.{decimals}f}",
            (mean + error, row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=colour,
        )


def _place(axis: Axes | None) -> tuple[Figure, Axes]:
    """The axis to draw into, with its figure; a new one if there is none."""
    if axis is None:
        figure, (axis,) = panels()
        return figure, axis
    return cast(Figure, axis.figure), axis


def _finish(axis: Axes, xlabel: str, ylabel: str) -> None:
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabel)
    if len(axis.get_legend_handles_labels()[1]) > 1:
        axis.legend()
