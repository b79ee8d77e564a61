"""Numbers on the pages of results are rendered from the CSV files beside them, or stand in a rendered table."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import image

from metapt.evaluation import figures

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PAGES = [path for path in sorted(RESULTS.glob("*.md")) if path.name != "changes.md"]
INTERVAL = re.compile(r"−?[\d.]+ \[−?[\d.]+, −?[\d.]+\]")
PINNED = f"matplotlib=={matplotlib.__version__}" in (ROOT / "constraints.txt").read_text().splitlines()


sys.path.insert(0, str(RESULTS))
POOLED, RENDER, DRAW = map(import_module, ("pooled", "render", "draw"))
sys.path.remove(str(RESULTS))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_rendering_changes_nothing(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert RENDER.rendered(text) == text, "run `python docs/results/render.py`"


def test_sentences_quote_intervals_of_the_tables() -> None:
    tables, sentences = set(), {}
    for page in (*PAGES, ROOT / "README.md"):
        text = page.read_text(encoding="utf-8")
        tables |= set(INTERVAL.findall("".join(re.findall(r"<!-- table:.*?<!-- end -->", text, re.DOTALL))))
        prose = " ".join(re.sub(r"<!-- table:.*?<!-- end -->", "", text, flags=re.DOTALL).split())
        sentences[str(page)] = set(INTERVAL.findall(prose))
    assert {page: found - tables for page, found in sentences.items() if found - tables} == {}


@pytest.mark.parametrize("name", ["ecg_full_access", "ppi_full_access", "further-seeds/ecg_full_access"])
def test_a_claim_is_what_its_runs_give(name: str) -> None:
    """Estimates by the same code from the raw runs are those that the workflow has written."""
    folder = name.split("/")[-1][:3]
    own = "further-seeds" if "further" in name else "full_access"
    files = [f"{folder}/{own}", f"{folder}/second-machine" + "-further-seeds" * ("further" in name)]
    for claim in pd.read_csv(RESULTS / "claims" / f"{name}.csv", keep_default_na=False).itertuples():
        if "gains more" in claim.claim:
            continue
        found = []
        for file in files:
            row: Any = pd.Series(claim._asdict() | {"metric": "test", "scale": "", "runs": file})
            table = POOLED.runs(file).index.droplevel("seed")
            if {(claim.evaluation, claim.arm), (claim.evaluation, claim.control)} <= set(table):
                found.append(POOLED.group(row, file))
        assert any(
            (each.n, each.mean) == (claim.n, pytest.approx(claim.mean, abs=1e-3))
            and (each.squares / (each.n - 1) / each.n) ** 0.5 == pytest.approx(claim.standard_error, abs=1e-3)
            for each in found
        ), claim.claim


def test_pooling_has_a_fixed_effect_of_the_machine() -> None:
    """The estimate is that of least squares on differences with one column for each machine, at their average."""
    rows = POOLED.COMPARISONS
    (index,) = rows.index[(rows["arm"] == "meta") & (rows["runs"].str.contains("permuted_50"))]
    found = POOLED.pooled(index)
    d = np.array(found.seeds)
    assert found.n == len(d) == 13
    assert found.estimate.mean == pytest.approx(d.mean())
    assert found.estimate.standard_error == pytest.approx(d.std(ddof=1) / len(d) ** 0.5)  # one machine
    two = POOLED.Group(2, 1.0, 0.5), POOLED.Group(3, -1.0, 1.5)
    both = POOLED.combined(two)
    assert (both.mean, both.n - 1) == (pytest.approx(-0.2), 3)
    assert both.standard_error == pytest.approx((2.0 / 3 / 5) ** 0.5)


def test_the_pages_are_short() -> None:
    words = {page.stem: len(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert words.pop("README") <= 700
    assert max(words[name] for name in ("ecg", "ppi", "mnist")) <= 1200
    assert sum(words.values()) <= 7300


def test_the_code_of_the_headroom_reads_the_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (RESULTS / "headroom.md").read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(ROOT)
    exec(code, {})
    lowest, *_, highest = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines() if "." in line]
    assert (lowest, highest) == (pytest.approx(81.4, abs=0.1), pytest.approx(92.1, abs=0.1))


@pytest.mark.parametrize("name", DRAW.FIGURES)
@pytest.mark.skipif(not PINNED, reason="another matplotlib than that of constraints.txt draws other pixels")
def test_a_figure_is_what_its_tables_give(name: str, tmp_path: Path) -> None:
    with figures.style():
        figures.save_png(DRAW.FIGURES[name](), tmp_path / "figure.png")
    new, kept = (image.imread(path) for path in (tmp_path / "figure.png", RESULTS / f"{name}.png"))
    assert new.shape == kept.shape
    assert float(np.abs(new - kept).mean()) < 1e-4, f"run `python docs/results/draw.py {name}`"


def test_each_figure_stands_on_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert {f"{name}.png" for name in (*DRAW.FIGURES, "ecg/views")} == set(re.findall(r"\]\(([\w/]+\.png)\)", text))
    kept = {path.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*.png")}
    assert kept == {f"{name}.png" for name in (*DRAW.FIGURES, "ecg/views")}
