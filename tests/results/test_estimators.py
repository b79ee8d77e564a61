"""The page on the estimators says what the estimates say."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from metapt.domains.ecg.experiments.estimators import HYPERPARAMETERS
from metapt.domains.ecg.experiments.labelled_ecgs import BEST, TEST, differences, right_sides
from metapt.domains.ecg.looks import label
from metapt.evaluation.agreement import SINGLE_RUNS, Agreement
from metapt.evaluation.agreement_report import measured
from metapt.evaluation.headroom_table import grids, read
from metapt.evaluation.objectives import agreements
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import mean_and_error
from metapt.training.evolution import NAME as PERSISTENT
from metapt.twostage.quantities import EVALUATIONS

from .pages import ESTIMATORS, FIXED, LINEAR, RESULTS, answers_of_the_summary, text_of, words_of

NAMES = {f"linear fit to {count} runs": f"linear fit to {count} random settings" for count in (6, 12)}
NAMES |= {"Neumann 1, K = 1": "Neumann 1, K = 1 (the paper's)", SINGLE_RUNS: "the runs of one seed (ceiling)"}
NAMES |= {PERSISTENT: "persistent evolution strategies", "secant": "secant of two runs"}
"""Estimates in the words of the page."""


def rows(found: list[Agreement], steps: int) -> Iterator[str]:
    """Return the rows of a table of estimates on one problem, whose PT has `steps` steps."""
    for each in found:
        back = {None: "whole run", steps: f"{steps} (all)"}.get(each.horizon, each.horizon)
        signs = mean_and_error(each.signs.mean, each.signs.standard_error)
        name, cost = NAMES.get(each.estimator, each.estimator), float(f"{each.cost:.2g}")
        yield f"| {name} | {back} | {cost:g} | {signs} |"


def test_the_page_says_what_the_estimates_of_mnist_say() -> None:
    runs, slopes = read([RESULTS / "headroom" / "mnist.csv"]), pd.read_csv(RESULTS / "estimators" / "mnist.csv")
    near = runs[(runs["mean"] - 45).abs() <= 45]
    assert sum(row in ESTIMATORS for row in rows(measured(near, slopes, ()), 500)) == 9


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
    assert f"{exact.mean:.0f} ± {exact.standard_error:.0f} % right signs" in text_of("estimators.md")


def test_the_page_says_what_the_estimates_of_protein_graphs_say() -> None:
    runs, slopes = (pd.read_csv(RESULTS / part / "ppi-3x16.csv") for part in ("headroom", "estimators"))
    found = measured(runs, slopes, ())
    cells_of: dict[tuple[str, int | None], list[list[str]]] = {}
    for each in found:
        signs = mean_and_error(each.signs.mean, each.signs.standard_error)
        words = [f"{float(f'{each.cost:.2g}'):g}", signs]
        cells_of.setdefault((each.estimator, each.horizon), []).append(words)
    on_the_page = 0
    for (estimator, horizon), ((cost, half), (_, most)) in cells_of.items():
        back = {None: "whole run", 2300: "2300 (all)"}.get(horizon, horizon)
        words = [NAMES.get(estimator, estimator), str(back), cost, half, most]
        on_the_page += f"| {' | '.join(words)} |" in ESTIMATORS
    assert on_the_page == 12


def test_the_pages_say_how_often_perturbed_runs_agree_as_well_with_permuted_settings() -> None:
    """The statistic is the share of right signs against the other PT seeds, as the page has it."""
    slopes = pd.read_csv(RESULTS / "estimators" / "ppi-3x16.csv").query("estimator == 'perturbed runs'")
    (grid,) = (
        grid for grid in grids(read([RESULTS / "headroom" / "ppi-3x16.csv"])) if "permuted_50" in grid.cell["problem"]
    )
    own = slopes[slopes["problem"] == grid.cell["problem"]]
    by_seed = own.pivot(index="pretrain_seed", columns="hyperparameter", values="slope")
    place = pd.DataFrame(grid.hyperparameters)
    assert list(by_seed.index) == grid.seeds
    predicted = place.to_numpy() @ by_seed[list(place)].to_numpy().T
    measured = (grid.test.sum(1, keepdims=True) - grid.test) / (len(grid.seeds) - 1)
    first, second = np.triu_indices(len(place), 1)
    expected, random = np.sign(predicted[first] - predicted[second]), np.random.default_rng(0)

    def right_signs(order: NDArray[np.int64]) -> float:
        truth = measured[order]
        return float(100 * np.mean((1 + expected * np.sign(truth[first] - truth[second])) / 2))

    found = right_signs(np.arange(len(place)))
    assert found == pytest.approx(59.28, abs=0.01)
    by_chance = np.array([right_signs(random.permutation(len(place))) for _ in range(5000)])
    p_value = (1 + np.sum(np.abs(by_chance - 50) >= abs(found - 50) - 1e-9)) / 5001
    for page in ("estimators.md", "README.md", "../when-it-pays.md"):
        assert f"p = {p_value:.2f}" in text_of(page)


def test_the_page_says_what_the_estimates_with_the_larger_encoder_say() -> None:
    runs, slopes = read([RESULTS / "headroom" / "ppi-4x64.csv"]), pd.read_csv(RESULTS / "estimators" / "ppi-4x64.csv")
    found = measured(runs, slopes, ())
    assert set(slopes["pretrain_seed"]) == set(range(8))
    assert set(slopes["problem"]) == {"ppi 4x64 full_access"}
    assert sum(row in ESTIMATORS for row in rows(found, 2300)) == 12
    page, seen = text_of("estimators.md"), {(each.estimator, each.horizon): each.signs for each in found}
    paper = seen["Neumann 1, K = 1", 1]
    near = [("exact, ridge head", 100), ("exact, ridge head", 2300), ("exact, K = 1", 10)]
    some, whole, last = (f"{mean_and_error(seen[each].mean, seen[each].standard_error)} %" for each in near)
    assert f"{some} of the pairs correctly through the last 100 steps and {whole} through all of them" in page
    assert f"and with K = 1 {last} through" in page
    strategies = seen[PERSISTENT, 2300]
    share = mean_and_error(strategies.mean, strategies.standard_error)
    assert f"cost a quarter more than the perturbed runs and order {share} % of the pairs correctly." in page
    perturbed, one = (seen[estimator, None] for estimator in ("perturbed runs", SINGLE_RUNS))
    signs = [mean_and_error(each.mean, each.standard_error) for each in (paper, perturbed, one)]
    assert f"*Perturbed runs* order {signs[1]} % of the pairs correctly." in page
    words = answers_of_the_summary("Does the gradient predict which values are better?")[2]
    assert f"labels the paper's estimate orders {signs[0]} % and perturbed runs {signs[1]} %, where" in words
    assert f"where the results of one PT seed order {signs[2]} % (n = 8)" in words


def test_the_page_says_what_perturbed_runs_of_further_seeds_of_protein_graphs_say() -> None:
    runs = pd.read_csv(RESULTS / "headroom" / "ppi-3x16.csv")
    slopes = pd.read_csv(RESULTS / "estimators" / "ppi-3x16-further-seeds.csv")
    assert set(slopes["pretrain_seed"]) == {100, 101, 102, 103, 104}
    assert set(slopes["problem"]) == {"ppi 3x16 permuted_50"}
    (signs,) = [each.signs for each in measured(runs, slopes, ()) if each.estimator == "perturbed runs"]
    share = mean_and_error(signs.mean, signs.standard_error)
    assert f"perturbed runs order {share} % of the pairs correctly, but" in text_of("estimators.md")


def test_the_page_says_what_the_estimates_of_ecgs_say() -> None:
    runs, slopes = (pd.read_csv(RESULTS / part / "ecg.csv") for part in ("headroom", "estimators"))
    found = measured(runs, slopes, HYPERPARAMETERS)
    cells_of: dict[tuple[str, int | None], list[list[str]]] = {}
    for each in found:
        signs = mean_and_error(each.signs.mean, each.signs.standard_error)
        words = [f"{float(f'{each.cost:.2g}'):g}", signs]
        cells_of.setdefault((each.estimator, each.horizon), []).append(words)
    on_the_page = 0
    for (estimator, horizon), ((cost, whole), (_, linear)) in cells_of.items():
        back = {None: "whole run", 744: "744 (all)"}.get(horizon, horizon)
        cells = [NAMES.get(estimator, estimator), back, cost, whole, linear]
        on_the_page += f"| {' | '.join(map(str, cells))} |" in ESTIMATORS
    assert on_the_page == 15
    derivatives = [
        each
        for each in found
        if each.evaluation == LINEAR and each.horizon is not None and each.estimator != PERSISTENT
    ]
    assert len(derivatives) == 16
    assert max(derivatives, key=lambda each: each.signs.mean).estimator == "Neumann 1, K = 1"
    temperature = slopes[slopes["hyperparameter"] == "temperature"].set_index("estimator")["slope"]
    lower = [(temperature[name] < 0).sum() for name in ("secant, linear evaluation", "Neumann 1, K = 1", PERSISTENT)]
    assert lower == [8, 5, 5]
    page = text_of("estimators.md")
    seen = {(each.estimator, each.evaluation): each for each in found}
    for name in ("secant, linear evaluation", "secant, FT of the whole network", PERSISTENT):
        signs = seen[name, LINEAR].signs
        assert f"{mean_and_error(signs.mean, signs.standard_error)} %" in page
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
        words += [f"{right_sides(gaps, tests[each['arm'], evaluation])} of {own.n}" for evaluation in EVALUATIONS]
        line = f"| {' | '.join(words)} |"
        assert line in ESTIMATORS, line
        on_the_page += 1
    assert on_the_page == 16

    page = text_of("estimators.md")
    seen = {(each["arm"], each["evaluation"], each["labelled"], each["epoch"]): gaps for each, gaps in found}
    mild = {key[1:]: gaps for key, gaps in seen.items() if key[0] == "simclr-mild"}
    whole = {key[1:]: gaps for key, gaps in mild.items() if key[0] == "full_transfer"}
    assert f"The gain of the mild warp is {words_of(whole[500, TEST])} points in the test." in page
    first, second = (words_of(whole[size, BEST], interval=True) for size in (500, 250))
    first = first.replace("(", "(95 % interval ")
    assert f"with 500 labelled ECGs, has {first}, and with 250 it has {second}; nine of twelve" in page
    few = whole[100, BEST]
    assert f"With 100 it has {words_of(few)}, five of twelve." in page
    parts = [words_of(whole[500, BEST].loc[part]) for part in (slice(0, 5), slice(6, 11))]
    assert "PT seeds 0 to 5 have {}, and PT seeds 6 to 11 have {}.".format(*parts) in page
    early = words_of(whole[100, "8"], interval=True).replace("(", "points after eight epochs (")
    assert early in page
    means = {size: [gaps.mean() for (own, epoch), gaps in whole.items() if own == size] for size in (100, 500)}
    epochs = [gaps.mean() for (size, epoch), gaps in whole.items() if size == 500 and epoch not in (TEST, BEST)]
    assert all(round(value) == -2 for value in epochs[:3])
    assert (round(min(epochs[3:]), 1), round(max(epochs[3:]), 1)) == (-0.1, 1.0)
    assert min(means[100]) == whole[100, "8"].mean()
    assert all(
        (gaps.mean() < 0) == (int(epoch) <= 40)
        for (size, epoch), gaps in whole.items()
        if size == 100 and epoch not in (TEST, BEST)
    )

    low = words_of(seen[FIXED, "full_transfer", 500, TEST]), words_of(seen[FIXED, "full_transfer", 500, BEST])
    assert "not shown to gain in this test ({}), and its objective has {} with 500.".format(*low) in page
    middle = seen[FIXED, "full_transfer", 250, BEST].sort_index()
    parts = [words_of(middle.loc[part]) for part in (slice(0, 5), slice(6, 11))]
    assert f"With 250 it has {words_of(middle, interval=True)}: {parts[0]} with PT seeds 0 to 5" in page
    assert f"{parts[0]} with PT seeds 0 to 5, and {parts[1]} with PT seeds 6 to 11." in page

    lost = words_of(mild[LINEAR, 500, BEST], interval=True).replace("(", "(95 % interval ")
    assert f"The objective with 500 labelled ECGs has {lost}, with eight of twelve PT seeds" in page
    summary = text_of("README.md")
    for evaluation in EVALUATIONS:
        values = words_of(mild[evaluation, 500, BEST], interval=True)
        assert f"{values}, where the test has {words_of(mild[evaluation, 500, TEST])}" in summary
    later = seen[FIXED, LINEAR, 500, BEST].loc[8:]
    assert f"it sees {words_of(later)} points with 500 labelled ECGs, three of four" in page
    assert (later > 0).sum() == 3
    assert (seen[FIXED, LINEAR, 500, "5"] > 0).all(), "the page says that five epochs of the head are enough"

    again = differences(pd.read_csv(RESULTS / "objectives" / "low_temperature-again.csv"), "simclr")
    (gpu,) = [gaps for each, gaps in again if (each["labelled"], each["epoch"]) == (500, BEST)]
    cpu = seen[FIXED, LINEAR, 500, BEST].loc[6:]
    assert list(gpu.index) == list(cpu.index)
    assert ((gpu > 0).sum(), (cpu > 0).sum()) == (4, 5)
    assert f"the difference is {words_of(gpu)} points with 500 labelled ECGs, four of six" in page
    assert f"in the table these PT seeds have {words_of(cpu)}, five of six" in page


def test_the_page_says_what_the_correlations_of_the_papers_estimate_are() -> None:
    page = text_of("estimators.md")
    for name, hyperparameters, words in (
        ("ecg", HYPERPARAMETERS, "it is {1} in linear evaluation and {0} in FT of the whole network on ECGs"),
        ("ppi-3x16", (), "and {0} and {1} on protein graphs"),
    ):
        runs, slopes = (pd.read_csv(RESULTS / part / f"{name}.csv") for part in ("headroom", "estimators"))
        paper = [each for each in measured(runs, slopes, hyperparameters) if each.estimator == "Neumann 1, K = 1"]
        found = [f"{each.spearman.mean:.2f} ± {each.spearman.standard_error:.2f}" for each in paper]
        assert words.format(*found) in page
