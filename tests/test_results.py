"""The tables of runs in docs/results are what the page says, and its code reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from metapt.evaluation.agreement import SINGLE_RUNS
from metapt.evaluation.agreement_report import measured
from metapt.evaluation.headroom import REFERENCE, grids, headroom, read
from metapt.evaluation.tables import mean_and_error

RESULTS = Path(__file__).parents[1] / "docs" / "results"
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_reads_the_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 3
    monkeypatch.chdir(RESULTS.parents[1])
    exec(code, {})
    lowest, *_, highest = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines() if "." in line]
    assert (lowest, highest) == (pytest.approx(81.4, abs=0.1), pytest.approx(92.1, abs=0.1))


@pytest.mark.parametrize("path", sorted((RESULTS / "headroom").glob("*.csv")), ids=lambda path: path.name)
def test_all_settings_have_the_same_pt_seeds_and_the_reference_too(path: Path) -> None:
    runs = pd.read_csv(path)
    for _, cell in runs.groupby(["problem", "evaluation"]):
        seeds = {setting: sorted(set(rows["pretrain_seed"])) for setting, rows in cell.groupby("setting")}
        assert len(set(map(tuple, seeds.values()))) == 1
        assert REFERENCE in seeds


def test_the_page_says_what_the_runs_of_mnist_say() -> None:
    (grid,) = grids(read([RESULTS / "headroom" / "mnist.csv"]))
    found = headroom(grid)
    share, gain = found.shares["settings"], found.gain
    assert f"| {share.share:.0f} % (95 % interval {share.low:.0f} to {share.high:.0f}) |" in PAGE
    words = f"{gain.mean:.1f} ± {gain.standard_error:.1f} points (n = {gain.n}, 95 % interval {gain.low:.1f} to"
    assert words in PAGE


def test_the_page_says_what_the_estimates_of_mnist_say() -> None:
    runs, slopes = read([RESULTS / "headroom" / "mnist.csv"]), pd.read_csv(RESULTS / "estimators" / "mnist.csv")
    near = runs[(runs["mean"] - 45).abs() <= 45]
    names = {"secant": "secant of two runs", "linear fit to 6 runs": "linear fit to 6 random settings"}
    names |= {"Neumann 1, K = 1": "Neumann 1, K = 1 (the paper's)", SINGLE_RUNS: "the runs of one seed (ceiling)"}
    on_the_page = 0
    for each in measured(near, slopes, ()):
        back = {None: "whole run", 500: "500 (all)"}.get(each.horizon, each.horizon)
        signs = mean_and_error(each.signs.mean, each.signs.standard_error)
        cost = float(f"{each.cost:.2g}")
        on_the_page += f"| {names.get(each.estimator, each.estimator)} | {back} | {cost:g} | {signs} |" in PAGE
    assert on_the_page == 8
    assert slopes.groupby(["estimator", "horizon"], dropna=False).ngroups + 2 == 19


def test_the_page_says_what_the_runs_of_protein_graphs_say() -> None:
    for grid in grids(read([RESULTS / "headroom" / "ppi-3x16.csv"])):
        found = headroom(grid)
        share, gain, validated = found.shares["settings"], found.gain, found.validated
        words = [
            f"{share.share:.0f} % ({share.low:.0f} to {share.high:.0f})",
            f"{gain.mean:.1f} ± {gain.standard_error:.1f} points",
            f"{gain.low:.1f} to {gain.high:.1f})",
            f"| {validated.mean:.1f} ± {validated.standard_error:.1f} | {'yes' if gain.low > 0 else 'not shown'} |",
        ]
        assert any(all(word in line for word in words) for line in PAGE.splitlines()), words
