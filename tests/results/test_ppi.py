"""The page of the protein graphs says what the FT runs say."""

from __future__ import annotations

import pandas as pd
import pytest

from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import mean_and_error
from metapt.twostage.quantities import EVALUATIONS

from .pages import RESULTS, answers_of_the_summary, text_of, words_of


@pytest.mark.parametrize("percent", [50, 90])
def test_the_runs_of_the_learner_have_the_differences_of_the_claims(percent: int) -> None:
    runs = pd.read_csv(RESULTS / "ppi" / "learner.csv")
    runs = runs[runs["problem"] == f"ppi 3x16 permuted_{percent}"]
    test, validation = (runs.groupby(["arm", "pretrain_seed"])[name].mean() for name in ("test", "validation"))
    claims = pd.read_csv(RESULTS / "claims" / f"ppi_permuted_{percent}.csv")
    for row in claims[claims["arm"] == "group_search"].itertuples():
        found = estimate_mean((test[row.arm] - test[row.control]).tolist())
        assert (found.mean, found.standard_error) == pytest.approx((row.mean, row.standard_error), abs=1e-3)
        assert found.n == row.n == 8
    page = text_of("ppi.md")
    random = estimate_mean((test["group_search-random"] - test["graph_supervised"]).tolist())
    assert f"{random.mean:.1f} ± {random.standard_error:.1f} points" in page
    assert f"{random.low:.1f} to {random.high:.1f})" in page
    for arm in ("group_search", "group_search-random"):
        seen = estimate_mean((validation[arm] - validation["graph_supervised"]).tolist())
        assert f"{seen.mean:.1f} ± {seen.standard_error:.1f}" in page


def test_the_page_of_protein_graphs_says_what_the_papers_learner_does_where_there_is_headroom() -> None:
    page = text_of("ppi.md")
    runs = pd.read_csv(RESULTS / "ppi" / "learner-second-machine.csv")
    means = runs.groupby(["problem", "arm", "pretrain_seed"])["test"].mean()
    gains: dict[str, list[str]] = {"meta": [], "meta-stable": []}
    for percent in (50, 90):
        seeds, claims = (
            means[f"ppi 3x16 permuted_{percent}"],
            pd.read_csv(RESULTS / f"claims/ppi_permuted_{percent}.csv"),
        )
        for row in claims[~claims["arm"].str.startswith("group_search")].itertuples():
            found = estimate_mean((seeds[row.arm] - seeds[row.control]).tolist())
            assert (found.mean, found.standard_error) == pytest.approx((row.mean, row.standard_error), abs=1e-3)
            assert f"| {row.claim} | {row.measured} | {row.criterion} | {row.paper} | **{row.verdict}** |" in page
        for arm, each in gains.items():
            each.append(words_of(seeds[arm] - seeds["graph_supervised"]))
    words = "{} points above equal weights with 50 % permuted labels, {} with 90 %; the changed learner {} and {}."
    assert words.format(*gains["meta"], *gains["meta-stable"]) in page
    text = answers_of_the_summary("Does the paper's learner gain over its start?")[2]
    runs = pd.read_csv(RESULTS / "ppi" / "learner-further-seeds.csv")
    means = runs.groupby(["problem", "arm", "pretrain_seed"])["test"].mean()
    later = [means[problem, "meta"] - means[problem, "graph_supervised"] for problem in runs["problem"].unique()]
    further = f"further {words_of(later[0])} and {words_of(later[1])} (open)"
    assert f"a gain is not shown either: {' and '.join(gains['meta'])} (linear, n = 8), {further}" in text
    for _, cell in pd.read_csv(RESULTS / "ppi" / "learned_weights.csv").groupby(["problem", "arm"])["auroc"]:
        found = estimate_mean((100 * cell).tolist())
        assert f"{found.mean:.1f} ± {found.standard_error:.1f} (" in page
        assert f"{found.low:.1f} to {found.high:.1f})" in page


def test_the_page_of_protein_graphs_says_what_the_released_choices_do() -> None:
    runs, page = pd.read_csv(RESULTS / "ppi" / "full_access.csv"), text_of("ppi.md")
    seeds = runs.groupby(["evaluation", "arm", "pretrain_seed"])["test"].mean()

    def difference(arm: str, control: str, evaluation: str) -> str:
        found = estimate_mean((seeds[evaluation, arm] - seeds[evaluation, control]).tolist())
        return mean_and_error(found.mean, found.standard_error)

    pays = [difference("graph_supervised-released", "no_pt-released", each) for each in EVALUATIONS]
    words = "points above `no_pt-released` in FT of the whole network and"
    assert f"{pays[0]} {words} {pays[1]} in linear evaluation" in page
    assert f"this costs {difference('no_pt', 'no_pt-released', 'full_transfer')} points without PT" in page


def test_the_page_of_protein_graphs_says_what_the_changed_learner_does_with_intact_labels() -> None:
    tables = [pd.read_csv(RESULTS / "ppi" / f"{name}.csv") for name in ("second-machine", "full_access")]
    own, first = (table.set_index(["arm", "evaluation", "pretrain_seed", "finetune_seed"]) for table in tables)
    pd.testing.assert_frame_equal(own.loc["graph_supervised"], first.loc["graph_supervised"])
    means = tables[0].groupby(["arm", "evaluation", "pretrain_seed"])["test"].mean()
    _, section = (RESULTS / "ppi.md").read_text().split("## The changed learner with intact labels")
    names = ("graph supervised", "meta-stable", "meta-stable's weights, frozen", "meta-stable's weights, permuted")
    arms = ("graph_supervised", "meta-stable", "meta-stable-frozen", "meta-stable-permuted")
    for name, arm in zip(names, arms, strict=True):
        assert f"| {name} | {' | '.join(words_of(means[arm, evaluation]) for evaluation in EVALUATIONS)} |" in section
    text = answers_of_the_summary("Is the changed learner better than a search at equal cost?")[2]
    for evaluation, form in zip(EVALUATIONS, ("FT: {} (n = 8, {})", "Linear: {} ({})"), strict=True):
        gain = words_of(means["meta-stable", evaluation] - means["graph_supervised", evaluation], interval=True)
        assert form.format(*gain[:-1].split(" (")) in text
    linear = means[:, "linear_evaluation"]
    words = words_of(linear["meta-stable-frozen"] - linear["graph_supervised"], interval=True)
    assert f"({words.replace(' (', ', ').removesuffix(')')}; not planned)" in " ".join(section.split())
    kept = linear["meta-stable-frozen"] - linear["meta-stable-permuted"]
    words = words_of(kept, interval=True).replace(" (", " points above the permuted ones (")
    assert f"the frozen weights are {words}, six of eight" in " ".join(section.split())
    assert (kept > 0).sum() == 6
    claims = pd.read_csv(RESULTS / "claims" / "ppi_full_access.csv").set_index(["arm", "control", "evaluation"])
    row = claims.loc[("meta-stable-frozen", "meta-stable-permuted", "linear_evaluation")]
    words = f"(p = {row['p_value']:.2g}, and {row['adjusted_p_value']:.2g} when corrected for {len(claims)} claims)"
    assert words in " ".join(section.split())
