"""The common style of figures, and the kinds of figures that several experiments need.

Each figure is a `matplotlib.figure.Figure` without pyplot and global state, with panels about 12 cm wide, whose text is
legible at half that width. The colours are those of Okabe and Ito ("Color Universal Design", 2008), which can be told
apart with any colour vision. A function that draws takes an `axis`, such as one of `panels(...)`. `xlabel` and `ylabel`
are the labels of its axes, with units: "learned mean (degrees)".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import matplotlib.style
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
"""Blue, vermilion, green, pink, orange, sky blue, grey."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#262626"
QUIET = "#767676"
"""Colour of targets and of the paper's numbers, behind the data."""

LINES = "#E4E4E4"

_STYLE: Any = {
    "font.family": "DejaVu Sans", "font.size": 11, "text.color": INK,
    "axes.labelsize": 11, "axes.titlesize": 11, "axes.titlelocation": "left", "axes.labelcolor": INK,
    "axes.edgecolor": INK, "axes.linewidth": 0.8, "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True, "axes.grid": True, "axes.prop_cycle": cycler(color=PALETTE),
    "grid.color": LINES, "grid.linewidth": 0.7,
    "xtick.color": INK, "xtick.labelsize": 10, "xtick.major.size": 3,
    "ytick.color": INK, "ytick.labelsize": 10, "ytick.major.size": 3,
    "legend.fontsize": 10, "legend.frameon": False, "legend.handlelength": 1.8,
    "lines.linewidth": 1.9, "lines.markersize": 5.5, "errorbar.capsize": 0,
    "figure.constrained_layout.use": True, "figure.facecolor": "white",
    "savefig.bbox": "tight", "savefig.facecolor": "white",
    "svg.hashsalt": "metapt", "svg.fonttype": "path",
}  # fmt: skip


class Look(NamedTuple):
    """An arm in a figure: label, colour, marker, and matplotlib's style of the line."""

    label: str
    colour: str
    marker: str
    line: str


Style = tuple[int, int, str]
"""Index into the palette, index into the markers, and line; arms of one colour differ in the last two."""


def looks(labels: Mapping[str, str], styles: Mapping[str, Style]) -> dict[str, Look]:
    """Return the look of each arm, given labels by arm: in its style, else one that depends on its position."""
    found, used = {}, {styles[arm][0] for arm in labels if arm in styles}
    free = [shade for shade in range(len(PALETTE)) if shade not in used] or [0]
    for place, (arm, name) in enumerate(labels.items()):
        shade, marker, line = styles.get(arm, (free[place % len(free)], place, "-."))
        found[arm] = Look(name, colour(shade), MARKERS[marker % len(MARKERS)], line)
    return found


def style() -> AbstractContextManager[None]:
    """Apply the common style inside the `with`, on top of matplotlib's defaults, whatever the user has set."""
    return matplotlib.style.context(_STYLE, after_reset=True)


def colour(index: int) -> str:
    """Return the colour of group `index`; the palette repeats after its last colour."""
    return PALETTE[index % len(PALETTE)]


def ramp(count: int) -> list[str]:
    """Return colours of `count` ordered groups, from dark blue to light green (viridis without its yellow)."""
    return [to_hex(colormaps["viridis"](0.82 * i / max(1, count - 1))) for i in range(count)]


def panels(columns: int = 1, rows: int = 1, *, width: float = 4.8, height: float = 3.3) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and its axes, row by row; `width` and `height` of a panel are in inches."""
    with style():
        figure = Figure(figsize=(columns * width, rows * height))
        grid = figure.subplots(rows, columns, squeeze=False)
    return figure, list(grid.flat)


def save(figure: Figure, stem: Path) -> None:
    """Write {stem}.svg and {stem}.png (150 dots per inch), as large as what is drawn.

    Equal figures give equal bytes, because dates, versions and random ids are left out.
    """
    with style(), atomic_path(stem.with_name(f"{stem.name}.svg")) as path:
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    save_png(figure, stem.with_name(f"{stem.name}.png"))


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure as PNG alone, in the same way as `save`."""
    with style(), atomic_path(path) as whole:
        figure.savefig(whole, format="png", dpi=150, metadata={"Software": None})


def save_as(figure: Figure, path: Path) -> None:
    """Write a figure as the kind of picture that the name's ending says.

    Without such an ending, and with .png or .svg, write both, as `save`.
    """
    kind = path.suffix[1:].lower()
    if kind in ("png", "svg"):
        save(figure, path.with_suffix(""))
    elif kind not in figure.canvas.get_supported_filetypes():
        save(figure, path)
    else:
        with style(), atomic_path(path) as whole:
            figure.savefig(whole, format=kind)


def legend_above(figure: Figure, axes: Sequence[Axes], columns: int = 5) -> None:
    """Replace the legends of all panels by one above them, in which each label stands once.

    It has as many columns as fit into the figure, `columns` at most.
    """
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
            for count in range(min(columns, len(labels)), 0, -1):
                legend = figure.legend(handles, labels, loc="outside upper center", ncols=count, frameon=False)
                if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
                    break
                legend.remove()


def same_range(axes: Sequence[Axes], which: Literal["x", "y"]) -> None:
    """Give all panels the smallest range that holds all of their data, so that they can be compared."""
    ranges = [axis.get_xlim() if which == "x" else axis.get_ylim() for axis in axes]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    for axis in axes:
        axis.set(**{f"{which}lim": (low, high)})


def plain_log_ticks(axis: Axis) -> None:
    """Set the ticks of a logarithmic axis.

    Labels are plain numbers if they are short; there are ticks within decades if the axis spans fewer than two.
    """
    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,), numticks=8))
    if low >= 1e-4 and high < 1e5:
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())


def line_style(points: Sized, line: str = "-") -> str:
    """Return the style of the line through some points: none through fewer than three, which show no course."""
    return line if len(points) > 2 else "none"


def once(axis: Axes, text: str) -> str | None:
    """Return the label of one of several equal marks, None if the axis has it already."""
    return None if text in axis.get_legend_handles_labels()[1] else text


def band(
    axis: Axes, steps: ArrayLike, lower: ArrayLike, centre: ArrayLike, upper: ArrayLike, label: str, colour: str
) -> None:
    """Draw a line `centre` over a band from `lower` to `upper`; all have the shape [steps]."""
    axis.fill_between(np.asarray(steps), np.asarray(lower), np.asarray(upper), color=colour, alpha=0.2, linewidth=0)
    axis.plot(np.asarray(steps), np.asarray(centre), color=colour, label=label)


def trajectories(
    axis: Axes, bands: Mapping[str, pd.DataFrame], xlabel: str, target: tuple[float, float, float] | None = None
) -> None:
    """Draw a line with a band for each group over the steps of a run.

    `bands` are tables with the columns step, lower, centre and upper by label. `target` is (lower,
    centre, upper) of the true value, drawn as a dashed line between dotted ones.
    """
    with style():
        for i, (label, frame) in enumerate(bands.items()):
            band(axis, frame["step"], frame["lower"], frame["centre"], frame["upper"], label, colour(i))
        if target is not None:
            lower, centre, upper = target
            axis.axhline(centre, color=INK, linewidth=1.2, linestyle="--", label="target", zorder=1.5)
            for end in (lower, upper):
                axis.axhline(end, color=INK, linewidth=1, linestyle=":", zorder=1.5)
        axis.margins(x=0)
        axis.set_xlabel(xlabel)
        if len(axis.get_legend_handles_labels()[1]) > 1:
            axis.legend()


def histogram(
    axis: Axes, values: ArrayLike, edges: ArrayLike, label: str, colour: str, alpha: float = 0.3, **line: Any
) -> None:
    """Draw the histogram of values over bins with these edges, in per cent of the values; `line` is matplotlib's."""
    x = np.asarray(values, dtype=float)
    bins: Any = {"bins": np.asarray(edges).tolist(), "weights": np.full(x.size, 100 / max(1, x.size)), "color": colour}
    axis.hist(x, alpha=alpha, **bins)
    axis.hist(x, histtype="step", label=label, **{"linewidth": 1.6} | line | bins)
    axis.grid(axis="x", visible=False)


def bars_with_error(
    ours: pd.DataFrame, papers: pd.DataFrame | None = None, *, xlabel: str, axis: Axes | None = None
) -> Figure:
    """Draw our numbers beside the paper's, in a row for each label from top to bottom; without `axis` on a new figure.

    A number is a dot with its standard error as a bar (none where it is NaN). Dots can be compared without an axis that
    starts at zero. Both tables have the columns label, mean and standard_error. A label that only one of them has is
    drawn alone. There is no legend with one table.
    """
    papers = ours[:0] if papers is None else papers
    labels = list(dict.fromkeys([*ours["label"], *papers["label"]]))
    place, two = {label: i for i, label in enumerate(labels)}, len(papers) > 0
    with style():
        axis = axis or panels(height=max(1.6, (0.62 if two else 0.45) * len(labels) + 1.0))[1][0]
        _dots(axis, ours, place, -0.16 if two else 0.0, "ours" if two else None, colour(0), "o", colour(0))
        if two:
            _dots(axis, papers, place, 0.16, "paper", QUIET, "D", "white")
        named_rows(axis, labels, xlabel)
        axis.margins(x=0.14)
        if two:
            axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)
    return cast(Figure, axis.figure)


def named_rows(axis: Axes, labels: Sequence[str], xlabel: str) -> None:
    """Give the rows 0, 1, ... of a panel their labels, from top to bottom."""
    axis.set_yticks(range(len(labels)), list(labels))
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel(xlabel)


def note(axis: Axes, text: str, place: tuple[float, float], shift: float, colour: str = INK) -> None:
    """Write a text on the right of a place, at a distance of `shift` points."""
    axis.annotate(text, place, xytext=(shift, 0), textcoords="offset points", va="center", fontsize=9, color=colour)


def _dots(
    axis: Axes, table: pd.DataFrame, place: Mapping[str, int], shift: float, label: str | None, colour: str, *look: str
) -> None:
    rows, errors = np.array([place[name] for name in table["label"]]) + shift, table["standard_error"].fillna(0.0)
    largest = float(table["mean"].abs().max())
    decimals = max(0, 2 - math.floor(math.log10(largest))) if 0 < largest < math.inf else 1
    style: Any = {"fmt": look[0], "markerfacecolor": look[1], "color": colour, "elinewidth": 1.6, "clip_on": False}
    axis.errorbar(table["mean"], rows, xerr=errors, label=label, **style)
    for mean, error, row in zip(table["mean"], errors, rows, strict=True):
        note(axis, f"{mean:.{decimals}f}", (mean + error, row), 6, colour)
