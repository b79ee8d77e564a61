"""The pages of docs/results say what the tables of runs say."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import stdtrit
from scipy.stats import pearsonr, spearmanr, wilcoxon

from metapt.domains.ecg.experiments.estimators import HYPERPARAMETERS
from metapt.domains.ecg.experiments.labelled_ecgs import BEST, TEST, differences, right_sides
from metapt.domains.ecg.looks import label
from metapt.evaluation.agreement import SINGLE_RUNS
from metapt.evaluation.agreement_report import comparisons, measured
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, LEAST_SEEDS, decide
from metapt.evaluation.headroom import REFERENCE, grids, headroom, held_out_gain, read
from metapt.evaluation.objectives import agreements
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import mean_and_error
from metapt.training.evolution import NAME as PERSISTENT
from metapt.twostage.quantities import EVALUATIONS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
FT, LINEAR = "full_transfer", "linear_evaluation"
HEADROOM, ESTIMATORS = ((RESULTS / name).read_text(encoding="utf-8") for name in ("headroom.md", "estimators.md"))


def test_the_code_of_the_page_reads_the_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", HEADROOM, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 3
    monkeypatch.chdir(ROOT)
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
    assert f"| {share.share:.0f} % (95 % interval {share.low:.0f} to {share.high:.0f}) |" in HEADROOM
    words = f"{gain.mean:.1f} ± {gain.standard_error:.1f} points (n = {gain.n}, 95 % interval {gain.low:.1f} to"
    assert words in HEADROOM


def test_the_page_says_what_the_estimates_of_mnist_say() -> None:
    runs, slopes = read([RESULTS / "headroom" / "mnist.csv"]), pd.read_csv(RESULTS / "estimators" / "mnist.csv")
    near = runs[(runs["mean"] - 45).abs() <= 45]
    names = {"secant": "secant of two runs", "linear fit to 6 runs": "linear fit to 6 random settings"}
    names |= {"Neumann 1, K = 1": "Neumann 1, K = 1 (the paper's)", SINGLE_RUNS: "the runs of one seed (ceiling)"}
    names |= {PERSISTENT: "persistent evolution strategies"}
    found = measured(near, slopes, ())
    judged, on_the_page = iter(decide(comparisons(found, {}))), 0
    for each in found:
        visible = "" if each.estimator == SINGLE_RUNS else f" {next(judged).visible:.0f} |"
        back = {None: "whole run", 500: "500 (all)"}.get(each.horizon, each.horizon)
        signs = mean_and_error(each.signs.mean, each.signs.standard_error)
        cost = float(f"{each.cost:.2g}")
        words = f"| {names.get(each.estimator, each.estimator)} | {back} | {cost:g} | {signs} |{visible}"
        on_the_page += words in ESTIMATORS
    assert on_the_page == 9
    assert slopes.groupby(["estimator", "horizon"], dropna=False).ngroups + 2 == 20


def test_the_page_says_what_the_estimates_of_further_seeds_of_mnist_say() -> None:
    runs = read([RESULTS / "headroom" / "mnist.csv"])
    slopes = pd.read_csv(RESULTS / "estimators" / "mnist-further-seeds.csv")
    assert set(slopes["pretrain_seed"]) == {100, 101, 102, 103, 104}
    found = {
        (each.estimator, each.horizon): each for each in measured(runs[(runs["mean"] - 45).abs() <= 45], slopes, ())
    }
    secant, exact = found["secant", None].signs, found["exact, K = 1", 1].signs
    assert (round(secant.mean), secant.standard_error) == (98, 0)
    assert found[PERSISTENT, 500].signs == secant
    assert f"{exact.mean:.0f} ± {exact.standard_error:.0f} % right signs" in " ".join(ESTIMATORS.split())


@pytest.mark.parametrize("name", ["ppi-3x16", "ecg"])
def test_the_page_says_what_the_runs_of_a_headroom_say(name: str) -> None:
    for grid in grids(read([RESULTS / "headroom" / f"{name}.csv"])):
        found = headroom(grid)
        share, gain, validated = found.shares["settings"], found.gain, found.validated
        words = [
            f"{share.share:.0f} % ({share.low:.0f} to {share.high:.0f})",
            f"{gain.mean:.1f} ± {gain.standard_error:.1f} points",
            f"{gain.low:.1f} to {gain.high:.1f})",
            f"| {gain.visible(0):.1f} |",
            f"| {abs(validated.mean):.1f} ± {validated.standard_error:.1f} (",
            f"({validated.low:.1f} to {validated.high:.1f}) |",
            f"| {'yes' if gain.low > 0 else 'not shown'} |",
        ]
        assert any(all(word in line for word in words) for line in HEADROOM.splitlines()), words


def test_the_page_says_what_the_estimates_of_protein_graphs_say() -> None:
    runs, slopes = (pd.read_csv(RESULTS / part / "ppi-3x16.csv") for part in ("headroom", "estimators"))
    names = {"linear fit to 12 runs": "linear fit to 12 random settings", SINGLE_RUNS: "the runs of one seed (ceiling)"}
    names |= {"Neumann 1, K = 1": "Neumann 1, K = 1 (the paper's)", PERSISTENT: "persistent evolution strategies"}
    found = measured(runs, slopes, ())
    judged = decide(comparisons(found, {}))
    visible = iter([f"{each.visible:.0f}" for each in judged])
    rows: dict[tuple[str, int | None], list[list[str]]] = {}
    for each in found:
        far = "" if each.estimator == SINGLE_RUNS else next(visible)
        signs = mean_and_error(each.signs.mean, each.signs.standard_error)
        words = [f"{float(f'{each.cost:.2g}'):g}", signs, far]
        rows.setdefault((each.estimator, each.horizon), []).append(words)
    on_the_page = 0
    for (estimator, horizon), ((cost, half, far), (_, most, further)) in rows.items():
        back = {None: "whole run", 2300: "2300 (all)"}.get(horizon, horizon)
        words = [names.get(estimator, estimator), str(back), cost, half, most, far, further]
        on_the_page += f"| {' | '.join(words)} |".replace("|  |  |", "| | |") in ESTIMATORS
    assert on_the_page == 12
    assert len(judged) == 40
    assert [each.word for each in judged].count("inconclusive") == 39
    persistent = [each.signs for each in found if each.estimator == PERSISTENT]
    ends = " and ".join(f"{each.low:.0f} to {each.high:.0f}" for each in persistent)
    assert f"not shown to be better than chance (intervals {ends})" in " ".join(ESTIMATORS.split())


def test_the_page_says_what_perturbed_runs_of_further_seeds_of_protein_graphs_say() -> None:
    runs = pd.read_csv(RESULTS / "headroom" / "ppi-3x16.csv")
    slopes = pd.read_csv(RESULTS / "estimators" / "ppi-3x16-further-seeds.csv")
    assert set(slopes["pretrain_seed"]) == {100, 101, 102, 103, 104}
    assert set(slopes["problem"]) == {"ppi 3x16 permuted_50"}
    (signs,) = [each.signs for each in measured(runs, slopes, ()) if each.estimator == "perturbed runs"]
    share = mean_and_error(signs.mean, signs.standard_error)
    assert f"{share} % of the pairs correctly (95 % interval {signs.low:.0f} to {signs.high:.0f})" in " ".join(
        ESTIMATORS.split()
    )


def test_the_page_says_what_the_estimates_of_ecgs_say() -> None:
    runs, slopes = (pd.read_csv(RESULTS / part / "ecg.csv") for part in ("headroom", "estimators"))
    names = {f"linear fit to {count} runs": f"linear fit to {count} random settings" for count in (6, 12)}
    names |= {"Neumann 1, K = 1": "Neumann 1, K = 1 (the paper's)", SINGLE_RUNS: "the runs of one seed (ceiling)"}
    found = measured(runs, slopes, HYPERPARAMETERS)
    judged = iter(decide(comparisons(found, {})))
    rows: dict[tuple[str, int | None], list[list[str]]] = {}
    for each in found:
        visible = math.nan if each.estimator == SINGLE_RUNS else next(judged).visible
        signs = mean_and_error(each.signs.mean, each.signs.standard_error)
        words = [f"{float(f'{each.cost:.2g}'):g}", signs, "" if math.isnan(visible) else f"{visible:.0f}"]
        rows.setdefault((each.estimator, each.horizon), []).append(words)
    on_the_page = 0
    for (estimator, horizon), ((cost, whole, far), (_, linear, further)) in rows.items():
        back = {None: "whole run", 744: "744 (all)"}.get(horizon, horizon)
        cells = [names.get(estimator, estimator), back, cost, whole, linear, far, further]
        on_the_page += f"| {' | '.join(map(str, cells))} |".replace("  |", " |") in ESTIMATORS.replace("  |", " |")
    assert on_the_page == 14
    assert [each.word for each in decide(comparisons(found, {}))].count("inconclusive") == 36
    derivatives = [each for each in found if each.evaluation == LINEAR and each.horizon is not None]
    assert len(derivatives) == 16
    assert max(round(each.signs.high) for each in derivatives) == 64
    temperature = slopes[slopes["hyperparameter"] == "temperature"].set_index("estimator")["slope"]
    lower = [(temperature[name] < 0).sum() for name in ("secant, linear evaluation", "Neumann 1, K = 1")]
    assert lower == [8, 5]
    page = " ".join(ESTIMATORS.split())
    seen = {(each.estimator, each.evaluation): each for each in found}
    for name in ("secant, linear evaluation", "secant, FT of the whole network"):
        signs = seen[name, LINEAR].signs
        assert f"{mean_and_error(signs.mean, signs.standard_error)} % " in page
        assert f"({signs.low:.0f} to {signs.high:.0f})" in page
    paper = seen["Neumann 1, K = 1", LINEAR].signs
    assert f"right signs (95 % interval {paper.low:.0f} to {paper.high:.0f})" in page
    claims = list(comparisons(found, {}))
    (second,) = [
        verdict.adjusted_p_value
        for claim, verdict in zip(claims, decide(claims), strict=True)
        if (claim.arm, claim.evaluation) == ("secant, FT of the whole network", LINEAR)
    ]
    assert f"(adjusted p of the second one: {second:.2f})" in page
    assert set(slopes["pretrain_seed"]) == set(range(8))
    ten = [each for each in measured(runs, slopes[slopes["pretrain_seed"] < 4], HYPERPARAMETERS) if each.horizon == 10]
    assert mean_and_error(ten[0].signs.mean, ten[0].signs.standard_error) == "65.0 ± 1.1"


def test_the_page_says_what_objectives_of_ecgs_see() -> None:
    runs, epochs = read([RESULTS / "headroom" / "ecg.csv"]), pd.read_csv(RESULTS / "objectives" / "ecg.csv")
    found = {(each.objective, each.epoch, each.evaluation): each.spearman for each in agreements(runs, epochs)}
    names = {"full_transfer": "FT of the whole network", "linear_evaluation": "linear evaluation"}
    on_the_page = 0
    for objective, epoch in dict.fromkeys(each[:2] for each in found if each[1]):
        seen = [found[objective, epoch, evaluation] for evaluation in names]
        words = [f"{each.mean:.2f} ± {each.standard_error:.2f}" for each in seen]
        on_the_page += f"| {names[objective]} | {epoch} | {' | '.join(words)} |" in ESTIMATORS
    assert on_the_page == 6
    for evaluation in names:
        ceiling = found[evaluation, None, evaluation]
        assert f"{ceiling.mean:.2f} ± {ceiling.standard_error:.2f}" in ESTIMATORS


def test_the_page_says_what_objectives_on_some_labelled_ecgs_see() -> None:
    paths = sorted((RESULTS / "objectives").glob("labelled_ecgs-*.csv"))
    found = [each for path in paths for each in differences(pd.read_csv(path), "simclr")]
    tests = {(each["arm"], each["evaluation"]): gaps for each, gaps in found if each["epoch"] == TEST}
    on_the_page = 0
    for each, gaps in found:
        if each["epoch"] not in (TEST, BEST):
            continue
        own = estimate_mean(gaps.tolist())
        kind = "test of" if each["epoch"] == TEST else "objective:"
        words = [label(each["arm"]), f"{kind} {EVALUATIONS[each['evaluation']]}", str(each["labelled"])]
        words.append(mean_and_error(own.mean, own.standard_error))
        for evaluation in EVALUATIONS:
            test = tests.get((each["arm"], evaluation))
            words.append("" if test is None else f"{right_sides(gaps, test)} of {own.n}")
        line = f"| {' | '.join(words)} |".replace("|  |", "| |")
        assert line in ESTIMATORS, line
        on_the_page += 1
    assert on_the_page == 12
    early = next(
        estimate_mean(gaps.tolist())
        for each, gaps in found
        if (each["evaluation"], each["labelled"], each["epoch"]) == ("full_transfer", 100, "8")
    )
    page = " ".join(ESTIMATORS.split())
    assert f"{early.mean:.1f} ± {early.standard_error:.1f} points after eight epochs" in page
    late = next(
        estimate_mean(gaps.tolist())
        for each, gaps in found
        if (each["evaluation"], each["labelled"], each["epoch"]) == ("full_transfer", 500, BEST)
    )
    interval = f"(95 % interval {late.low:.1f} to {late.high:.1f})"
    assert f"{late.mean:.1f} ± {late.standard_error:.1f} points with 500 labelled ECGs {interval}" in page
    six, twelve = (tests["simclr-mild", "full_transfer"].loc[range(n)] for n in (6, 12))
    assert f"the test itself has {words_of(six, interval=True)}, and with all twelve {words_of(twelve)}." in page
    (lost,) = (
        words_of(gaps, interval=True).replace(" (", " points with 500 labelled ECGs (95 % interval ")
        for each, gaps in found
        if (each["arm"], each["evaluation"], each["labelled"], each["epoch"]) == ("simclr-mild", LINEAR, 500, BEST)
    )
    assert f"The loss of the mild warp it does not show: {lost[:-1]}), four of six PT seeds" in page
    later = next(
        gaps.loc[8:] for each, gaps in found if (each["arm"], each["labelled"], each["epoch"]) == (FIXED, 500, BEST)
    )
    own = estimate_mean(later.tolist())
    assert f"it sees {own.mean:.1f} ± {own.standard_error:.1f} points with 500 labelled ECGs, three of four" in page
    assert (later > 0).sum() == 3
    five = [
        (gaps > 0).sum() for each, gaps in found if (each["arm"], each["labelled"], each["epoch"]) == (FIXED, 500, "5")
    ]
    assert five == [12], "the page says that five epochs of the head are enough"


def test_the_page_says_what_the_correlations_of_the_papers_estimate_are() -> None:
    page = " ".join(ESTIMATORS.split())
    for name, hyperparameters, words in (
        ("ecg", HYPERPARAMETERS, "it is {1} in linear evaluation and {0} in FT of the whole network on ECGs"),
        ("ppi-3x16", (), "and {0} and {1} on protein graphs"),
    ):
        runs, slopes = (pd.read_csv(RESULTS / part / f"{name}.csv") for part in ("headroom", "estimators"))
        paper = [each for each in measured(runs, slopes, hyperparameters) if each.estimator == "Neumann 1, K = 1"]
        found = [f"{each.spearman.mean:.2f} ± {each.spearman.standard_error:.2f}" for each in paper]
        assert words.format(*found) in page


def test_the_page_says_how_far_settings_of_ecgs_are_from_the_reference_on_average() -> None:
    runs, page = pd.read_csv(RESULTS / "headroom" / "ecg.csv"), " ".join(HEADROOM.split())
    seeds = runs.groupby(["evaluation", "setting", "pretrain_seed"])["test"].mean().unstack("setting")
    gains = seeds.drop(columns=REFERENCE).mean(axis=1) - seeds[REFERENCE]
    assert f"on average by {words_of(gains[FT], interval=True).replace(' (', ' points (', 1)}" in page
    assert f"on average {words_of(-gains[LINEAR])} points worse than the reference" in page


def test_the_page_says_how_many_settings_of_ecgs_are_better_than_the_reference() -> None:
    runs = pd.read_csv(RESULTS / "headroom" / "ecg.csv")
    means = runs[runs["evaluation"] == "full_transfer"].groupby("setting")["test"].mean()
    better = (means.drop(REFERENCE) > means[REFERENCE]).sum()
    assert f"{better} of the 24 random settings are better" in HEADROOM


JACKKNIFED = {
    ("mnist rotation", FT): "MNIST",
    ("ecg width 8", FT): "ECGs, FT of the whole network",
    ("ecg width 8", LINEAR): "ECGs, linear evaluation",
    ("ppi 3x16 permuted_50", LINEAR): "protein graphs, 50 % permuted",
    ("ppi 3x16 permuted_90", LINEAR): "protein graphs, 90 % permuted",
}
"""Problems and evaluations with headroom, in the words of the page."""


def test_the_page_of_the_headroom_says_what_a_jackknife_leaves_of_each_gain_that_is_shown() -> None:
    expected = []
    for grid in grids(read(sorted((RESULTS / "headroom").glob("*.csv")))):
        assert grid.reference is not None
        test, reference = grid.test.to_numpy(), grid.reference.to_numpy()
        for chosen_by, criterion in (("test", test), ("validation", grid.validation.to_numpy())):
            gain, n = held_out_gain(test, reference, criterion), len(reference)
            if not gain.low > 0 or (chosen_by == "validation" and grid.cell["domain"] == "mnist"):
                continue
            left = [
                held_out_gain(*(np.delete(each, seed, -1) for each in (test, reference, criterion))).mean
                for seed in range(n)
            ]
            error = math.sqrt((n - 1) * np.var(left))
            low, high = (gain.mean + side * error * stdtrit(n - 1, 0.975) for side in (-1, 1))
            words = f"{gain.mean:.1f} ± {error:.1f} ({low:.1f} to {high:.1f})".replace("-0.0", "0.0")
            name = JACKKNIFED[grid.cell["problem"], grid.cell["evaluation"]]
            expected.append((name, chosen_by, words, "yes" if low > 0 else "not shown"))
    rows = re.findall(r"^\| (.*) \| (test|validation) results \| (.*) \| (yes|not shown) \|$", HEADROOM, re.MULTILINE)
    assert sorted(rows) == sorted(expected)


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
        assert f"{found.mean:.1f} ± {found.standard_error:.1f} points" in " ".join(HEADROOM.split())
        words = f"(n = {found.n}, {{}}{found.low:.1f} to {found.high:.1f})"
        assert any(words.format(each) in " ".join(HEADROOM.split()) for each in ("", "95 % interval "))


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
    page = " ".join((RESULTS / "ppi.md").read_text().split())
    random = estimate_mean((test["group_search-random"] - test["graph_supervised"]).tolist())
    assert f"{random.mean:.1f} ± {random.standard_error:.1f} points" in page
    assert f"{random.low:.1f} to {random.high:.1f})" in page
    for arm in ("group_search", "group_search-random"):
        seen = estimate_mean((validation[arm] - validation["graph_supervised"]).tolist())
        assert f"{seen.mean:.1f} ± {seen.standard_error:.1f}" in page


def test_the_page_of_protein_graphs_says_what_the_papers_learner_does_where_there_is_headroom() -> None:
    page = " ".join((RESULTS / "ppi.md").read_text().split())
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
    runs, page = pd.read_csv(RESULTS / "ppi" / "full_access.csv"), " ".join((RESULTS / "ppi.md").read_text().split())
    seeds = runs.groupby(["evaluation", "arm", "pretrain_seed"])["test"].mean()

    def difference(arm: str, control: str, evaluation: str) -> str:
        found = estimate_mean((seeds[evaluation, arm] - seeds[evaluation, control]).tolist())
        return mean_and_error(found.mean, found.standard_error)

    pays = [difference("graph_supervised-released", "no_pt-released", each) for each in EVALUATIONS]
    words = "points above `no_pt-released` in FT of the whole network and"
    assert f"{pays[0]} {words} {pays[1]} in linear evaluation" in page
    assert f"this costs {difference('no_pt', 'no_pt-released', 'full_transfer')} points without PT" in page


def last_displacements(table: str) -> pd.Series:
    """Return the last displacement of each learned warp, samples, by arm and PT seed, for a table of FT runs."""
    warps = pd.read_csv(RESULTS / "ecg" / "warp.csv").set_index(["table", "arm", "pretrain_seed"])
    return warps["displacement_end"][table]


def test_the_page_of_ecgs_says_what_the_runs_say() -> None:
    runs, page = pd.read_csv(RESULTS / "ecg" / "full_access.csv"), " ".join((RESULTS / "ecg.md").read_text().split())
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


SEARCHES, FIXED = ("temperature_search", "temperature_search-random"), "simclr-low_temperature"


def test_the_page_of_ecgs_says_what_the_learner_with_whole_pt_runs_does() -> None:
    page = " ".join((RESULTS / "ecg.md").read_text().split())
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
    page = " ".join((RESULTS / "ecg.md").read_text().split())
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
    page = " ".join((RESULTS / "ecg.md").read_text().split())
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
    runs, page = pd.read_csv(RESULTS / "ecg" / "further-seeds.csv"), " ".join((RESULTS / "ecg.md").read_text().split())
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
    page = " ".join((RESULTS / "ecg.md").read_text().split())
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


def answers_of_the_summary(question: str) -> list[str]:
    """Return the answers on the summary page for MNIST, ECGs and protein graphs; an empty text where there is none."""
    _, section = (RESULTS / "README.md").read_text().split(f"### {question}\n")
    text = " ".join(section.partition("\n#")[0].split())
    found = dict(re.findall(r"- \*\*(.*?)\.\*\* (.*?)(?= - \*\*|$)", text))
    return [found.get(domain, "") for domain in ("MNIST", "ECGs", "Protein graphs")]


def test_the_table_of_answers_says_what_the_numbers_below_it_say() -> None:
    rows = re.findall(r"^\| \[(.*)\]\(#\S*\) \|(.*)\|$", (RESULTS / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == 8
    for question, cells in rows:
        for short, long in zip(cells.split("|"), answers_of_the_summary(question), strict=True):
            assert long.lower().startswith(" ".join(re.findall(r"\w+", short)[:2])), question


def words_of(values: pd.Series[float], interval: bool = False) -> str:
    """Return mean ± standard error, and with `interval` n and the 95 % interval, as the summary page has them."""
    found = estimate_mean(values.tolist())
    mean = round(found.mean, 1) + 0.0  # not -0.0
    return f"{mean:.1f} ± {found.standard_error:.1f}" + (f" ({found.low:.1f} to {found.high:.1f})" * interval)


def by_seed(*names: str) -> pd.Series[float]:
    """Return the mean test result by evaluation, arm and PT seed of tables in `docs/results`."""
    runs = pd.concat([pd.read_csv(RESULTS / f"{name}.csv") for name in names])
    return runs.groupby(["evaluation", "arm", "pretrain_seed"])["test"].mean()


def test_the_summary_says_what_the_headroom_and_its_confirmation_say() -> None:
    mnist, ecg, ppi = answers_of_the_summary("Can other hyperparameters gain?")
    for text, name in ((mnist, "mnist"), (ecg, "ecg"), (ppi, "ppi-3x16")):
        for grid in grids(read([RESULTS / "headroom" / f"{name}.csv"])):
            gain = headroom(grid).gain
            assert f"{gain.mean:.1f} ± {gain.standard_error:.1f}" in text
            assert f"n = {gain.n}" in text
            if name == "ecg" or gain.low < 0:
                assert f"({gain.low:.1f} to {gain.high:.1f})" in text
        runs = pd.read_csv(RESULTS / "confirmation" / f"{name}.csv")
        known = pd.read_csv(RESULTS / "headroom" / f"{name}.csv")
        for (problem, evaluation), rows in runs.groupby(["problem", "evaluation"]):
            before = known[(known["problem"] == problem) & (known["evaluation"] == evaluation)]
            best = before[before["setting"] != REFERENCE].groupby("setting")["test"].mean().idxmax()
            results = rows.groupby(["setting", "pretrain_seed"])["test"].mean()
            assert words_of(results[best] - results[REFERENCE]) in text.partition("further")[2]


def test_the_summary_says_what_the_estimators_say() -> None:
    mnist, ecg, ppi = answers_of_the_summary("Does the gradient predict which values are better?")
    slopes = pd.concat([pd.read_csv(RESULTS / "estimators" / f"mnist{end}.csv") for end in ("", "-further-seeds")])
    right = (slopes["slope"] > 0).groupby(slopes["estimator"]).agg(["sum", "count"])
    steps = slopes[slopes["estimator"] == "exact, K = 1"].groupby("horizon")["slope"].agg(lambda each: (each > 0).sum())
    paper, secant, persistent = (tuple(right.loc[name]) for name in ("Neumann 1, K = 1", "secant", PERSISTENT))
    assert (paper, secant, persistent) == ((11, 13), (13, 13), (13, 13))
    assert "right sign with 11 of 13 PT seeds, and with 5 to 7 for its neighbours" in mnist
    page = " ".join(ESTIMATORS.split())
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
    assert f"{words[0]} %, further {words[2]} %" in ppi


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
    summary = " ".join((RESULTS / "README.md").read_text().split())
    assert f"{levels[0]} without PT, {levels[1]} with SimCLR and {levels[2]} with the learned warp" in summary


def test_the_page_of_ecgs_says_what_the_released_choices_do() -> None:
    page, seeds = " ".join((RESULTS / "ecg.md").read_text().split()), by_seed("ecg/second-machine")
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
    page, seeds = " ".join((RESULTS / "ecg.md").read_text().split()), by_seed("ecg/second-machine")
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


def test_the_pages_say_that_simclr_against_no_pt_is_open_with_eighteen_claims() -> None:
    page, summary = (" ".join((RESULTS / name).read_text().split()) for name in ("ecg.md", "README.md"))
    claims = pd.read_csv(RESULTS / "claims" / "ecg_full_access.csv")
    (row,) = claims.query("arm == 'simclr' and control == 'no_pt' and evaluation == 'full_transfer'").itertuples()
    assert len(claims) == 18
    assert f"adjusted p-value of {row.adjusted_p_value:.2g} with all 18 claims" in summary
    smaller = (claims["p_value"] < row.p_value).sum()
    late = claims["arm"].eq("meta-released") | claims["control"].eq("random_search")
    assert claims[late]["p_value"].min() > row.p_value
    then, before, now, most = (row.p_value * (count - smaller) for count in (14, 16, 18, 22))
    assert now == pytest.approx(row.adjusted_p_value)
    words = f"{then:.2g}, reproduced | {before:.4f}, inconclusive | {now:.2g}, inconclusive | at most {most:.2g} |"
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


FURTHER = sorted((RESULTS / "claims" / "further-seeds").glob("*.csv"))
DECIDED = ("reproduced", "not reproduced")


def holds(mean: float, criterion: str) -> bool:
    """Return whether a mean meets a criterion, which is in the words of the claims."""
    words = criterion.removeprefix("difference ").split()
    bound = float(words[-1])
    match words[:-1]:
        case ["at", "least"]:
            return mean >= bound
        case ["at", "most"]:
            return mean <= bound
        case ["within", tolerance, "of"]:
            return abs(mean - bound) <= float(tolerance)
    raise ValueError(criterion)


@pytest.mark.parametrize("path", FURTHER, ids=lambda path: path.stem)
def test_the_pages_say_which_decided_claims_hold_with_five_further_seeds(path: Path) -> None:
    page = (RESULTS / f"{path.stem.partition('_')[0]}.md").read_text()
    first, further = (pd.read_csv(each).set_index("claim") for each in (RESULTS / "claims" / path.name, path))
    decided = first[first["verdict"].isin(DECIDED)]
    assert len(decided) > 0
    for claim, row in decided.iterrows():
        if claim not in further.index:
            first_time = mean_and_error(row["mean"], row["standard_error"])
            assert f"| {cell(claim)} | {row['criterion']} | {first_time} | to come | |" in page
            continue
        again = further.loc[claim]
        assert again["n"] == 5
        numbers = [mean_and_error(each["mean"], each["standard_error"]) for each in (row, again)]
        same = "yes" if holds(row["mean"], row["criterion"]) == holds(again["mean"], row["criterion"]) else "no"
        assert f"| {cell(claim)} | {row['criterion']} | {numbers[0]} | {numbers[1]} | {same} |" in page
