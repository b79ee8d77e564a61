"""The page on the estimators says what the estimates say."""

from __future__ import annotations

import runpy
from typing import Any

import numpy as np
import pandas as pd
import pytest

from metapt.evaluation.headroom import Grid
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import mean_and_error
from metapt.twostage.quantities import EVALUATIONS

from .pages import FT, LINEAR, RESULTS, ROOT, said, text_of, words_of

BANK = runpy.run_path(str(ROOT / "benchmarks" / "truth_bank.py"))
NAMES = {
    "Neumann 1, K = 1": "Neumann 1, K = 1 (the paper's)", "secant": "secant of two runs",
    "one run of each setting": "the runs of one seed (ceiling)", "persistent ES, ridge head":
    "persistent evolution strategies", "linear fit to 6 runs": "linear fit to 6 random settings",
    "linear fit to 12 runs": "linear fit to 12 random settings",
}  # fmt: skip
"""Estimates in the words of the page."""


@pytest.fixture(scope="module")
def bank() -> list[Grid]:
    return BANK["truth"]()


@pytest.fixture(scope="module")
def scores(bank: list[Grid]) -> pd.DataFrame:
    """The scores of all stored estimates and their rivals, further PT seeds included."""
    tables = {name: BANK["read"](RESULTS / "estimators" / f"{name}.csv") for name in BANK["BANK"]}
    known = pd.concat(tables.values())
    own = [grid for grid in bank if grid.cell["problem"] in set(known["problem"])]
    later = [BANK["read"](RESULTS / "estimators" / f"{name}-further-seeds.csv") for name in ("mnist", "ppi-3x16")]
    return pd.concat([BANK["scores"](pd.concat([known, *later]), bank), BANK["rivals"](own)])


def signs(scores: pd.DataFrame, problem: str, estimator: str, evaluation: str = LINEAR, seeds: Any = range(100),
          horizon: int | None = None, score: str = "signs") -> pd.Series[float]:  # fmt: skip
    """Return a score by PT seed of an estimate on a problem, which is named by its end."""
    own = scores[scores["problem"].str.endswith(problem) & (scores["evaluation"] == evaluation)]
    own = own[(own["estimator"] == estimator) & own["pretrain_seed"].isin(seeds)]
    own = own if horizon is None else own[own["horizon"] == horizon]
    return own.set_index("pretrain_seed")[score]


@pytest.mark.parametrize(
    ("cells", "steps", "count"),
    [
        ([("mnist rotation", FT)], 500, 9),
        ([("ppi 3x16 permuted_50", LINEAR), ("ppi 3x16 permuted_90", LINEAR)], 2300, 12),
        ([("ppi 4x64 full_access", LINEAR)], 2300, 12),
        ([("ecg width 8", FT), ("ecg width 8", LINEAR)], 744, 15),
    ],
)
def test_the_tables_say_what_the_estimates_say(
    cells: list[tuple[str, str]], steps: int, count: int, scores: pd.DataFrame
) -> None:
    page, found = text_of("estimators.md"), 0
    first = scores[(scores["problem"] == cells[0][0]) & (scores["pretrain_seed"] < 100)]
    for (estimator, horizon), part in first.groupby(["estimator", "horizon"], dropna=False):
        back = "whole run" if pd.isna(horizon) else f"{horizon:.0f} (all)" if horizon == steps else f"{horizon:.0f}"
        words = [NAMES.get(estimator, estimator), back, f"{float(f'{part.cost.mean():.2g}'):g}"]
        at = None if pd.isna(horizon) else horizon
        for problem, evaluation in cells:
            words.append(str(said(signs(scores, problem, estimator, evaluation, horizon=at))["error"]))
        found += f"| {' | '.join(words)} |" in page
    assert found == count


FIRST, LATER = range(8), range(100, 105)
PAGE, SUMMARY = "estimators.md", "README.md"
SAID: list[tuple[Any, ...]] = [
    # page, words, then the arguments of `signs`
    (PAGE, "with one of the five, {error} % right signs", "rotation", "exact, K = 1", FT, LATER, 1),
    (PAGE, "perturbed runs order {error} % of the pairs correctly, but", "permuted_50", "perturbed runs",
     LINEAR, LATER),
    (PAGE, "order {error} % of the pairs correctly through the last 100", "4x64 full_access",
     "exact, ridge head", LINEAR, FIRST, 100),
    (PAGE, "steps and {error} % through all of them", "4x64 full_access", "exact, ridge head", LINEAR, FIRST, 2300),
    (PAGE, "and with K = 1 {error} % through", "4x64 full_access", "exact, K = 1", LINEAR, FIRST, 10),
    (PAGE, "*Perturbed runs* order {error} % of the pairs", "4x64 full_access", "perturbed runs"),
    (PAGE, "had 65.0 ± 1.1 % right signs", "ecg width 8", "exact, K = 1", FT, range(4), 10),
    (PAGE, "it is {error} in linear evaluation and", "ecg width 8", "Neumann 1, K = 1", LINEAR, FIRST, 1, "spearman"),
    (PAGE, "and {error} in FT of the whole network on ECGs", "ecg width 8", "Neumann 1, K = 1", FT, FIRST, 1,
     "spearman"),
    (SUMMARY, "orders {error} % of the pairs of settings correctly, pairs", "ecg width 8", "Neumann 1, K = 1"),
    (SUMMARY, "pairs of whole PT runs {error} %", "ecg width 8", "secant, linear evaluation"),
    (SUMMARY, "results of one PT seed {error} %. In FT", "ecg width 8", "one run of each setting"),
    (SUMMARY, "In FT the paper's estimate orders {error} %", "ecg width 8", "Neumann 1, K = 1", FT),
    (SUMMARY, "the results of one PT seed {error} %. - ", "ecg width 8", "one run of each setting", FT),
    (SUMMARY, "the paper's estimate orders {error} % and 61", "3x16 permuted_50", "Neumann 1, K = 1"),
    (SUMMARY, "52 ± 3 % and {error} % of the pairs", "3x16 permuted_90", "Neumann 1, K = 1"),
    (SUMMARY, "perturbed whole PT runs order {error} %, further", "3x16 permuted_50", "perturbed runs", LINEAR, FIRST),
    (SUMMARY, "the paper's estimate orders {error} % and perturbed", "4x64 full_access", "Neumann 1, K = 1"),
    (SUMMARY, "results of one PT seed order {error} % (n = 8)", "4x64 full_access", "one run of each setting"),
]  # fmt: skip


@pytest.mark.parametrize("row", SAID, ids=lambda row: f"{row[0]}: {row[1]}")
def test_a_page_says_how_well_an_estimate_agrees(row: tuple[Any, ...], scores: pd.DataFrame) -> None:
    page, words, *which = row
    assert words.format(**said(signs(scores, *which))) in text_of(page)


def test_the_pages_say_how_many_signs_are_right_on_mnist_and_for_the_temperature() -> None:
    slopes = pd.concat([pd.read_csv(RESULTS / "estimators" / f"mnist{end}.csv") for end in ("", "-further-seeds")])
    right = (slopes["slope"] > 0).groupby([slopes["estimator"], slopes["horizon"].fillna(0)]).sum()
    assert (slopes["slope"] > 0).groupby(slopes["pretrain_seed"]).size().nunique() == 1, "13 PT seeds of all estimates"
    assert right["exact, K = 1"].tolist() == [12, 5, 10, 11]
    names = ("Neumann 1, K = 1", "secant", "persistent ES, ridge head")
    assert [right[name].item() for name in names] == [11, 13, 13]
    assert sorted(right[name].item() for name in right.index.unique(0) if ", K = " in name and "Neumann" in name) == [
        5, 5, 7, 7, 7, 11,
    ]  # fmt: skip
    assert right["exact, ridge head", 500] == 9
    slopes = pd.read_csv(RESULTS / "estimators" / "ecg.csv").query("hyperparameter == 'temperature'")
    lower = (slopes["slope"] < 0).groupby(slopes["estimator"]).sum()
    assert [lower[name] for name in ("secant, linear evaluation", "Neumann 1, K = 1", names[2])] == [8, 5, 5]


def test_the_pages_say_how_often_perturbed_runs_agree_as_well_with_permuted_settings(bank: list[Grid]) -> None:
    """The statistic is the share of right signs against the other PT seeds, as the page has it."""
    slopes = BANK["read"](RESULTS / "estimators" / "ppi-3x16.csv").query("estimator == 'perturbed runs'")
    (grid,) = (grid for grid in bank if grid.cell["problem"] == "ppi 3x16 permuted_50")
    own = slopes[slopes["problem"] == grid.cell["problem"]]
    along = own.pivot(index="hyperparameter", columns="pretrain_seed", values="slope")
    place = pd.DataFrame(grid.hyperparameters)
    predicted = place.to_numpy() @ along.loc[list(place), grid.seeds].to_numpy()
    measured = (grid.test.sum(1, keepdims=True) - grid.test) / (len(grid.seeds) - 1)
    first, second = np.triu_indices(len(place), 1)
    expected, random = np.sign(predicted[first] - predicted[second]), np.random.default_rng(0)

    def right_signs(truth: Any) -> float:
        return float(100 * np.mean((1 + expected * np.sign(truth[first] - truth[second])) / 2))

    found = right_signs(measured)
    by_chance = np.array([right_signs(measured[random.permutation(len(place))]) for _ in range(5000)])
    p_value = (1 + np.sum(np.abs(by_chance - 50) >= abs(found - 50) - 1e-9)) / 5001
    for page in ("estimators.md", "README.md", "../when-it-pays.md"):
        assert f"p = {p_value:.2f}" in text_of(page)


def test_the_page_says_what_objectives_of_ecgs_see(bank: list[Grid]) -> None:
    epochs, page, found = pd.read_csv(RESULTS / "objectives" / "ecg.csv"), text_of("estimators.md"), 0
    grids = [grid for grid in bank if grid.cell["domain"] == "ecg"]
    for (objective, epoch), part in epochs.groupby(["evaluation", "epoch"]):
        seen = part.pivot(index="setting", columns="pretrain_seed", values="validation")
        words = []
        for grid in grids:
            values = [BANK["score"](grid, seen.loc[grid.settings, seed].to_numpy(), seed) for seed in grid.seeds]
            mean = estimate_mean([each["spearman"] for each in values])
            words.append(f"{mean.mean:.2f} ± {mean.standard_error:.2f}")
        found += f"| {EVALUATIONS[objective]} | {epoch} | {' | '.join(words)} |" in page
    assert found == 6


@pytest.mark.parametrize(
    ("arm", "label"),
    [("simclr-mild", "SimCLR, mild warp"), ("simclr-low_temperature", "SimCLR, low temperature")],
)
def test_the_page_says_what_objectives_on_some_labelled_ecgs_see(arm: str, label: str) -> None:
    runs = pd.read_csv(RESULTS / "objectives" / f"labelled_ecgs-{arm.removeprefix('simclr-')}.csv")
    wide = runs.pivot(index=["evaluation", "labelled", "epoch", "pretrain_seed"], columns="arm", values="auroc")
    gains = (wide[arm] - wide["simclr"]).dropna()
    tests = {evaluation: gains[evaluation, 500, "test"] for evaluation in EVALUATIONS}
    for (evaluation, labelled, epoch), values in gains.groupby(level=[0, 1, 2]):
        if epoch not in ("best", "test"):
            continue
        own = values.droplevel([0, 1, 2])
        kind = "test of" if epoch == "test" else "objective:"
        sides = [sum(each * test.drop(seed).mean() > 0 for seed, each in own.items()) for test in tests.values()]
        words = [label, f"{kind} {EVALUATIONS[evaluation]}", str(labelled), str(said(own)["error"])]
        assert f"| {' | '.join([*words, *(f'{side} of {len(own)}' for side in sides)])} |" in text_of("estimators.md")


def test_the_page_says_what_objectives_on_labelled_ecgs_see_along_ft_and_with_some_seeds() -> None:
    page, gains = text_of("estimators.md"), {}
    for name, arm in (("mild", "simclr-mild"), ("low_temperature", "simclr-low_temperature"),
                      ("again", "simclr-low_temperature")):  # fmt: skip
        file = "low_temperature-again" if name == "again" else f"labelled_ecgs-{name}"
        key = ["evaluation", "labelled", "epoch", "pretrain_seed"]
        wide = pd.read_csv(RESULTS / "objectives" / f"{file}.csv").pivot(index=key, columns="arm", values="auroc")
        gains[name] = (wide[arm] - wide["simclr"]).dropna()
    whole, low, linear = gains["mild"][FT], gains["low_temperature"][FT], gains["low_temperature"][LINEAR]
    early = words_of(whole[100, "8"], interval=True).replace("(", "points after eight epochs (")
    parts = [words_of(whole[500, "best"].loc[a:b]) for a, b in ((0, 5), (6, 11))]
    middle = [words_of(low[250, "best"].sort_index().loc[a:b]) for a, b in ((0, 5), (6, 11))]
    again, cpu = gains["again"][LINEAR, 500, "best"], linear[500, "best"].loc[6:]
    assert early in page
    assert "PT seeds 0 to 5 have {}, and PT seeds 6 to 11 have {}.".format(*parts) in page
    assert "{} with PT seeds 0 to 5, and {} with PT seeds 6 to 11.".format(*middle) in page
    assert f"it sees {words_of(linear[500, 'best'].loc[8:])} points with 500 labelled ECGs, three of four" in page
    assert f"the difference is {words_of(again)} points with 500 labelled ECGs, four of six" in page
    assert f"in the table these PT seeds have {words_of(cpu)}, five of six" in page
    assert ((again > 0).sum(), (cpu > 0).sum()) == (4, 5)
    assert (
        mean_and_error(*(lambda each: (each.mean, each.standard_error))(estimate_mean(low[500, "test"].tolist())))
        in page
    )
