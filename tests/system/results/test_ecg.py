"""The page of the ECGs says what the tables of warps and of tried values say; differences are tested beside."""

from __future__ import annotations

from itertools import combinations

import pandas as pd
import pytest
from scipy.stats import pearsonr, spearmanr

from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import mean_and_error
from metapt.twostage.quantities import EVALUATIONS

from .pages import FT, LINEAR, RESULTS, by_seed, gain, last_displacements, text_of, words_of

PAGE = text_of("ecg.md")
FIRST, SECOND, LATER = "ecg/full_access", "ecg/second-machine", "ecg/second-machine-further-seeds"


def tried(arm: str, later: bool = False) -> pd.DataFrame:
    """Return the candidates of a search with the first or the further PT seeds."""
    runs = pd.read_csv(RESULTS / "ecg" / f"{arm}.csv")
    return runs[(runs["pretrain_seed"] >= 100) == later]


def best(runs: pd.DataFrame, by: str = "validation") -> pd.DataFrame:
    """Return the candidate of each PT seed with the highest value of a column."""
    return runs.loc[runs.groupby("pretrain_seed")[by].idxmax()].set_index("pretrain_seed")


def test_the_page_says_where_learned_warps_end() -> None:
    warps = last_displacements("full_access")
    warp, stable, released = warps["meta"], warps["meta-stable"], last_displacements("second-machine")["meta-released"]
    gains = gain(FIRST, "meta", "simclr", FT)
    seed = warp.idxmin()
    ends = f"end between {warp.drop(seed).min():.0f} and {warp.max():.0f}; the one that ends at {warp[seed]:.0f} sample"
    assert f"{ends} loses {-gains[seed]:.1f} points |" in PAGE
    assert (gains.drop(seed) > 0).all()
    assert f"moves it to {stable.min():.0f} to {stable.max():.0f} samples" in PAGE
    assert f"between {warp.min():.0f} and {warp.max():.0f} samples" in PAGE
    far, near = released[released > 200], released[released <= 200]
    words = f"With two PT seeds it ends at {far.min():.0f} and {far.max():.0f} samples, with the others at"
    assert f"{words} {mean_and_error(near.mean(), near.sem())}, between {near.min():.0f} and {near.max():.0f}." in PAGE
    here = last_displacements("second-machine")["meta-stable"]
    assert f"ends at {here.min():.0f} to {here.max():.0f} samples here" in PAGE
    placebo = last_displacements("placebo")
    assert f"to below 50 with {(placebo < 50).sum()} of {len(placebo)} PT seeds" in PAGE
    assert f"(a median of {placebo.median():.0f}; with intact labels {warp.median():.0f})" in PAGE


@pytest.mark.parametrize(
    ("words", "arm", "table", "evaluation"),
    [
        ("12 PT seeds {:.2f}, p = {:.2f})", "meta", "full_access", FT),
        ("a higher AUROC ({:.2f}, p = {:.3f})", "meta", "full_access", LINEAR),
        ("with `meta-stable` ({:.2f}, p = {:.2f})", "meta-stable", "full_access", LINEAR),
        ("with `meta-released` ({:.2f}, p = {:.2f})", "meta-released", "second-machine", LINEAR),
        ("correlation {:.2f} in FT of the whole network, p = {:.2f})", "meta-released", "second-machine", FT),
    ],
)
def test_the_page_says_how_the_end_of_a_warp_and_the_auroc_correlate(
    words: str, arm: str, table: str, evaluation: str
) -> None:
    warps = last_displacements(table)[arm]
    found = spearmanr(warps, by_seed(f"ecg/{table}")[evaluation, arm].reindex(warps.index))
    assert words.format(found.statistic, found.pvalue) in PAGE


def test_the_page_says_what_two_machines_make_of_one_arm() -> None:
    first, second = by_seed(FIRST), by_seed(SECOND)
    correlations = [first[each, "simclr"].corr(second[each, "simclr"]) for each in EVALUATIONS]
    words = "correlated ({:.2f} in FT of the whole network, {:.2f} in linear evaluation)"
    assert words.format(*correlations) in PAGE
    same = [pearsonr(first[each, "meta-stable"], second[each, "meta-stable"]) for each in EVALUATIONS]
    words = [f"{found.statistic:.2f}, p = {found.pvalue:.1g}" for found in same]
    assert f"({words[0]}, and {words[1]}; not planned)" in PAGE
    again = {each: second[each, "meta-stable"] - first[each, "meta-stable"] for each in EVALUATIONS}
    assert f"{words_of(again[FT], interval=True).replace(' (', ' points (', 1)} in FT of the whole network" in PAGE
    assert f"and {words_of(again[LINEAR], interval=True)} in linear evaluation" in PAGE
    moved = second[LINEAR, "simclr"] - first[LINEAR, "simclr"]
    assert f"differs by up to {moved.abs().max():.1f} points" in PAGE
    across = second[LINEAR, "temperature_search"] - first[LINEAR, "simclr"]
    assert f"the learner gains {words_of(across)} points" in PAGE
    later, other = by_seed(LATER), by_seed("ecg/further-seeds")[LINEAR, "simclr"]
    across = later[LINEAR, "temperature_search"] - other
    assert f"are {words_of(across, interval=True).replace(' (', ' points (')}, all five positive" in PAGE
    assert f"its start, which has {later[LINEAR, 'simclr', 104]:.1f} in the test there" in PAGE
    assert f"on the first machine `simclr` has {other[104]:.1f} with PT seed 104" in PAGE


def test_the_page_says_what_searches_of_the_temperature_find() -> None:
    wide = tried("temperature_search").pivot(index="pretrain_seed", columns="temperature", values="validation")
    down = wide[0.125] - wide[2.0]
    assert (down > 0).all()
    assert f"first round, by {words_of(down)} points" in PAGE
    assert wide[[0.0625, 0.25]].idxmax(axis=1).value_counts().to_dict() == {0.0625: 6, 0.25: 6}
    assert (wide.idxmax(axis=1) == 0.125).sum() == 7
    random = best(tried("temperature_search-random"))
    secants = best(tried("temperature_search").query("candidate > 2"))["validation"].mean()
    assert f"is {secants:.1f} % with the search and {random['validation'].mean():.1f} % with random" in PAGE
    low = random["temperature"].drop(9)
    assert f"ends between {low.min():.2f} and {low.max():.2f}" in PAGE
    assert f"it ends at {random.loc[9, 'temperature']:.2f}" in PAGE
    later = tried("temperature_search", later=True).query("temperature < 0.5").set_index("pretrain_seed")["validation"]
    for verb, values in (("is", later.loc[104]), ("it is", later.drop(104))):
        assert f"{verb} {values.min():.1f} to {values.max():.1f}" in PAGE


def test_the_page_says_what_the_searches_of_the_warps_strength_find() -> None:
    ends = best(tried("run_search").query("candidate > 2"))["strength"]
    assert sorted(ends.value_counts()) == [1, 2, 4, 5]
    own = gain(SECOND, "run_search", "simclr", FT)[ends > 1600]
    words = " and ".join(f"{each:.1f}" for each in own.drop(own.idxmin()))
    assert f"gain all the same ({words} points; the third one loses {-own.min():.1f})" in PAGE
    later = best(tried("run_search", later=True).query("candidate > 2"))["strength"]
    assert later.tolist() == [25.0] * 5, "the page says that the search ends at 4 samples"
    runs = tried("random_search")
    apart = runs.groupby("pretrain_seed")["loss"].agg(lambda each: each.max() - each.min())
    assert f"seed lie within {apart.min():.2f} to {apart.max():.2f} of each other" in PAGE
    chosen = best(runs.assign(minus=-runs["loss"]), "minus")["strength"]
    assert f"between {chosen.min():.1f} and {chosen.max():.1f} (median {chosen.median():.1f})" in PAGE
    for evaluation in EVALUATIONS:
        found = spearmanr(chosen, by_seed(SECOND)[evaluation, "random_search"].reindex(chosen.index))
        assert f"{found.statistic:.2f}, p = {found.pvalue:.2f}" in PAGE


def gain_of_choosing(evaluation: str) -> float:
    """Return what the better of two PT seeds of a setting of the headroom gains over their mean, points.

    The better one is chosen by validation results, minus the mean of its PT seed over settings.
    """
    runs = pd.read_csv(RESULTS / "headroom" / "ecg.csv").query("evaluation == @evaluation")
    wide = runs.pivot(index="setting", columns="pretrain_seed", values=["validation", "test"])
    validation, test = (wide[name] - wide[name].mean() for name in ("validation", "test"))
    pairs = combinations(validation.columns, 2)
    won = [(test[a] - test[b]).where(validation[a] >= validation[b], test[b] - test[a]) / 2 for a, b in pairs]
    return float(pd.concat(won).mean())


def test_the_page_says_what_choosing_among_runs_and_leaving_one_out_do() -> None:
    whole, linear = (gain_of_choosing(each) for each in EVALUATIONS)
    assert f"gains {whole:.2f} points in FT of the whole network and {linear:.1f} in linear evaluation" in PAGE
    placebo = gain(f"{FIRST}+ecg/placebo", "meta", "meta-permuted_labels", FT)
    rest = estimate_mean(placebo.drop(placebo.idxmax()).tolist())
    assert f"{rest.mean:.1f} [{rest.low:.1f}, {rest.high:.1f}] without the largest one" in PAGE
    levels = by_seed("ecg/further-seeds")[FT].groupby("arm").mean()
    assert "The levels are {:.1f}, {:.1f} and {:.1f}.".format(*levels[["no_pt", "simclr", "meta"]]) in PAGE
