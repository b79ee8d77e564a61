"""Figures: each kind is drawn in both formats, to equal bytes, and without global state of matplotlib."""

import matplotlib
import numpy as np
import pandas as pd
import pytest

from metapt.evaluation import figures

STEPS = np.arange(0, 50, 5)
NAN = float("nan")


def learned(start):
    centre = 45 + (start - 45) * np.exp(-STEPS / 10)
    return pd.DataFrame({"step": STEPS, "lower": centre - 5, "centre": centre, "upper": centre + 5})


def trajectories():
    bands = {"from 0": learned(0), "from 90": learned(90)}
    figure, (axis,) = figures.panels()
    figures.trajectories(axis, bands, "meta-updates", (30, 45, 60))
    axis.set_ylabel("rotation (degrees)")
    return figure


def distributions():
    generator = np.random.default_rng(0)
    groups = {"clean": generator.beta(6, 3, 300), "noisy": generator.beta(1, 8, 100)}
    figure, (axis,) = figures.panels()
    figures.distributions(axis, groups, "weight")
    axis.set_ylabel("share (%)")
    return figure


def lines_with_error():
    rows = [
        (terms, arm, 1 - 0.5 ** (terms + 1), e)
        for arm, e in (("K = 0", 0.1), ("K = 1", NAN))
        for terms in (20, 0, 1, 5)
    ]
    table = pd.DataFrame(rows, columns=["terms", "label", "mean", "standard_error"])
    figure, (axis,) = figures.panels()
    figures.lines_with_error(axis, table, "terms", "Neumann terms", "cosine", xscale="symlog")
    return figure


def bars_with_error():
    ours = pd.DataFrame({"label": ["meta", "bptt"], "mean": [87.4, 88.1], "standard_error": [0.3, NAN]})
    papers = pd.DataFrame({"label": ["bptt", "initial"], "mean": [88.0, 80.1], "standard_error": NAN})
    return figures.bars_with_error(ours, papers, xlabel="FT test accuracy (%)")


KINDS = [trajectories, distributions, lines_with_error, bars_with_error]


@pytest.mark.parametrize("draw", KINDS)
def test_equal_figures_give_equal_bytes(tmp_path, draw):
    for stem in ("first", "second.v2"):
        figures.save(draw(), tmp_path / stem)
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
        ("a.png", ["a.png", "a.svg"]),
        ("a.svg", ["a.png", "a.svg"]),
        ("a.PNG", ["a.png", "a.svg"]),
        ("a.pdf", ["a.pdf"]),
        ("a.v2", ["a.v2.png", "a.v2.svg"]),
        ("a.v2.png", ["a.v2.png", "a.v2.svg"]),
        ("a.png.pdf", ["a.png.pdf"]),
    ],
)
def test_an_ending_says_the_kind_of_picture_and_is_not_doubled(tmp_path, name, written):
    figures.save_as(trajectories(), tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == written
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for each in written:
        assert (tmp_path / each).read_bytes().startswith(begins[each.rpartition(".")[2]])


@pytest.mark.parametrize("draw", KINDS)
def test_the_users_settings_neither_matter_nor_change(tmp_path, draw):
    figures.save(draw(), tmp_path / "plain")
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False}):
        before = dict(matplotlib.rcParams)
        figures.save(draw(), tmp_path / "other")
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "plain.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


@pytest.mark.parametrize("draw", KINDS)
def test_axes_are_labelled(draw):
    axis = draw().axes[0]
    assert axis.get_xlabel()
    assert axis.get_ylabel() or [t.get_text() for t in axis.get_yticklabels()] == ["meta", "bptt", "initial"]


def test_a_bar_ends_one_standard_error_from_the_mean():
    ours = pd.DataFrame({"label": ["meta"], "mean": [70.0], "standard_error": [1.5]})
    (axis,) = figures.bars_with_error(ours, xlabel="AUROC").axes
    [[[left, _], [right, _]]] = axis.containers[0].lines[2][0].get_segments()
    assert (left, right) == (68.5, 71.5)


def test_numbers_that_are_not_finite_can_be_drawn(tmp_path):
    ours = pd.DataFrame({"label": list("abc"), "mean": [NAN, 3.0, float("inf")], "standard_error": [NAN, NAN, 1.0]})
    figures.save(figures.bars_with_error(ours, xlabel="ratio"), tmp_path / "figure")


def test_a_target_is_a_dashed_line():
    _, (axis,) = figures.panels()
    figures.trajectories(axis, {"meta": learned(0)}, "x", target=45.0)
    assert [line.get_linestyle() for line in axis.lines if line.get_label() == "target"] == ["--"]


def test_band_over_replicates():
    rows = [(r, step, name, 10.0 * r + step) for r in range(11) for step in (0, 1) for name in ("mean", "deviation")]
    frame = figures.over_replicates(pd.DataFrame(rows, columns=["replicate", "step", "name", "value"]), "mean")
    assert frame.columns.tolist() == ["step", "lower", "centre", "upper"]
    assert frame.to_numpy().tolist() == [[0, 10, 50, 90], [1, 11, 51, 91]]


def test_a_band_has_a_gap_where_a_replicate_has_diverged():
    series = pd.DataFrame(
        {"replicate": [0, 1, 0, 1], "step": [0, 0, 1, 1], "name": "mean", "value": [1.0, 2.0, 3.0, NAN]}
    )
    assert figures.over_replicates(series, "mean")["centre"].isna().tolist() == [False, True]


def test_shares_of_each_group_add_up_to_100():
    groups = {"few": [0.1, 0.2, 0.9], "many": np.linspace(0, 1, 50)}  # with a zero, which has no logarithm
    _, (axis,) = figures.panels()
    figures.distributions(axis, groups, "weight")
    heights = [sum(bar.get_height() for bar in bars) for bars in axis.containers if len(bars) > 1]
    assert heights == pytest.approx([100, 100])


def test_panels_get_one_range_and_one_legend():
    figure, axes = figures.panels(2)
    for axis, (low, high) in zip(axes, ((0, 1), (5, 9)), strict=True):
        axis.plot([0, 1], [low, high], label="meta")
        axis.plot([0, 1], [low, low], label=f"from {low}")
        axis.legend()
    figures.same_range(axes, "y")
    assert axes[0].get_ylim() == axes[1].get_ylim()
    assert axes[0].get_ylim()[0] <= 0
    assert axes[0].get_ylim()[1] >= 9
    figures.legend_above(figure, axes)
    assert [axis.get_legend() for axis in axes] == [None, None]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["meta", "from 0", "from 5"]


@pytest.mark.parametrize(
    ("low", "high", "labels"), [(1.5, 60, ["2", "5", "10", "20", "50"]), (0.5, 2000, ["1", "10", "100", "1000"])]
)
def test_logarithmic_axes_have_plain_ticks(low, high, labels):
    _, (axis,) = figures.panels()
    axis.set(yscale="log", ylim=(low, high))
    figures.plain_log_ticks(axis.yaxis)
    assert [f"{t:g}" for t in axis.get_yticks() if low <= t <= high] == labels
    assert axis.yaxis.get_major_formatter()(20.0) == "20"


def test_the_ramp_gets_lighter():
    channels = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in figures.ramp(5)]
    lightness = [0.3 * red + 0.6 * green + 0.1 * blue for red, green, blue in channels]
    assert lightness == sorted(lightness)
    assert len(set(figures.ramp(5))) == 5
    assert len(figures.ramp(1)) == 1


def test_fewer_than_three_points_are_not_joined() -> None:
    table = pd.DataFrame({"x": [1, 2, 1, 2, 3], "label": list("aabbb"), "mean": 1.0, "standard_error": 0.1})
    _, [axis] = figures.panels()
    figures.lines_with_error(axis, table, "x", "x")
    assert [line.get_linestyle() for line in axis.lines] == ["None", "-"]


def test_numbers_without_others_beside_them_have_no_legend() -> None:
    table = pd.DataFrame({"label": ["a", "b"], "mean": [1.0, 2.0], "standard_error": 0.1})
    drawn = figures.bars_with_error(table, xlabel="x")
    assert drawn.axes[0].get_legend_handles_labels()[1] == []


def test_a_legend_of_many_labels_fits_above_the_panels() -> None:
    drawn, [axis] = figures.panels()
    for number in range(9):
        axis.plot([0, 1], [0, number], label=f"a rather long label, {number}")
    figures.legend_above(drawn, [axis])
    [legend] = drawn.legends
    assert 0 < legend.get_window_extent().width <= drawn.bbox.width
    assert len(legend.get_texts()) == 9
