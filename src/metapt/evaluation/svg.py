"""Figures as SVG: the values of their points, which a browser shows under the mouse, and their place inside a page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
LEAST_SCALE = 0.75
"""Size below which a page does not shrink a figure, so that a text of 10 points keeps 10 pixels; it scrolls instead."""

ET.register_namespace("", SVG[1:-1])
ET.register_namespace("xlink", XLINK[1:-1])


def drawn(figure: Figure, **words: Any) -> bytes:
    """Return a figure as SVG whose points, bars and lines have their values as titles; `words` are for `savefig`."""
    titles = dict(_titles(figure))
    file = io.BytesIO()
    figure.savefig(file, format="svg", **words)
    root = ET.fromstring(file.getvalue())
    for group in root.iter(f"{SVG}g"):
        if group.get("id") in titles:
            _add_titles(group, *titles[str(group.get("id"))])
    text = '<?xml version="1.0" encoding="utf-8" standalone="no"?>\n' + ET.tostring(root, encoding="unicode")
    return text.encode()


def inside_page(path: Path, name: str, colours: dict[str, str]) -> str:
    """Return the figure in a file as an element for a page, as wide as in print where the page has room.

    Its ids start with `name`, since all figures of a page share one space of ids. Those of its `colours` that have a
    name of the page's (`var(--{name})`) take it; others are mixed with white as the page's `--keep` says, so that they
    can be seen on a dark page.
    """

    def mixed(colour: str) -> str:
        return f"var(--{colours[colour]})" if colour in colours else f"color-mix(in srgb, {colour} var(--keep), white)"

    root = ET.fromstring(path.read_bytes())
    for parent in root.iter():
        for child in [each for each in parent if each.tag in (f"{SVG}metadata", f"{SVG}style")]:
            parent.remove(child)
    for element in root.iter():
        for key, value in element.items():
            if key == "id":
                element.set(key, f"{name}-{value}")
            elif key == f"{XLINK}href" and value.startswith("#"):
                element.set(key, f"#{name}-{value[1:]}")
            elif key in ("style", "clip-path"):
                value = value.replace("url(#", f"url(#{name}-")
                element.set(key, re.sub(r"#[0-9a-f]{6}\b", lambda found: mixed(found[0]), value))
    width = 4 / 3 * float(root.get("viewBox", "0 0 480 330").split()[2])  # from points to pixels
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.set("id", f"{name}-figure")
    root.set("style", f"width: {width:.0f}px; max-width: 100%; min-width: {LEAST_SCALE * width:.0f}px")
    return ET.tostring(root, encoding="unicode")


def _add_titles(group: ET.Element, texts: Sequence[str], whole: str) -> None:
    """Give each point of a group its text, or the group the text of the `whole` if it does not have as many points."""
    points = list(group.iter(f"{SVG}use"))
    found = zip(points, texts, strict=True) if len(points) == len(texts) > 0 else [(group, whole)]
    for element, text in found:
        title = ET.Element(f"{SVG}title")
        title.text = text
        element.insert(0, title)


def _titles(figure: Figure) -> Iterator[tuple[str, tuple[list[str], str]]]:
    """Name the points, bars and lines of all panels. Yield the name of each, the texts of its points, and of itself."""
    for place, axis in enumerate(figure.axes):
        for number, (artist, texts, whole) in enumerate(_artists(axis)):
            artist.set_gid(f"values-{place}-{number}")
            yield f"values-{place}-{number}", (texts, whole)


def _artists(axis: Axes) -> Iterator[tuple[Any, list[str], str]]:
    labels, errors = {}, {}
    for container in axis.containers:
        label = _label(container)
        if isinstance(container, ErrorbarContainer):
            line, _, bars = container.lines
            labels[line], errors[line] = label, [bar.get_segments() for bar in bars]
        elif isinstance(container, BarContainer):
            for bar in container.patches:
                across = bar.get_height() if container.orientation == "vertical" else bar.get_width()
                yield bar, [], _joined(label, f"{across:.4g}")
    for line in axis.lines:
        yield _of_line(axis, line, labels.get(line) or _label(line), errors.get(line, []))
    for points in axis.collections:
        if isinstance(points, PathCollection):
            label, places = _label(points), np.ma.filled(points.get_offsets(), math.nan)
            yield points, [_at(axis, label, x, y) for x, y in places if np.isfinite([x, y]).all()], label or "points"


def _of_line(axis: Axes, line: Line2D, label: str, errors: list[Any]) -> tuple[Line2D, list[str], str]:
    """Return a line with the texts of its markers, if it has any, and a text of its course."""
    values = np.column_stack([np.asarray(each, dtype=float) for each in line.get_data()])
    known = np.isfinite(values).all(axis=1)
    whole = label or "line"
    if known.any():
        (first, start), (last, end) = values[known][[0, -1]]
        course = f"{end:.4g}" if start == end else f"{start:.4g} to {end:.4g}"
        whole = _joined(label, f"{first:.4g}" if first == last else course)
    if line.get_marker() in ("None", "none", "", " ", None):
        return line, [], whole
    texts = []
    for place in np.flatnonzero(known):
        text = _at(axis, label, *values[place])
        for bar in (bar[place] for bar in errors if len(bar) == len(values)):
            along = np.ptp(bar, axis=0)  # of the axis that the bar of error is parallel to
            if along.any():
                low, high = bar[:, 1 if along[0] == 0 else 0]
                text += f" ({low:.4g} to {high:.4g})"
        texts.append(text)
    return line, texts, whole


def _at(axis: Axes, label: str, x: float, y: float) -> str:
    return _joined(label, _place(axis.yaxis, y), _place(axis.xaxis, x))


def _place(axis: Axis, value: float) -> str:
    """Return a value with the name of its axis, or the label of its row or column where that is no number."""
    locator = axis.get_major_locator()
    if isinstance(locator, FixedLocator):
        nearest = min(axis.get_majorticklocs(), key=lambda each: abs(each - value), default=math.inf)
        text = axis.get_major_formatter()(nearest) if abs(nearest - value) <= 0.5 else ""
        if text and not re.fullmatch(r"[-\d.,]+", text):
            return str(text).replace("\n", " ")
    name = axis.get_label_text().partition("\n")[0].rstrip(",")
    return f"{name} {value:.4g}".strip()


def _label(artist: Any) -> str:
    label = str(artist.get_label() or "")
    return "" if label.startswith("_") else label


def _joined(*texts: str) -> str:
    return ", ".join(text for text in texts if text)
