"""The tables of claims say what the FT runs say, and the pages say what the tables of claims say."""

from __future__ import annotations

from math import log10
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from metapt.domains.mnist.quantities import WALL_TIME
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, LEAST_SEEDS
from metapt.evaluation.statistics import estimate_mean, holm
from metapt.evaluation.tables import mean_and_error

from .pages import FT, RESULTS, by_seed, text_of

CLAIMS = sorted((RESULTS / "claims").glob("*.csv"))
DECIDED = ("reproduced", "not reproduced")
TO_CONFIRM = [path for path in CLAIMS if pd.read_csv(path)["verdict"].isin(DECIDED).any()]
RUNS = {
    "ecg_full_access.csv": (22, ["ecg/full_access", "ecg/second-machine"]),
    "ppi_full_access.csv": (30, ["ppi/full_access", "ppi/second-machine"]),
    "further-seeds/ecg_full_access.csv": (8, ["ecg/further-seeds", "ecg/second-machine-further-seeds"]),
    **{f"ppi_{name}.csv": (6, [f"ppi/learner:{name}", f"ppi/learner-second-machine:{name}"])
       for name in ("permuted_50", "permuted_90")},
    **{f"further-seeds/ppi_{name}.csv": (3, [f"ppi/learner-further-seeds:{name}"])
       for name in ("permuted_50", "permuted_90")},
}  # fmt: skip
"""Table of claims -> the number of them that compare two arms, and the tables of FT runs, one for each machine."""


@pytest.mark.parametrize("name", RUNS)
def test_claims_are_those_of_the_runs(name: str) -> None:
    claims, compared = pd.read_csv(RESULTS / "claims" / name), 0
    assert claims["adjusted_p_value"].tolist() == pytest.approx(holm(claims["p_value"].tolist()))
    for row in claims[~claims["claim"].str.contains("gains more")].itertuples():
        for seeds in map(by_seed, RUNS[name][1]):
            if {(row.evaluation, row.arm), (row.evaluation, row.control)} <= set(seeds.index.droplevel(-1)):
                found = estimate_mean((seeds[row.evaluation, row.arm] - seeds[row.evaluation, row.control]).tolist())
                for quantity in ("mean", "standard_error", "low", "high"):
                    assert getattr(found, quantity) == pytest.approx(getattr(row, quantity), abs=1e-3)
                failed = "but it is not shown that" in row.measured
                assert (found.n, row.verdict) == (row.n, "control failed" if failed else verdict(row))
                compared += 1
    assert compared == RUNS[name][0]


def verdict(row: Any) -> str:
    """Return the verdict on a difference, as docs/runs-and-files.md defines it."""
    if row.adjusted_p_value > 0.05:
        return "inconclusive"
    return "reproduced" if row.mean > 0 else "not reproduced"


def cell(claim: str) -> str:
    """Return a claim as it stands in a table of Markdown, where the bars of |D_FT| are escaped."""
    return claim.replace("|", r"\|")


@pytest.mark.parametrize("path", CLAIMS, ids=lambda path: path.stem)
def test_the_pages_say_what_the_claims_say(path: Path) -> None:
    page, summary = ((RESULTS / name).read_text() for name in (f"{path.stem.partition('_')[0]}.md", "README.md"))
    for row in pd.read_csv(path).itertuples():
        line = f"| {cell(row.claim)} | {row.measured} | {row.criterion} | {row.paper} |"
        assert f"{line} **{row.verdict}** |" in page
        assert (f"{line} {row.verdict} |" in summary) == (row.paper != BEYOND_THE_PAPER)
        assert row.n >= LEAST_SEEDS


def holds(mean: float, criterion: str) -> bool:
    """Return whether a mean meets a criterion, which is in the words of the claims; that of a ratio is a logarithm."""
    words = criterion.removeprefix("difference ").split()
    bound = float(words[-1])
    if words[0] == "ratio":
        words, bound = words[1:], log10(bound)
    match words[:-1]:
        case ["at", "least"]:
            return mean >= bound
        case ["at", "most"]:
            return mean <= bound
        case ["within", tolerance, "of"]:
            return abs(mean - bound) <= float(tolerance)
    raise ValueError(criterion)


@pytest.mark.parametrize("path", TO_CONFIRM, ids=lambda path: path.stem)
def test_the_pages_say_which_decided_claims_hold_with_five_further_seeds(path: Path) -> None:
    page = (RESULTS / f"{path.stem.partition('_')[0]}.md").read_text()
    first, further = (
        pd.read_csv(each).set_index("claim") for each in (path, path.parent / "further-seeds" / path.name)
    )
    for claim, row in first[first["verdict"].isin(DECIDED)].iterrows():
        if (path.stem, row["metric"]) == ("mnist_bptt", WALL_TIME):
            continue  # these were not repeated, as the page says
        again = further.loc[claim]
        assert again["n"] == 5
        numbers = [mean_and_error(each["mean"], each["standard_error"]) for each in (row, again)]
        same = "yes" if holds(row["mean"], row["criterion"]) == holds(again["mean"], row["criterion"]) else "no"
        assert f"| {cell(claim)} | {row['criterion']} | {numbers[0]} | {numbers[1]} | {same} |" in page


def test_the_pages_say_what_the_correction_for_the_number_of_claims_does() -> None:
    page, claims = text_of("ecg.md"), pd.read_csv(RESULTS / "claims" / "ecg_full_access.csv")
    adjusted = claims.set_index(["arm", "control", "evaluation"])["adjusted_p_value"]
    words = "{:.2g} (`meta` in FT of the whole network), {:.2g} (`temperature_search` in linear evaluation) and {:.2g}"
    arms = (("meta", FT), ("temperature_search", "linear_evaluation"), ("run_search", FT))
    assert words.format(*(adjusted[arm, "simclr", evaluation] for arm, evaluation in arms)) in page
    own = claims.query("arm == 'simclr' and control == 'no_pt' and evaluation == 'full_transfer'").iloc[0]
    smaller = (claims["p_value"] < own["p_value"]).sum()
    then = [own["p_value"] * (count - smaller + 1) for count in (14, 16, 18)]
    line = "{:.2g}, reproduced | {:.4f}, inconclusive | {:.2g}, inconclusive | {:.2g}, inconclusive |"
    assert line.format(*then, own["p_value"] * (22 - smaller)) in page
    assert f"adjusted p-value of {own['adjusted_p_value']:.2g} with all 22 claims" in text_of("README.md")
