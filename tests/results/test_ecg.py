"""The page of the ECGs says what the FT runs say."""

from __future__ import annotations

from itertools import combinations

import pandas as pd
import torch
from scipy.stats import pearsonr, spearmanr, wilcoxon

from metapt.config import load
from metapt.domains.ecg.arms import typical_displacement
from metapt.domains.ecg.setting import policy_of
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import mean_and_error
from metapt.twostage.quantities import EVALUATIONS

from .pages import (
    FIXED,
    FT,
    LINEAR,
    RESULTS,
    ROOT,
    SEARCHES,
    STRENGTH_SEARCHES,
    answers_of_the_summary,
    by_seed,
    last_displacements,
    text_of,
    words_of,
)


def test_the_page_of_ecgs_says_what_the_runs_say() -> None:
    runs, page = pd.read_csv(RESULTS / "ecg" / "full_access.csv"), text_of("ecg.md")
    seeds = runs.groupby(["evaluation", "arm", "pretrain_seed"])["test"].mean()
    assert set(runs["pretrain_seed"]) == set(range(12))
    frozen = estimate_mean((seeds["full_transfer", "meta-frozen"] - seeds["full_transfer", "simclr"]).tolist())
    assert f"{frozen.mean:.1f} ± {frozen.standard_error:.1f} points above `simclr`" in page
    for arm, control in (("simclr", "no_pt"), ("meta", "simclr")):
        found = [estimate_mean((seeds[each, arm] - seeds[each, control]).tolist()) for each in EVALUATIONS]
        assert all(f"{each.mean:.1f} ± {each.standard_error:.1f}" in page for each in found)
        levels = [seeds["full_transfer", each].mean() for each in (arm, control)]
        assert f"in FT of the whole network ({levels[0]:.1f} against {levels[1]:.1f})" in page
    gains = seeds["full_transfer", "meta"] - seeds["full_transfer", "simclr"]
    assert f"{(gains > 0).sum()} of {len(gains)} differences are positive" in page
    assert f"p = {wilcoxon(gains).pvalue:.2g})" in page
    warps = last_displacements("full_access")
    warp, stable = warps["meta"], warps["meta-stable"]
    assert f"moves it to {stable.min():.0f} to {stable.max():.0f} samples" in page
    for words, arm, control, evaluation in (
        ("| `meta-stable-start` minus `simclr` | {} (-0.1 to", "meta-stable-start", "simclr", "full_transfer"),
        ("| `meta` minus `meta-stable-start` | {} (-0.02 to", "meta", "meta-stable-start", "full_transfer"),
        ("| `simclr-mild` minus `simclr` | {} (0.3 to", "simclr-mild", "simclr", "full_transfer"),
        ("| `meta` minus `simclr-mild` | {} (-0.5 to 0.8)", "meta", "simclr-mild", "full_transfer"),
        ("network (11 of 12 PT seeds), and {} points below it in linear", "simclr", "meta-frozen", "linear_evaluation"),
        ("`simclr-mild` is {} points *below* `simclr`", "simclr", "simclr-mild", "linear_evaluation"),
        ("and `meta` is {} points above `simclr-mild` (-0.1 to 6.0)", "meta", "simclr-mild", "linear_evaluation"),
    ):
        difference = estimate_mean((seeds[evaluation, arm] - seeds[evaluation, control]).tolist())
        assert words.format(f"{difference.mean:.1f} ± {difference.standard_error:.1f}") in page
    assert f"between {warp.min():.0f} and {warp.max():.0f} samples" in page
    for evaluation in EVALUATIONS:
        found = spearmanr(warp, seeds[evaluation, "meta"].reindex(warp.index))
        assert f"{found.statistic:.2f}, p = {found.pvalue:.2g}" in page
    second = by_seed("ecg/second-machine")
    released = last_displacements("second-machine")["meta-released"]
    for displacement, results in (
        (stable, seeds[LINEAR, "meta-stable"]),
        (released, second[LINEAR, "meta-released"]),
    ):
        found = spearmanr(displacement, results.reindex(displacement.index))
        assert f"({found.statistic:.2f}, p = {found.pvalue:.2f})" in page
    same = [seeds[each, "simclr"].corr(second[each, "simclr"]) for each in EVALUATIONS]
    assert f"correlated ({same[0]:.2f} in FT of the whole network, {same[1]:.2f} in linear evaluation)" in page
    gain = estimate_mean(gains.tolist())
    assert f"gains {gain.mean:.1f} ± {gain.standard_error:.1f}" in " ".join((ROOT / "README.md").read_text().split())
    seed = warp.idxmin()
    assert gains.idxmin() == seed
    assert (gains.drop(seed) > 0).all()
    ends = f"end between {warp.drop(seed).min():.0f} and {warp.max():.0f}; the one that ends at {warp[seed]:.0f} sample"
    assert f"{ends} loses {-gains[seed]:.1f} points |" in page


def test_the_page_of_ecgs_says_what_a_placebo_does() -> None:
    seeds, page, placebo = by_seed("ecg/full_access", "ecg/placebo"), text_of("ecg.md"), "meta-permuted_labels"
    n = len(seeds["full_transfer", placebo])
    assert f"with 95 % intervals over {n} PT seeds" in page
    for arm, control in (("meta", "simclr"), ("meta", placebo), (placebo, "simclr")):
        found = [estimate_mean((seeds[each, arm] - seeds[each, control]).tolist()) for each in EVALUATIONS]
        cells = [f"{each.mean:.1f} [{each.low:.1f}, {each.high:.1f}]" for each in found]
        assert f"| `{arm}` minus `{control}` | {' | '.join(cells)} |" in page
        assert placebo not in (arm, control) or cells[0] in text_of("README.md")
    gains = seeds["full_transfer", "meta"] - seeds["full_transfer", placebo]
    rest = estimate_mean(gains.drop(gains.idxmax()).tolist())
    assert f"positive with {(gains > 0).sum()} of {n} PT seeds (Wilcoxon's p = {wilcoxon(gains).pvalue:.2g})" in page
    assert f"{rest.mean:.1f} [{rest.low:.1f}, {rest.high:.1f}] without the largest one" in page
    ends, intact = last_displacements("placebo"), last_displacements("full_access")["meta"]
    assert f"to below 50 with {(ends < 50).sum()} of {n} PT seeds" in page
    assert f"(a median of {ends.median():.0f}; with intact labels {intact.median():.0f})" in page


def test_the_page_of_ecgs_says_what_the_learner_with_whole_pt_runs_does() -> None:
    page = text_of("ecg.md")
    tried, claims = (RESULTS / name for name in ("ecg/temperature_search.csv", "claims/ecg_full_access.csv"))
    first, runs = (pd.read_csv(RESULTS / "ecg" / f"{name}.csv") for name in ("full_access", "second-machine"))
    before, seeds = (each.groupby(["evaluation", "arm", "pretrain_seed"])["test"].mean() for each in (first, runs))
    gains, words = {}, {}
    for evaluation, name in EVALUATIONS.items():
        start, search, random, fixed = (seeds[evaluation, arm] for arm in ("simclr", *SEARCHES, FIXED))
        gains[evaluation] = search - start
        cells = [f"{arm.mean():.1f}" for arm in (start, search, random, fixed)]
        for found in (estimate_mean((search - each).tolist()) for each in (start, random, fixed)):
            assert found.n == 12
            cells.append(f"{found.mean:.1f} ± {found.standard_error:.1f} ({found.low:.1f} to {found.high:.1f})")
        words[evaluation] = cells[4].partition(" (")[0]
        assert f"| {name} | {' | '.join(cells)} |" in page
    assert [(each > 0).sum() for each in gains.values()] == [9, 11]
    gain = gains["linear_evaluation"]
    assert f"(Wilcoxon's signed-rank test: p = {wilcoxon(gain).pvalue:.2g})" in page
    p_values = pd.read_csv(claims).query("arm == 'temperature_search' and control == 'simclr'")["adjusted_p_value"]
    assert len(p_values) == 2
    assert all(f"(adjusted p = {p_value:.2g})" in page for p_value in p_values)
    found, least = estimate_mean(gain.loc[range(4, 12)].tolist()), gain.loc[range(4, 12)].min()
    assert f"is {found.mean:.1f} ± {found.standard_error:.1f} points, all eight positive" in page
    assert least > 0
    sooner = [estimate_mean(gain.loc[first].tolist()) for first in ([0, 1, 2, 4, 6], range(8))]
    sooner_words = [f"{each.mean:.1f} ± {each.standard_error:.1f}" for each in sooner]
    assert f"the difference is {sooner_words[0]} points, and with eight {sooner_words[1]}." in page
    other = before["linear_evaluation", "simclr"]
    found = estimate_mean((seeds["linear_evaluation", "temperature_search"] - other).tolist())
    assert f"the learner gains {found.mean:.1f} ± {found.standard_error:.1f} points" in page
    moved = seeds["linear_evaluation", "simclr"] - other
    found = estimate_mean(moved.tolist())
    assert f"differs by up to {moved.abs().max():.1f} points" in page
    assert f"on average {found.mean:.1f} ± {found.standard_error:.1f}," in page
    by_temperature = pd.read_csv(tried).pivot(index="pretrain_seed", columns="temperature", values="validation")
    by_temperature = by_temperature.loc[range(12)]
    down = by_temperature[0.125] - by_temperature[2.0]
    found = estimate_mean(down.tolist())
    assert (down > 0).all()
    assert f"first round, by {found.mean:.1f} ± {found.standard_error:.1f} points" in page
    ends = by_temperature[[0.0625, 0.25]].idxmax(axis=1).value_counts()
    assert (ends[0.0625], ends[0.25]) == (6, 6)
    assert (by_temperature.idxmax(axis=1) == 0.125).sum() == 7
    assert f"is {words['linear_evaluation']} points above" in " ".join((ROOT / "README.md").read_text().split())


def test_the_page_of_ecgs_says_what_random_temperatures_do() -> None:
    page = text_of("ecg.md")
    seeds = pd.read_csv(RESULTS / "ecg" / "second-machine.csv").groupby(["evaluation", "arm", "pretrain_seed"])["test"]
    arms = {each: [seeds.mean()[each, arm] for arm in ("simclr", *SEARCHES)] for each in EVALUATIONS}
    for evaluation, form in (
        ("linear_evaluation", "it is {} points above SimCLR (95 % interval {}"),
        ("full_transfer", "In FT of the whole network the control is {} points above SimCLR ({}"),
    ):
        start, _, random = arms[evaluation]
        found = estimate_mean((random - start).tolist())
        words = f"{found.mean:.1f} ± {found.standard_error:.1f}", f"{found.low:.1f} to {found.high:.1f}"
        assert form.format(*words) in page
    by_arm = {arm: pd.read_csv(RESULTS / "ecg" / f"{arm}.csv").query("pretrain_seed < 12") for arm in SEARCHES}
    tried = by_arm[SEARCHES[1]]
    best = tried.loc[tried.groupby("pretrain_seed")["validation"].idxmax()].set_index("pretrain_seed")
    secants = by_arm[SEARCHES[0]].query("candidate > 2").groupby("pretrain_seed")["validation"].max()
    assert f"is {secants.mean():.1f} % with the search and {best['validation'].mean():.1f} % with random" in page
    low = best["temperature"].drop(9)
    assert f"ends between {low.min():.2f} and {low.max():.2f}" in page
    assert tried.loc[tried["pretrain_seed"] == 9, "temperature"].min() > 0.6
    assert f"it ends at {best.loc[9, 'temperature']:.2f}" in page
    _, search, random = arms["linear_evaluation"]
    without = estimate_mean((search - random).drop(9).tolist())
    words = f"{without.mean:.1f} ± {without.standard_error:.1f} points ({without.low:.1f} to {without.high:.1f})"
    assert f"without it the difference is {words}" in page
    start = arms["linear_evaluation"][0]
    gain, over_random = (estimate_mean(each.tolist()) for each in (random - start, search - random))
    words, difference = (f"{each.mean:.1f} ± {each.standard_error:.1f}" for each in (gain, over_random))
    interval = f"({over_random.low:.1f} to {over_random.high:.1f})"
    assert f"search minus random is {difference} points {interval}" in page
    assert f"which gain {words}: {difference} |" in page
    assert over_random.low < -0.5, "the page says that the secondary criterion is not met"


def test_the_page_of_ecgs_says_what_one_low_temperature_for_all_does() -> None:
    page = text_of("ecg.md")
    runs = pd.read_csv(RESULTS / "ecg" / "second-machine.csv")
    seeds = runs.groupby(["evaluation", "arm", "pretrain_seed"])["test"].mean()
    gains = {each: seeds[each, FIXED] - seeds[each, "simclr"] for each in EVALUATIONS}
    linear, whole = (estimate_mean(gains[each].tolist()) for each in ("linear_evaluation", "full_transfer"))
    search = estimate_mean(
        (seeds["linear_evaluation", "temperature_search"] - seeds["linear_evaluation", FIXED]).tolist()
    )
    gain, above = (f"{each.mean:.1f} ± {each.standard_error:.1f}" for each in (linear, search))
    interval = f"({linear.low:.1f} to {linear.high:.1f})"
    count = (gains["linear_evaluation"] > 0).sum()
    assert f"is {gain} points above SimCLR in linear evaluation {interval}, with {count} of 12 PT seeds" in page
    assert f"and the search is {above} points above it." in page
    words = f"{whole.mean:.1f} ± {whole.standard_error:.1f} points above SimCLR ({whole.low:.1f} to {whole.high:.1f})"
    assert f"In FT of the whole network it is {words}" in page
    later = estimate_mean(gains["linear_evaluation"].loc[8:].tolist())
    assert later.n == 4
    words = f"{later.mean:.1f} ± {later.standard_error:.1f} points ({later.low:.1f} to {later.high:.1f})"
    assert f"the gain in linear evaluation is {words}" in page
    assert f"gains {gain} points over SimCLR in linear evaluation, at the cost of one PT run |" in page
    assert f"had found, gains {gain} points." in " ".join((ROOT / "README.md").read_text().split())


def test_the_page_of_ecgs_says_what_the_further_seeds_say() -> None:
    runs, page = pd.read_csv(RESULTS / "ecg" / "further-seeds.csv"), text_of("ecg.md")
    assert set(runs["pretrain_seed"]) == {100, 101, 102, 103, 104}
    seeds = (
        runs[runs["evaluation"] == "full_transfer"].groupby(["arm", "pretrain_seed"])[["test", "STTC", "HYP"]].mean()
    )
    levels = [f"{seeds.loc[arm, 'test'].mean():.1f}" for arm in ("no_pt", "simclr", "meta")]
    assert f"The levels are {levels[0]}, {levels[1]} and {levels[2]}." in page
    gains = seeds.loc["meta"] - seeds.loc["simclr"]
    whole, sttc, hyp = (estimate_mean(gains[name].tolist()) for name in gains)
    assert f"95 % interval {whole.low:.1f} to {whole.high:.1f}" in page
    assert f"STTC appears again ({mean_and_error(sttc.mean, sttc.standard_error)} points)" in page
    first = pd.read_csv(RESULTS / "ecg" / "full_access.csv").query("evaluation == 'full_transfer'")
    every = pd.concat([first.groupby(["arm", "pretrain_seed"])["test"].mean(), seeds["test"]]).sort_index()
    over_all = []
    for arm, control, words in (
        ("simclr-mild", "simclr", "`simclr-mild` is {} points above `simclr` with these seeds"),
        ("meta", "simclr-mild", "and `meta` is {} points above `simclr-mild` (-1.6"),
    ):
        again = estimate_mean((seeds.loc[arm, "test"] - seeds.loc[control, "test"]).tolist())
        assert words.format(f"{again.mean:.1f} ± {again.standard_error:.1f}") in page
        both = estimate_mean((every[arm] - every[control]).tolist())
        assert both.n == 17
        over_all.append(f"{both.mean:.1f} ± {both.standard_error:.1f}")
    assert f"Over all 17 PT seeds the differences are {over_all[0]} and {over_all[1]}." in page
    assert f"{whole.mean:.1f} ± {whole.standard_error:.1f}" in (ROOT / "README.md").read_text()
    assert f"HYP does not ({mean_and_error(hyp.mean, hyp.standard_error)})" in page


def test_the_page_of_ecgs_says_what_the_learner_does_with_further_seeds() -> None:
    page = text_of("ecg.md")
    tables = [
        pd.read_csv(RESULTS / "ecg" / f"{name}.csv") for name in ("second-machine", "second-machine-further-seeds")
    ]
    seeds = pd.concat(tables).groupby(["evaluation", "arm", "pretrain_seed"])["test"].mean()
    gains = {each: seeds[each, "temperature_search"] - seeds[each, "simclr"] for each in EVALUATIONS}
    linear, whole = gains["linear_evaluation"], gains["full_transfer"]
    further = linear.loc[100:].drop(104)
    ends = f": {further.min():.1f} to {further.max():.1f}, and {linear[104]:.1f} with PT seed 104"
    for seeds_words, name, values, more in (
        ("100 to 104", "linear evaluation", linear.loc[100:], ends),
        ("all 17", "linear evaluation", linear, ""),
        ("100 to 104", "FT of the whole network", whole.loc[100:], ""),
    ):
        count = f"{(values > 0).sum()} of {len(values)}{more}"
        assert f"| {seeds_words} | {name} | {words_of(values, interval=True)} | {count} |" in page
    every, again = estimate_mean(whole.tolist()), words_of(linear.loc[100:])
    assert every.n == 17
    words = f"{words_of(whole)} ({every.low:.2f} to {every.high:.2f}) | {(whole > 0).sum()} of 17 |"
    assert f"| all 17 | FT of the whole network | {words}" in page
    tried = pd.read_csv(RESULTS / "ecg" / "temperature_search.csv").query("pretrain_seed >= 100 and temperature < 0.5")
    for failed, verb in ((True, "is"), (False, "it is")):
        values = tried.loc[(tried["pretrain_seed"] == 104) == failed, "validation"]
        assert f"{verb} {values.min():.1f} to {values.max():.1f}" in page
    assert f"{again} with five further ones" in " ".join((ROOT / "README.md").read_text().split())
    first = pd.read_csv(RESULTS / "ecg" / "further-seeds.csv").query("evaluation == 'linear_evaluation'")
    other = first[first["arm"] == "simclr"].groupby("pretrain_seed")["test"].mean()
    here = seeds["linear_evaluation", "simclr"].loc[100:]
    assert f"its start, which has {here[104]:.1f} in the test there" in page
    assert f"on the first machine `simclr` has {other[104]:.1f} with PT seed 104" in page
    assert f"({(here - other).abs().max():.1f} with the further PT seed 104;" in page
    across = seeds["linear_evaluation", "temperature_search"].loc[100:] - other
    found = estimate_mean(across.tolist())
    assert (across > 0).all()
    assert f"are {found.mean:.1f} ± {found.standard_error:.1f} points ({found.low:.1f} to {found.high:.1f})" in page


def test_the_page_of_ecgs_says_what_the_search_of_the_warps_strength_does() -> None:
    page, seeds, (search, control) = text_of("ecg.md"), by_seed("ecg/second-machine"), STRENGTH_SEARCHES
    gains = {each: seeds[each, search] - seeds[each, "simclr"] for each in EVALUATIONS}
    over = {each: seeds[each, search] - seeds[each, control] for each in EVALUATIONS}
    for evaluation, name in EVALUATIONS.items():
        cells = [f"{seeds[evaluation, each].mean():.1f}" for each in ("simclr", search, control)]
        chance = seeds[evaluation, control] - seeds[evaluation, "simclr"]
        cells += [words_of(each, interval=True) for each in (gains[evaluation], chance, over[evaluation])]
        assert f"| {name} | {' | '.join(cells)} |" in page
    gain = gains[FT]
    assert ((gain > 0).sum(), len(gain)) == (11, 12)
    assert f"11 of 12 differences are positive (Wilcoxon's signed-rank test: p = {wilcoxon(gain).pvalue:.2g})" in page
    claims = pd.read_csv(RESULTS / "claims" / "ecg_full_access.csv").query("verdict == 'reproduced'")
    adjusted = claims.set_index(["arm", "control", "evaluation"])["adjusted_p_value"]
    assert f"is decided after the correction (adjusted p = {adjusted[search, 'simclr', FT]:.2g})" in page
    learners = [
        adjusted[key] for key in (("meta", "simclr", FT), (SEARCHES[0], "simclr", LINEAR), (search, "simclr", FT))
    ]
    words = "{:.2g} (`meta` in FT of the whole network), {:.2g} (`temperature_search` in linear evaluation) and {:.2g}"
    assert words.format(*learners) in page
    sooner = [words_of(gain.loc[: count - 1]) for count in (3, 6, 10)]
    assert "{}, {} and {} points. In linear evaluation no direction".format(*sooner) in page

    tried = pd.read_csv(RESULTS / "ecg" / f"{search}.csv").query("pretrain_seed < 12 and candidate > 2")
    ends = tried.loc[tried.groupby("pretrain_seed")["validation"].idxmax()].set_index("pretrain_seed")["strength"]
    arm = load([ROOT / "config" / "real-small.yaml"]).ecg.arms[search]
    displacements = {each: typical_displacement(policy_of(arm.warp), torch.tensor(each), 1000) for each in set(ends)}
    counts = {f"{float(displacements[each]):,.0f}": number for each, number in ends.value_counts().items()}
    assert counts == {"35": 5, "4": 4, "3,198": 2, "83,179": 1}
    far = gain[ends > 1600]
    assert f"gain all the same ({' and '.join(f'{each:.1f}' for each in far.drop(far.idxmin()))} points" in page
    assert f"the third one loses {-far.min():.1f})" in page

    whole, linear = (gain_of_choosing(each) for each in EVALUATIONS)
    assert f"gains {whole:.2f} points in FT of the whole network and {linear:.1f} in linear evaluation" in page
    assert estimate_mean(over[FT].tolist()).low < -0.5, "the page says that the secondary criterion is not met"
    further = by_seed("ecg/second-machine-further-seeds")
    later = {each: further[each, search] - further[each, "simclr"] for each in EVALUATIONS}
    summary = answers_of_the_summary("Does a search with whole PT runs gain over its start?")[1]
    first, second = words_of(gain, interval=True).split(" (")
    assert f"for which it searches: {first} (n = 12, {second}, further {words_of(later[FT])} (open)" in summary
    words = f"{words_of(gains[LINEAR], interval=True)}, further {words_of(later[LINEAR])} (open)"
    assert f"In linear: {words}" in summary
    first, second = words_of(over[FT], interval=True).split(" (")
    random = answers_of_the_summary("Is this search better than random values at equal cost?")[1]
    assert f"for the warp's strength {first} (FT, n = 12, {second}" in random
    words = (
        f"is {words_of(gain)} points above its start there (12 PT seeds; {words_of(later[FT])} with five further ones)"
    )
    assert words in " ".join((ROOT / "README.md").read_text().split())


def test_the_page_of_ecgs_says_what_the_search_of_the_warps_strength_does_with_further_seeds() -> None:
    page, seeds = text_of("ecg.md"), by_seed("ecg/second-machine", "ecg/second-machine-further-seeds")
    gains = {each: seeds[each, "run_search"] - seeds[each, "simclr"] for each in EVALUATIONS}
    whole = gains[FT].loc[100:].drop(102)
    ends = f": {whole.min():.1f} to {whole.max():.1f}, and {gains[FT][102]:.1f} with PT seed 102"
    for words, first, evaluation, more in (
        ("100 to 104", 100, FT, ends),
        ("all 17", 0, FT, ""),
        ("100 to 104", 100, LINEAR, ""),
        ("all 17", 0, LINEAR, ""),
    ):
        values = gains[evaluation].loc[first:]
        found, count = words_of(values, interval=True), f"{(values > 0).sum()} of {len(values)}{more}"
        if evaluation == LINEAR:
            found = found.replace(found.split()[-1], f"{estimate_mean(values.tolist()).high:.2f})")
        assert f"| {words} | {EVALUATIONS[evaluation]} | {found} | {count} |" in page
    tried = pd.read_csv(RESULTS / "ecg" / "run_search.csv").query("pretrain_seed >= 100 and candidate > 2")
    found_strengths = tried.loc[tried.groupby("pretrain_seed")["validation"].idxmax(), "strength"]
    assert found_strengths.tolist() == [25.0] * 5, "the page says that the search ends at 4 samples"


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


def test_the_page_of_ecgs_says_what_the_released_choices_do() -> None:
    page, seeds = text_of("ecg.md"), by_seed("ecg/second-machine")
    arm, control, learned = "simclr-released", "no_pt-released", "meta-released"
    gains = {each: seeds[each, learned] - seeds[each, arm] for each in EVALUATIONS}
    for evaluation, name in EVALUATIONS.items():
        cells = [f"{seeds[evaluation, each].mean():.1f}" for each in (control, arm, learned)]
        cells.append(words_of(seeds[evaluation, arm] - seeds[evaluation, control], interval=True))
        cells.append(words_of(gains[evaluation], interval=True))
        assert f"| {name} | {' | '.join(cells)} |" in page
    assert f"is {words_of(gains[FT])} points above its start in FT of the whole network, and" in page
    assert f"and {words_of(gains[LINEAR])} in linear evaluation |" in page
    assert [(each > 0).sum() for each in gains.values()] == [7, 8]
    first = by_seed("ecg/full_access")
    more, ends = words_of(first[FT, "meta"] - first[FT, "simclr"] - gains[FT], interval=True)[:-1].split(" (")
    assert f"is {more} points larger in FT of the whole network ({ends}; from two machines" in page
    warps = last_displacements("second-machine")[learned]
    far, near = warps[warps > 200], warps[warps <= 200]
    words = f"With two PT seeds it ends at {far.min():.0f} and {far.max():.0f} samples, with the others at"
    assert len(far) == 2
    assert f"{words} {mean_and_error(near.mean(), near.sem())}, between {near.min():.0f} and {near.max():.0f}." in page
    found = spearmanr(warps, seeds[FT, learned].reindex(warps.index))
    assert f"{found.statistic:.2f} in FT of the whole network, p = {found.pvalue:.2f}" in page
    changes = {each: words_of(seeds[each, arm] - seeds[each, "simclr"], interval=True) for each in EVALUATIONS}
    (whole, ends), linear = changes[FT][:-1].split(" ("), changes[LINEAR].split(" (")
    assert f"minus `simclr` is {whole} points in FT of the whole network ({ends}) and {linear[0]} in linear" in page
    assert f"evaluation ({linear[1][:-1]}; not a planned comparison)" in page
    other = by_seed("ecg/full_access")[LINEAR, "no_pt"].mean()
    assert f"on the other machine `no_pt` has {other:.1f}" in page


def test_the_page_of_ecgs_says_what_a_search_with_short_runs_does() -> None:
    page, seeds = text_of("ecg.md"), by_seed("ecg/second-machine")
    first = by_seed("ecg/full_access")
    learned, search = "meta-stable", "random_search"
    for evaluation, name in EVALUATIONS.items():
        cells = [f"{seeds[evaluation, each].mean():.1f}" for each in ("simclr", search, learned)]
        for arm, control in ((learned, search), (search, "simclr"), (learned, "simclr")):
            difference = seeds[evaluation, arm] - seeds[evaluation, control]
            assert len(difference) == 12
            cells.append(words_of(difference, interval=True))
        assert f"| {name} | {' | '.join(cells)} |" in page
    summary = answers_of_the_summary("Is the changed learner better than a search at equal cost?")[1]
    whole, linear = (words_of(seeds[each, learned] - seeds[each, search], interval=True) for each in (FT, LINEAR))
    assert "FT: {} (n = 12, {}. Linear: {} ({}.".format(*whole.split(" ("), *linear.split(" (")) in summary
    tried = pd.read_csv(RESULTS / "ecg" / "random_search.csv")
    assert tried.groupby("pretrain_seed").size().tolist() == [5] * 12
    apart = tried.groupby("pretrain_seed")["loss"].agg(["max", "min"]).diff(axis=1)["min"].abs()
    assert f"seed lie within {apart.min():.2f} to {apart.max():.2f} of each other" in page
    best = tried.loc[tried.groupby("pretrain_seed")["loss"].idxmin()].set_index("pretrain_seed")["strength"]
    words = f"between {best.min():.1f} and {best.max():.1f} (median {best.median():.1f})"
    assert words in page
    for evaluation in EVALUATIONS:
        found = spearmanr(best, seeds[evaluation, search].reindex(best.index))
        assert f"{found.statistic:.2f}, p = {found.pvalue:.2f}" in page
    again = {each: seeds[each, learned] - first[each, learned] for each in EVALUATIONS}
    assert f"{words_of(again[FT], interval=True).replace(' (', ' points (', 1)} in FT of the whole network" in page
    assert f"and {words_of(again[LINEAR], interval=True)} in linear evaluation" in page
    same = [pearsonr(first[each, learned], seeds[each, learned]) for each in EVALUATIONS]
    words = [f"{found.statistic:.2f}, p = {found.pvalue:.1g}" for found in same]
    assert f"({words[0]}, and {words[1]}; not planned)" in page
    stable = last_displacements("second-machine")[learned]
    assert f"ends at {stable.min():.0f} to {stable.max():.0f} samples here" in page
