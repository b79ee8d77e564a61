"""The figures are what their tables give, and show all of them."""

from __future__ import annotations

import runpy
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import image

from metapt.evaluation import figures

from .pages import FT, RESULTS, ROOT, by_seed

DRAW = runpy.run_path(str(RESULTS / "draw.py"))
PINNED = f"matplotlib=={matplotlib.__version__}" in (ROOT / "constraints.txt").read_text().splitlines()


@pytest.mark.parametrize("name", DRAW["FIGURES"])
@pytest.mark.skipif(not PINNED, reason="another matplotlib than that of constraints.txt draws other pixels")
def test_a_figure_is_what_its_tables_give(name: str, tmp_path: Path) -> None:
    with figures.style():
        figures.save_png(DRAW["FIGURES"][name](), tmp_path / "figure.png")
    new, kept = (image.imread(path) for path in (tmp_path / "figure.png", RESULTS / f"{name}.png"))
    assert new.shape == kept.shape
    assert float(np.abs(new - kept).mean()) < 1e-4, f"run `python docs/results/draw.py {name}`"


def test_the_figure_of_gains_has_a_mark_for_each_row_of_its_table() -> None:
    rows, axes = pd.read_csv(RESULTS / "gains.csv"), DRAW["gains"]().axes
    ways = list(rows["what"].unique())
    shown = {
        (problem, x, y, line.get_markerfacecolor() != "white")
        for problem, axis in zip(rows["problem"].unique(), axes, strict=True)
        for line in axis.lines
        if line.get_marker() != "None"
        for x, y in line.get_xydata()
    }
    assert shown == {(row.problem, row.mean, ways.index(row.what), row.tested) for row in rows.itertuples()}


def test_the_figure_of_arms_shows_levels_beside_differences_to_the_start() -> None:
    levels, gains, *_ = DRAW["arms"]("ecg/full_access").axes
    names = [label.get_text() for label in levels.get_yticklabels()]
    means = by_seed("ecg/full_access")[FT].groupby("arm").mean()
    place = names.index("meta (K = 1)")
    drawn = [{round(y, 1): x for line in axis.lines for x, y in line.get_xydata()} for axis in (levels, gains)]
    assert drawn[0][place] == pytest.approx(means["meta"])
    assert drawn[0][place + 0.3] == 81.7, "the paper's"
    assert drawn[1][place] == pytest.approx(means["meta"] - means["simclr"])


def test_a_figure_that_is_not_there_is_refused_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["draw.py", "mnist"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(RESULTS / "draw.py"), run_name="__main__")
    assert "there is no figure 'mnist'; there are gains, headroom/mnist" in " ".join(capsys.readouterr().err.split())
