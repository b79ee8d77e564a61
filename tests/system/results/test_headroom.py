"""The page on the headroom says what the runs say."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from metapt.evaluation.headroom import REFERENCE, headroom
from metapt.evaluation.headroom_table import grids, read
from metapt.evaluation.statistics import estimate_mean

from .pages import FT, LINEAR, RESULTS, ROOT, text_of, words_of

HEADROOM = (RESULTS / "headroom.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_reads_the_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", HEADROOM, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 3
    monkeypatch.chdir(ROOT)
    exec(code, {})
    lowest, *_, highest = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines() if "." in line]
    assert (lowest, highest) == (pytest.approx(81.4, abs=0.1), pytest.approx(92.1, abs=0.1))


@pytest.mark.parametrize("path", sorted((RESULTS / "headroom").rglob("*.csv")), ids=lambda path: path.name)
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
    assert f"| {share.share:.0f} % (95 % interval {share.low:.0f} to {share.high:.0f}) |" in HEADROOM
    words = f"{gain.mean:.1f} ± {gain.standard_error:.1f} points (n = {gain.n}, 95 % interval {gain.low:.1f} to"
    assert words in HEADROOM


ROWS = {
    "permuted_50": "50 % of the tasks permuted",
    "permuted_90": "90 % of the tasks permuted",
    "full_access": "intact",
}
ROWS |= {FT: "FT of the whole network", LINEAR: "linear evaluation"}
"""The beginning of a row of a table of headrooms, by the setting of protein graphs or the evaluation."""


@pytest.mark.parametrize("name", ["ppi-3x16", "ppi-4x64", "ecg"])
def test_the_page_says_what_the_runs_of_a_headroom_say(name: str) -> None:
    for grid in grids(read([RESULTS / "headroom" / f"{name}.csv"])):
        found = headroom(grid)
        share, gain, validated = found.shares["settings"], found.gain, found.validated
        words = [
            f"{share.share:.0f} % ({share.low:.0f} to {share.high:.0f})",
            f"{gain.mean:.1f} ± {gain.standard_error:.1f} points",
            f"{gain.low:.1f} to {gain.high:.1f})",
            f"| {gain.visible(0):.1f} |",
            f"| {round(validated.mean, 1) + 0.0:.1f} ± {validated.standard_error:.1f} (",  # not -0.0
            f"({round(validated.low, 1) + 0.0:.1f} to {validated.high:.1f}) |",
            f"| {'yes' if gain.low > 0 else 'not shown'} |",
        ]
        row = ROWS[grid.cell["problem"].split()[-1] if name.startswith("ppi") else grid.cell["evaluation"]]
        lines = [line for line in HEADROOM.splitlines() if line.startswith(f"| {row}")]
        assert any(all(word in line for word in words) for line in lines), words


def test_the_page_says_how_far_settings_of_ecgs_are_from_the_reference_on_average() -> None:
    runs, page = pd.read_csv(RESULTS / "headroom" / "ecg.csv"), text_of("headroom.md")
    seeds = runs.groupby(["evaluation", "setting", "pretrain_seed"])["test"].mean().unstack("setting")
    gains = seeds.drop(columns=REFERENCE).mean(axis=1) - seeds[REFERENCE]
    assert f"on average by {words_of(gains[FT], interval=True).replace(' (', ' points (', 1)}" in page
    assert f"on average {words_of(-gains[LINEAR])} points worse than the reference" in page


def test_the_page_says_how_many_settings_of_ecgs_are_better_than_the_reference() -> None:
    runs = pd.read_csv(RESULTS / "headroom" / "ecg.csv")
    means = runs[runs["evaluation"] == "full_transfer"].groupby("setting")["test"].mean()
    better = (means.drop(REFERENCE) > means[REFERENCE]).sum()
    assert f"{better} of the 24 random settings are better" in HEADROOM


def test_the_page_says_how_the_settings_compare_on_the_larger_encoder_with_intact_labels() -> None:
    tables = {
        name: runs[runs["problem"].str.endswith("full_access")].groupby(["setting", "pretrain_seed"])["test"].mean()
        for name, runs in ((name, pd.read_csv(RESULTS / "headroom" / f"ppi-{name}.csv")) for name in ("3x16", "4x64"))
    }
    gains = {name: runs.drop(REFERENCE) - runs[REFERENCE] for name, runs in tables.items()}
    means = {name: each.groupby("setting").mean() for name, each in gains.items()}
    best = {each.idxmax() for each in means.values()}
    assert len(best) == 1, "The same setting is best with both encoders"
    page, (setting,) = text_of("headroom.md"), best
    found = words_of(gains["4x64"][setting], interval=True).replace(" (", " points (95 % interval ")
    assert f"it is {means['3x16'].max():.1f} points above equal weights with the small encoder, and {found}" in page
    order = means["3x16"].corr(means["4x64"], method="spearman")
    assert f"have a rank correlation of {order:.2f}" in page
    worse, worst = (means["4x64"] < 0).sum(), -means["4x64"].min()
    assert f"{worse} are worse than equal weights, the worst one by {worst:.1f} points" in page


def test_the_page_says_how_small_gains_with_permuted_labels_and_the_larger_encoder_are() -> None:
    page, found = text_of("headroom.md"), grids(read([RESULTS / "headroom" / "ppi-4x64.csv"]))
    half, most = (headroom(grid) for grid in found if "permuted" in grid.cell["problem"])
    assert f"could have seen a gain of {half.gain.visible(0):.1f} points" in page
    assert f"the 95 % interval of the gain ends at {most.gain.high:.1f} points" in page
    below = f"{-most.validated.mean:.1f} ± {most.validated.standard_error:.1f}"
    assert f"A choice by validation results ends {below} points below equal weights" in page


@pytest.mark.parametrize("labels", ["permuted_50", "permuted_90"])
def test_the_page_says_what_permuted_labels_do_with_the_larger_encoder(labels: str) -> None:
    page, tables = text_of("headroom.md"), {}
    for name in ("3x16", "4x64"):
        runs = pd.read_csv(RESULTS / "headroom" / f"ppi-{name}.csv")
        means = runs[runs["problem"].str.endswith(labels)].groupby(["setting", "pretrain_seed"])["test"].mean()
        tables[name] = means.drop(REFERENCE) - means[REFERENCE]
    worse, before = ((tables[name].groupby("setting").mean() < 0).sum() for name in ("4x64", "3x16"))
    settings = "All 24 random settings" if worse == 24 else f"{worse} of the 24 random settings"
    assert f"{settings} are worse than equal weights with this encoder, {before} with the small one" in page
    gains = tables["4x64"][tables["3x16"].groupby("setting").mean().idxmax()]
    side, gains = ("below", -gains) if gains.mean() < 0 else ("above", gains)
    found = words_of(gains, interval=True).replace(" (", " points (")
    assert f"is {found} {side} equal weights here (not planned)" in page


@pytest.mark.parametrize("path", sorted((RESULTS / "confirmation").glob("*.csv")), ids=lambda path: path.name)
def test_the_page_says_what_the_confirmation_says(path: Path) -> None:
    runs = pd.read_csv(path)
    assert sorted(set(runs["pretrain_seed"])) == [100, 101, 102, 103, 104]
    known = pd.read_csv(RESULTS / "headroom" / path.name)
    for cell, rows in runs.groupby(["problem", "evaluation"]):
        before = known[(known["problem"] == cell[0]) & (known["evaluation"] == cell[1])]
        best = before[before["setting"] != REFERENCE].groupby("setting")["test"].mean().idxmax()
        results = rows.groupby(["setting", "pretrain_seed"])["test"].mean()
        found = estimate_mean((results[best] - results[REFERENCE]).tolist())
        assert f"{found.mean:.1f} ± {found.standard_error:.1f} points" in text_of("headroom.md")
        words = f"(n = {found.n}, {{}}{found.low:.1f} to {found.high:.1f})"
        assert any(words.format(each) in text_of("headroom.md") for each in ("", "95 % interval "))
