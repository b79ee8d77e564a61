"""Figures: each kind is drawn in both formats, to equal bytes, and without global state of matplotlib."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from metapt.evaluation import figures, page
from metapt.evaluation.figures import looks

STEPS = np.arange(0, 50, 5)
NAN = float("nan")


def trajectories() -> Figure:
    bands = {}
    for start in (0, 90):
        centre = 45 + (start - 45) * np.exp(-STEPS / 10)
        columns = {"step": STEPS, "lower": centre - 5, "centre": centre, "upper": centre + 5}
        bands[f"from {start}"] = pd.DataFrame(columns)
    figure, (axis,) = figures.panels()
    figures.trajectories(axis, bands, "meta-updates", (30, 45, 60))
    return figure


def bars_with_error() -> Figure:
    ours = pd.DataFrame({"label": ["meta", "bptt"], "mean": [87.4, 88.1], "standard_error": [0.3, NAN]})
    papers = pd.DataFrame({"label": ["bptt", "initial"], "mean": [88.0, 80.1], "standard_error": NAN})
    return figures.bars_with_error(ours, papers, xlabel="FT test accuracy (%)")


@pytest.mark.parametrize("draw", [trajectories, bars_with_error])
def test_equal_figures_give_equal_bytes_whatever_the_user_has_set(tmp_path: Path, draw: Callable[[], Figure]) -> None:
    figures.save(draw(), tmp_path / "first")
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False}):
        before = dict(matplotlib.rcParams)
        figures.save(draw(), tmp_path / "second.v2")
        assert dict(matplotlib.rcParams) == before
    for ending in ("svg", "png"):
        first = (tmp_path / f"first.{ending}").read_bytes()
        assert len(first) > 1000
        assert first == (tmp_path / f"second.v2.{ending}").read_bytes()
    assert b"<dc:date>" not in (tmp_path / "first.svg").read_bytes()
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a", ["a.png", "a.svg"]),
        ("a.svg", ["a.png", "a.svg"]),
        ("a.PNG", ["a.png", "a.svg"]),
        ("a.v2", ["a.v2.png", "a.v2.svg"]),
        ("a.png.pdf", ["a.png.pdf"]),
    ],
)
def test_an_ending_says_the_kind_of_picture_and_is_not_doubled(tmp_path: Path, name: str, written: list[str]) -> None:
    figures.save_as(Figure(), tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == written
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for each in written:
        assert (tmp_path / each).read_bytes().startswith(begins[each.rpartition(".")[2]])


def test_a_trajectory_has_a_target_with_its_limits() -> None:
    (axis,) = trajectories().axes
    assert axis.get_xlabel() == "meta-updates"
    assert [line.get_linestyle() for line in axis.lines] == ["-", "-", "--", ":", ":"]
    ends = [float(line.get_ydata()[-1]) for line in axis.lines]
    assert ends == pytest.approx([44.5, 45.5, 45, 30, 60], abs=1e-3)
    assert axis.get_legend() is not None


def test_a_figure_inside_a_page_has_its_own_ids_and_the_pages_colours(tmp_path: Path) -> None:
    figures.save(bars_with_error(), tmp_path / "bars")
    found = page.figure_inside(tmp_path / "bars.svg", "ecg", {figures.INK: "ink", "#ffffff": "paper"})
    assert set(re.findall(r'\bid="(\w+)-', found)) == set(re.findall(r'href="#(\w+)-', found)) == {"ecg"}
    assert set(re.findall(r"url\(#(\w+)-", found)) == {"ecg"}
    assert set(re.findall(r"var\(--(\w+)", found)) == {"ink", "paper", "keep"}
    assert "color-mix(in srgb, #0072b2 var(--keep), white)" in found
    assert "<style" not in found
    assert "min-width: 354px" in found


def test_bars_have_a_legend_with_papers_only_and_may_not_be_finite(tmp_path: Path) -> None:
    assert [text.get_text() for text in bars_with_error().axes[0].get_yticklabels()] == ["meta", "bptt", "initial"]
    ours = pd.DataFrame({"label": list("abc"), "mean": [70.0, NAN, float("inf")], "standard_error": [1.5, NAN, 1.0]})
    drawn = figures.bars_with_error(ours, xlabel="AUROC")
    (axis,) = drawn.axes
    assert axis.get_legend_handles_labels()[1] == []
    figures.save(drawn, tmp_path / "not_finite")


def test_a_histogram_is_in_per_cent() -> None:
    _, (axis,) = figures.panels()
    figures.histogram(axis, np.linspace(0, 1, 7), [0.0, 0.5, 1.0], "w", "red")
    assert [bar.get_height() for bar in axis.containers[0]] == pytest.approx([300 / 7, 400 / 7])


def test_panels_get_one_range_and_one_legend() -> None:
    figure, axes = figures.panels(2)
    for axis, (low, high) in zip(axes, ((0, 1), (5, 9)), strict=True):
        axis.plot([0, 1], [low, high], label="meta")
        axis.plot([0, 1], [low, low], label=f"from {low}")
        axis.legend()
    figures.same_range(axes, "y")
    assert axes[0].get_ylim() == axes[1].get_ylim()
    assert axes[0].get_ylim()[0] <= 0 < 9 <= axes[0].get_ylim()[1]
    figures.legend_above(figure, axes)
    assert [axis.get_legend() for axis in axes] == [None, None]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["meta", "from 0", "from 5"]


def test_a_legend_of_many_labels_fits_above_the_panels() -> None:
    drawn, [axis] = figures.panels()
    for number in range(9):
        axis.plot([0, 1], [0, number], label=f"a rather long label, {number}")
    figures.legend_above(drawn, [axis])
    [legend] = drawn.legends
    assert 0 < legend.get_window_extent().width <= drawn.bbox.width
    assert len(legend.get_texts()) == 9


@pytest.mark.parametrize(
    ("low", "high", "labels"), [(1.5, 60, ["2", "5", "10", "20", "50"]), (0.5, 2000, ["1", "10", "100", "1000"])]
)
def test_logarithmic_axes_have_plain_ticks(low: float, high: float, labels: list[str]) -> None:
    _, (axis,) = figures.panels()
    axis.set(yscale="log", ylim=(low, high))
    figures.plain_log_ticks(axis.yaxis)
    assert [f"{t:g}" for t in axis.get_yticks() if low <= t <= high] == labels
    assert axis.yaxis.get_major_formatter()(20.0) == "20"


def test_the_ramp_gets_lighter_and_fewer_than_three_points_are_not_joined() -> None:
    channels = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in figures.ramp(5)]
    lightness = [0.3 * red + 0.6 * green + 0.1 * blue for red, green, blue in channels]
    assert lightness == sorted(set(lightness))
    assert len(figures.ramp(1)) == 1
    assert [figures.line_style([0.0] * count) for count in (2, 3)] == ["none", "-"]


def test_an_unknown_arm_has_a_marker_of_its_place_a_line_of_its_own_and_a_colour_that_is_left() -> None:
    known = {"meta": (1, 2, "-")}
    found = looks({"meta": "Meta", "own_arm": "own arm", "other": "other"}, known)
    assert found["meta"] == ("Meta", figures.colour(1), figures.MARKERS[2], "-")
    assert found["own_arm"] == ("own arm", figures.colour(2), figures.MARKERS[1], "-.")
    assert found["other"] == ("other", figures.colour(3), figures.MARKERS[2], "-.")
