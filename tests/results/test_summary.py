"""The summary of the results says what the tables of runs say."""

from __future__ import annotations

import re

import pandas as pd

from metapt.domains.ecg.experiments.estimators import HYPERPARAMETERS
from metapt.evaluation.agreement import SINGLE_RUNS
from metapt.evaluation.agreement_report import measured
from metapt.evaluation.headroom import REFERENCE, headroom
from metapt.evaluation.headroom_table import grids, read
from metapt.evaluation.tables import mean_and_error
from metapt.training.evolution import NAME as PERSISTENT

from .pages import FIXED, FT, LINEAR, RESULTS, SEARCHES, answers_of_the_summary, by_seed, text_of, words_of


def test_the_table_of_answers_says_what_the_numbers_below_it_say() -> None:
    rows = re.findall(r"^\| \[(.*)\]\(#\S*\) \|(.*)\|$", (RESULTS / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == 8
    for question, cells in rows:
        for short, long in zip(cells.split("|"), answers_of_the_summary(question), strict=True):
            assert long.lower().startswith(" ".join(re.findall(r"\w+", short)[:2])), question


def test_the_summary_says_what_the_headroom_and_its_confirmation_say() -> None:
    mnist, ecg, ppi = answers_of_the_summary("Can other hyperparameters gain?")
    for text, name in ((mnist, "mnist"), (ecg, "ecg"), (ppi, "ppi-3x16"), (ppi, "ppi-4x64")):
        for grid in grids(read([RESULTS / "headroom" / f"{name}.csv"])):
            gain = headroom(grid).gain
            assert f"{gain.mean:.1f} ± {gain.standard_error:.1f}" in text
            assert f"n = {gain.n}" in text
            if name in ("ecg", "ppi-4x64") or gain.low < 0:
                assert f"{gain.low:.1f} to {gain.high:.1f})" in text
        runs = pd.read_csv(RESULTS / "confirmation" / f"{name}.csv")
        known = pd.read_csv(RESULTS / "headroom" / f"{name}.csv")
        for (problem, evaluation), rows in runs.groupby(["problem", "evaluation"]):
            before = known[(known["problem"] == problem) & (known["evaluation"] == evaluation)]
            best = before[before["setting"] != REFERENCE].groupby("setting")["test"].mean().idxmax()
            results = rows.groupby(["setting", "pretrain_seed"])["test"].mean()
            assert words_of(results[best] - results[REFERENCE]) in text.partition("further")[2]


def test_the_advice_says_what_a_choice_by_validation_results_gains_with_the_larger_encoder() -> None:
    found = {
        grid.cell["problem"].split()[-1]: headroom(grid).validated
        for grid in grids(read([RESULTS / "headroom" / "ppi-4x64.csv"]))
    }
    intact, half, most = (
        f"{found[labels].mean:.1f} ± {found[labels].standard_error:.1f}"
        for labels in ("full_access", "permuted_50", "permuted_90")
    )
    words = f"they were not above it: {intact} with intact labels, {half} and {most} with permuted ones."
    assert words in text_of("README.md")


def test_the_summary_says_what_the_estimators_say() -> None:
    mnist, ecg, ppi = answers_of_the_summary("Does the gradient predict which values are better?")
    slopes = pd.concat([pd.read_csv(RESULTS / "estimators" / f"mnist{end}.csv") for end in ("", "-further-seeds")])
    right = (slopes["slope"] > 0).groupby(slopes["estimator"]).agg(["sum", "count"])
    steps = slopes[slopes["estimator"] == "exact, K = 1"].groupby("horizon")["slope"].agg(lambda each: (each > 0).sum())
    paper, secant, persistent = (tuple(right.loc[name]) for name in ("Neumann 1, K = 1", "secant", PERSISTENT))
    assert (paper, secant, persistent) == ((11, 13), (13, 13), (13, 13))
    assert "right sign with 11 of 13 PT seeds, and with 5 to 7 for its neighbours" in mnist
    page = text_of("estimators.md")
    assert "have the right sign with 13, the exact derivative of the last PT step with 12, and the paper's" in page
    assert "over all 13 with 5, 10 and 11." in page
    assert steps.tolist() == [12, 5, 10, 11]
    neighbours = [right.loc[name, "sum"] for name in right.index if name.startswith("Neumann") and ", K = " in name]
    assert sorted(neighbours) == [5, 5, 7, 7, 7, 11]
    ridge = slopes[(slopes["estimator"] == "exact, ridge head") & (slopes["horizon"] == 500)]["slope"]
    assert f"with 11 of 13 PT seeds with unrolled FT steps, and with {(ridge > 0).sum()} with a ridge head" in page
    runs, slopes = (pd.read_csv(RESULTS / part / "ecg.csv") for part in ("headroom", "estimators"))
    seen = {
        (each.estimator, each.evaluation): f"{mean_and_error(each.signs.mean, each.signs.standard_error)} %"
        for each in measured(runs, slopes, HYPERPARAMETERS)
    }
    paper, secant, one = (
        [seen[name, evaluation] for evaluation in (LINEAR, FT)]
        for name in ("Neumann 1, K = 1", "secant, linear evaluation", SINGLE_RUNS)
    )
    words = (
        f"orders {paper[0]} of the pairs of settings correctly, pairs of whole PT runs {secant[0]}, and the results of"
    )
    assert f"{words} one PT seed {one[0]}. In FT" in ecg
    assert f"In FT the paper's estimate orders {paper[1]}, and the results of one PT seed {one[1]}." in ecg
    runs = pd.read_csv(RESULTS / "headroom" / "ppi-3x16.csv")
    found = measured(runs, pd.read_csv(RESULTS / "estimators" / "ppi-3x16.csv"), ())
    signs = [
        mean_and_error(each.signs.mean, each.signs.standard_error)
        for each in found
        if each.estimator == "Neumann 1, K = 1"
    ]
    assert f"orders {signs[0]} % and {signs[1]} % of the pairs" in ppi
    perturbed = [each.signs for each in found if each.estimator == "perturbed runs"]
    again = pd.read_csv(RESULTS / "estimators" / "ppi-3x16-further-seeds.csv")
    perturbed += [each.signs for each in measured(runs, again, ()) if each.estimator == "perturbed runs"]
    words = [mean_and_error(each.mean, each.standard_error) for each in perturbed]
    assert f"order {words[0]} %, further {words[2]} %, with 50 %." in ppi


def test_the_summary_says_what_the_arms_gain() -> None:
    ecg, second, ppi = by_seed("ecg/full_access"), by_seed("ecg/second-machine"), by_seed("ppi/full_access")
    later, later_second = by_seed("ecg/further-seeds"), by_seed("ecg/second-machine-further-seeds")
    learner = pd.read_csv(RESULTS / "ppi" / "learner.csv")
    whole = words_of(ecg[FT, "meta"] - ecg[FT, "simclr"], interval=True)
    (start, end), linear = whole[:-1].split(" ("), words_of(ecg[LINEAR, "meta"] - ecg[LINEAR, "simclr"], interval=True)
    text = answers_of_the_summary("Does the paper's learner gain over its start?")
    assert f"in FT: {start} (n = 12, {end}), further {words_of(later[FT, 'meta'] - later[FT, 'simclr'])}" in text[1]
    assert f"in linear: {linear}" in text[1]
    whole = words_of(second[FT, "meta-released"] - second[FT, "simclr-released"], interval=True)
    assert "nor with the released code's choices. FT: {} (n = 12, {}".format(*whole.split(" (")) in text[1]
    for evaluation, form in ((FT, "FT: {} (n = 8, {})"), (LINEAR, "Linear: {} ({})")):
        words = words_of(ppi[evaluation, "meta"] - ppi[evaluation, "graph_supervised"], interval=True)
        assert form.format(*words[:-1].split(" (")) in text[2]
    mild = [words_of(each[FT, "meta"] - each[FT, "simclr-mild"], interval=True).split(" (") for each in (ecg, later)]
    text = answers_of_the_summary("Is the paper's learner better than a simple fixed value?")
    assert (
        f"{mild[0][0]} over a fixed, smooth warp of 4 samples (FT, n = 12, {mild[0][1]}, further {mild[1][0]}"
        in text[1]
    )
    for question, control in (
        ("Does a search with whole PT runs gain over its start?", "simclr"),
        ("Is this search better than random values at equal cost?", SEARCHES[1]),
        ("Is this search better than one value for all PT seeds?", FIXED),
    ):
        words = words_of(second[LINEAR, SEARCHES[0]] - second[LINEAR, control], interval=True).split(" (")
        text = answers_of_the_summary(question)
        assert words[0] in text[1]
        assert f"n = 12, {words[1]}" in text[1]
        if control == "simclr":
            assert f"further {words_of(later_second[LINEAR, SEARCHES[0]] - later_second[LINEAR, control])}" in text[1]
            assert f"in FT: {words_of(second[FT, SEARCHES[0]] - second[FT, control], interval=True)}" in text[1]
        if control != FIXED:
            other = {"simclr": "graph_supervised", SEARCHES[1]: "group_search-random"}[control]
            means = learner.groupby(["problem", "arm", "pretrain_seed"])["test"].mean()
            gains = [
                words_of(means[problem, "group_search"] - means[problem, other])
                for problem in learner["problem"].unique()
            ]
            assert "{} with 50 % and {} with 90 % permuted".format(*gains) in text[2]
    found = pd.read_csv(RESULTS / "claims" / "mnist_rotation_mean.csv").set_index("arm").loc["meta-shared"]
    words = f"{mean_and_error(found['mean'], found['standard_error'])} degrees off (n = {found['n']})"
    assert words in answers_of_the_summary("Does the paper's learner gain over its start?")[0]
    levels = [f"{ecg[FT, arm].mean():.1f}" for arm in ("no_pt", "simclr", "meta")]
    summary = text_of("README.md")
    assert f"{levels[0]} without PT, {levels[1]} with SimCLR and {levels[2]} with the learned warp" in summary
