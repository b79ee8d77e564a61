"""The pages say what the tables of claims say."""

from __future__ import annotations

from math import log10
from pathlib import Path

import pandas as pd
import pytest

from metapt.domains.mnist.quantities import WALL_TIME
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, LEAST_SEEDS
from metapt.evaluation.tables import mean_and_error

from .pages import FT, RESULTS, by_seed, text_of, words_of


def test_the_pages_say_that_simclr_against_no_pt_is_open_with_all_claims() -> None:
    page, summary = text_of("ecg.md"), text_of("README.md")
    claims = pd.read_csv(RESULTS / "claims" / "ecg_full_access.csv")
    (row,) = claims.query("arm == 'simclr' and control == 'no_pt' and evaluation == 'full_transfer'").itertuples()
    assert len(claims) == 22
    assert f"adjusted p-value of {row.adjusted_p_value:.2g} with all 22 claims" in summary
    smaller = (claims["p_value"] < row.p_value).sum()
    last, late = (
        claims["arm"].eq("run_search"),
        claims["arm"].eq("meta-released") | claims["control"].eq("random_search"),
    )
    assert claims[late]["p_value"].min() > row.p_value
    assert (claims[last]["p_value"] < row.p_value).sum() == 1
    then, before, without = (row.p_value * (count - (smaller - 1)) for count in (14, 16, 18))
    now = row.p_value * (22 - smaller)
    assert now == pytest.approx(row.adjusted_p_value)
    words = (
        f"{then:.2g}, reproduced | {before:.4f}, inconclusive | {without:.2g}, inconclusive | {now:.2g}, inconclusive |"
    )
    assert f"| adjusted p-value | {words}" in page
    first, later = by_seed("ecg/full_access"), by_seed("ecg/further-seeds")
    gains = pd.concat([each[FT, "simclr"] - each[FT, "no_pt"] for each in (first, later)])
    words = words_of(gains, interval=True)
    assert f"over all 17 it is {words[:-1].replace(' (', ' points (')}), 16 of them positive" in page
    assert ((gains > 0).sum(), len(gains)) == (16, 17)


CLAIMS = sorted((RESULTS / "claims").glob("*.csv"))


def cell(claim: str) -> str:
    """Return a claim as it stands in a table of Markdown, where the bars of |D_FT| are escaped."""
    return claim.replace("|", r"\|")


@pytest.mark.parametrize("path", CLAIMS, ids=lambda path: path.stem)
def test_the_pages_say_what_the_claims_say(path: Path) -> None:
    page, summary = ((RESULTS / name).read_text() for name in (f"{path.stem.partition('_')[0]}.md", "README.md"))
    for row in pd.read_csv(path).itertuples():
        claim = cell(row.claim)
        assert f"| {claim} | {row.measured} | {row.criterion} | {row.paper} | **{row.verdict}** |" in page
        listed = f"| {claim} | {row.measured} | {row.criterion} | {row.paper} | {row.verdict} |" in summary
        assert listed == (row.paper != BEYOND_THE_PAPER)
        assert row.n >= LEAST_SEEDS


DECIDED = ("reproduced", "not reproduced")
TO_CONFIRM = [path for path in CLAIMS if pd.read_csv(path)["verdict"].isin(DECIDED).any()]


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
    again_in = path.parent / "further-seeds" / path.name
    first, further = (pd.read_csv(each).set_index("claim") for each in (path, again_in))
    for claim, row in first[first["verdict"].isin(DECIDED)].iterrows():
        if (path.stem, row["metric"]) == ("mnist_bptt", WALL_TIME):
            assert "The two decided claims on wall time were not repeated" in " ".join(page.split())
            continue
        again = further.loc[claim]
        assert again["n"] == 5
        numbers = [mean_and_error(each["mean"], each["standard_error"]) for each in (row, again)]
        same = "yes" if holds(row["mean"], row["criterion"]) == holds(again["mean"], row["criterion"]) else "no"
        assert f"| {cell(claim)} | {row['criterion']} | {numbers[0]} | {numbers[1]} | {same} |" in page
