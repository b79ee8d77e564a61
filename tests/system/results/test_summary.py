"""The summary of the results says what the tables of runs say; differences between arms are tested beside."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from metapt.evaluation.headroom import REFERENCE, headroom
from metapt.evaluation.headroom_table import grids, read
from metapt.evaluation.tables import mean_and_error

from .pages import FT, LINEAR, RESULTS, answers_of_the_summary, by_seed, gain, text_of, words_of

SECOND, INTACT, LEARNERS = "ecg/second-machine", "ppi/second-machine", "ppi/learner-second-machine"
SUPERVISED, TEMPERATURES = "graph_supervised", "temperature_search-random"
ECG = {
    "the paper's learner": ("ecg/full_access", "meta", "simclr"),
    "with the released code's choices": (SECOND, "meta-released", "simclr-released"),
    "the changed learner": ("ecg/full_access", "meta-stable", "meta-stable-start"),
    "five strengths, short PT runs": (SECOND, "random_search", "simclr"),
    "search of temperature or weights": (SECOND, "temperature_search", "simclr"),
    "random temperatures or weights": (SECOND, TEMPERATURES, "simclr"),
    "search of the warp's strength": (SECOND, "run_search", "simclr"),
    "random strengths of the warp": (SECOND, "run_search-random", "simclr"),
    "one smooth, mild warp": ("ecg/full_access", "simclr-mild", "simclr"),
    "one low temperature": (SECOND, "simclr-low_temperature", "simclr"),
}
GRAPHS = {
    ("intact labels", "the paper's learner"): ("ppi/full_access", "meta", SUPERVISED),
    ("intact labels", "with the released code's choices"): (
        "ppi/full_access",
        "meta-released",
        f"{SUPERVISED}-released",
    ),
    ("intact labels", "the changed learner"): (INTACT, "meta-stable", SUPERVISED),
} | {
    (f"{half} % permuted", what): (f"{table}:permuted_{half}", arm, SUPERVISED)
    for half in (50, 90)
    for what, table, arm in (
        ("the paper's learner", LEARNERS, "meta"),
        ("the changed learner", LEARNERS, "meta-stable"),
        ("search of temperature or weights", "ppi/learner", "group_search"),
        ("random temperatures or weights", "ppi/learner", "group_search-random"),
    )
}
BEST = {
    "ECGs, FT": ("ecg", "ecg width 8", FT), "ECGs, linear evaluation": ("ecg", "ecg width 8", LINEAR),
    "protein graphs, intact labels": ("ppi-4x64", "ppi 4x64 full_access", LINEAR),
    **{f"protein graphs, {half} % permuted": ("ppi-3x16", f"ppi 3x16 permuted_{half}", LINEAR) for half in (50, 90)},
}  # fmt: skip
GAINS = pd.read_csv(RESULTS / "gains.csv")


@pytest.mark.parametrize("row", list(GAINS.itertuples(index=False)), ids=lambda row: f"{row.problem}: {row.what}")
def test_the_table_of_gains_is_that_of_the_runs(row: object) -> None:
    problem, what, n, mean, low, high = (getattr(row, name) for name in ("problem", "what", "n", "mean", "low", "high"))
    if what == "best of 24 settings":
        table, *cell = BEST[problem]
        runs = grids(read([RESULTS / "headroom" / f"{table}.csv"]))
        (found,) = (headroom(grid).gain for grid in runs if [grid.cell["problem"], grid.cell["evaluation"]] == cell)
        assert (found.n, found.mean, found.low, found.high) == pytest.approx((n, mean, low, high), abs=1e-4)
        return
    domain, _, rest = problem.partition(", ")
    runs = ECG[what] if domain == "ECGs" else GRAPHS[rest, what]
    values = gain(*runs, FT if rest == "FT" else LINEAR)
    assert (len(values), values.mean()) == pytest.approx((n, mean), abs=1e-4)
    assert words_of(values, interval=True).endswith(f"({low:.1f} to {high:.1f})")


def test_the_table_of_answers_says_what_the_numbers_below_it_say() -> None:
    rows = re.findall(r"^\| \[(.*)\]\(#\S*\) \|(.*)\|$", (RESULTS / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == 8
    for question, cells in rows:
        for short, long in zip(cells.split("|"), answers_of_the_summary(question), strict=True):
            assert long.lower().startswith(" ".join(re.findall(r"\w+", short)[:2])), question


@pytest.mark.parametrize(("place", "name"), [(0, "mnist"), (1, "ecg"), (2, "ppi-3x16"), (2, "ppi-4x64")])
def test_the_summary_says_what_the_headroom_and_its_confirmation_say(place: int, name: str) -> None:
    text, known = (
        answers_of_the_summary("Can other hyperparameters gain?")[place],
        read([RESULTS / f"headroom/{name}.csv"]),
    )
    for grid in grids(known):
        found = headroom(grid).gain
        assert f"{found.mean:.1f} ± {found.standard_error:.1f}" in text
        if name in ("ecg", "ppi-4x64") or found.low < 0:
            assert f"{found.low:.1f} to {found.high:.1f})" in text
    runs = pd.read_csv(RESULTS / "confirmation" / f"{name}.csv")
    for (problem, evaluation), rows in runs.groupby(["problem", "evaluation"]):
        before = known[(known["problem"] == problem) & (known["evaluation"] == evaluation)]
        best = before[before["setting"] != REFERENCE].groupby("setting")["test"].mean().idxmax()
        results = rows.groupby(["setting", "pretrain_seed"])["test"].mean()
        assert words_of(results[best] - results[REFERENCE]) in text.partition("further")[2]


def test_the_summary_says_what_random_choices_gain_and_the_levels() -> None:
    page, found = text_of("README.md"), list(map(headroom, grids(read([RESULTS / "headroom" / "ppi-4x64.csv"]))))
    by_labels = {each.grid.cell["problem"].split()[-1]: each.validated for each in found}
    intact, half, most = (
        f"{by_labels[each].mean:.1f} ± {by_labels[each].standard_error:.1f}"
        for each in ("full_access", "permuted_50", "permuted_90")
    )
    assert f"they were not above it: {intact} with intact labels, {half} and {most} with permuted ones." in page
    levels = by_seed("ecg/full_access")[FT].groupby("arm").mean()[["no_pt", "simclr", "meta"]]
    assert "{:.1f} without PT, {:.1f} with SimCLR and {:.1f} with the learned warp".format(*levels) in page
    row = pd.read_csv(RESULTS / "claims" / "mnist_rotation_mean.csv").set_index("arm").loc["meta-shared"]
    words = f"{mean_and_error(row['mean'], row['standard_error'])} degrees off (n = {row['n']})"
    assert words in answers_of_the_summary("Does the paper's learner gain over its start?")[0]
