"""The pages say of differences between arms what the FT runs say."""

from __future__ import annotations

from typing import Any

import pytest

from metapt.twostage.quantities import EVALUATIONS

from .pages import FT, LINEAR, by_seed, gain, said, text_of, words_of

README, SUMMARY, ECG, GRAPHS = "../../README.md", "README.md", "ecg.md", "ppi.md"
FIRST, SECOND, LATER = "ecg/full_access", "ecg/second-machine", "ecg/further-seeds"
LATER_SECOND, PLACEBO = f"{SECOND}-further-seeds", f"{FIRST}+ecg/placebo"
ALL, ALL_SECOND = f"{FIRST}+{LATER}", f"{SECOND}+{LATER_SECOND}"
PPI, PPI_SECOND, SUPERVISED = "ppi/full_access", "ppi/second-machine", "graph_supervised"
LEARNERS, SEARCHES, FURTHER = "ppi/learner-second-machine", "ppi/learner", "ppi/learner-further-seeds"
LABELS = "meta-permuted_labels"
SEARCH, RANDOM, LOW = "temperature_search", "temperature_search-random", "simclr-low_temperature"
STRENGTH, STRENGTHS = "run_search", "run_search-random"

SAID: list[tuple[Any, ...]] = [
    # page, words, tables, arm, control, evaluation, PT seeds if not all
    (ECG, "(`meta-frozen`), is {mean} points above `simclr`", FIRST, "meta-frozen", "simclr", FT),
    (ECG, "reproduced: {mean} points in FT of the whole network (81.2 against 79.9)", FIRST, "meta", "simclr", FT),
    (ECG, "| {mean} points in FT of the whole network (79.9 against 78.5)", FIRST, "simclr", "no_pt", FT),
    (ECG, "{mean} in linear evaluation. The second one is reproduced", FIRST, "simclr", "no_pt", LINEAR),
    (ECG, "PT seed ({positive} of {n} differences are positive)", FIRST, "meta", "simclr", FT),
    (ECG, "choice of the t test (Wilcoxon's signed-rank test: p = {p})", FIRST, "meta", "simclr", FT),
    (ECG, "| `meta-stable-start` minus `simclr` | {interval} |", FIRST, "meta-stable-start", "simclr", FT),
    (ECG, "| `meta` minus `meta-stable-start` | {mean} (-0.02 to", FIRST, "meta", "meta-stable-start", FT),
    (ECG, "| `simclr-mild` minus `simclr` | {interval} |", FIRST, "simclr-mild", "simclr", FT),
    (ECG, "| `meta` minus `simclr-mild` | {interval} |", FIRST, "meta", "simclr-mild", FT),
    (ECG, "seeds), and {mean} points below it in linear", FIRST, "simclr", "meta-frozen", LINEAR),
    (ECG, "`simclr-mild` is {mean} points *below* `simclr`", FIRST, "simclr", "simclr-mild", LINEAR),
    (ECG, "`meta` is {mean} points above `simclr-mild` ({low} to", FIRST, "meta", "simclr-mild", LINEAR),
    (README, "gains {mean} points over its start in fine-tuning of the whole", FIRST, "meta", "simclr", FT),
    (ECG, "| `meta` minus `simclr` | {value} [{low}, {high}] |", PLACEBO, "meta", "simclr", FT),
    (ECG, f"| `meta` minus `{LABELS}` | {{value}} [{{low}}, {{high}}] |", PLACEBO, "meta", LABELS, FT),
    (ECG, f"| `{LABELS}` minus `simclr` | {{value}} [{{low}}, {{high}}] |", PLACEBO, LABELS, "simclr", FT),
    (ECG, "] | {value} [{low}, {high}] |", PLACEBO, "meta", LABELS, LINEAR),
    (ECG, "] | {value} [{low}, {high}] |", PLACEBO, LABELS, "simclr", LINEAR),
    (ECG, "positive with {positive} of {n} PT seeds (Wilcoxon's p = {p})", PLACEBO, "meta", LABELS, FT),
    (SUMMARY, "{value} [{low}, {high}] points above the same learner with permuted", PLACEBO, "meta", LABELS, FT),
    (SUMMARY, "seeds, not confirmed yet), which gains {value} [{low}, {high}] over", PLACEBO, LABELS, "simclr", FT),
    (ECG, "{positive} of {n} differences are positive (Wilcoxon's signed-rank test: p = {p})", SECOND,
     SEARCH, "simclr", LINEAR),
    (ECG, "is {mean} points, all eight positive", SECOND, SEARCH, "simclr", LINEAR, range(4, 12)),
    (ECG, "difference is {mean} points, and", SECOND, SEARCH, "simclr", LINEAR, (0, 1, 2, 4, 6)),
    (ECG, "and with eight {mean}.", SECOND, SEARCH, "simclr", LINEAR, range(8)),
    (ECG, "it is {mean} points above SimCLR (95 % interval {low} to {high}", SECOND, RANDOM, "simclr", LINEAR),
    (ECG, "the control is {mean} points above SimCLR ({low} to {high})", SECOND, RANDOM, "simclr", FT),
    (ECG, "minus random is {mean} points ({low} to {high})", SECOND, SEARCH, RANDOM, LINEAR),
    (ECG, "without it the difference is {mean} points ({low} to {high})", SECOND, SEARCH, RANDOM,
     LINEAR, (*range(9), 10, 11)),
    (ECG, "A fixed temperature of 0.125 for all is {mean} points", SECOND, LOW, "simclr", LINEAR),
    (ECG, "did not choose it, the gain in linear evaluation is {mean} points ({low} to {high})", SECOND, LOW,
     "simclr", LINEAR, range(8, 12)),
    (README, "gains {mean} points. - A search of", SECOND, LOW, "simclr", LINEAR),
    (README, "There it is {mean} points above its start ({n} PT seeds;", SECOND, SEARCH, "simclr", LINEAR),
    (README, "{n} PT seeds; 0.9 ± 1.4 with five further ones)", SECOND, SEARCH, "simclr", LINEAR),
    (README, "PT seeds; {mean} with five further ones). It is", LATER_SECOND, SEARCH, "simclr", LINEAR),
    (README, "is {mean} points above its start there ({n} PT seeds;", SECOND, STRENGTH, "simclr", FT),
    (README, "PT seeds; {mean} with five further ones). It is not", LATER_SECOND, STRENGTH, "simclr", FT),
    (README, "PT seeds; {mean} with five further ones), as in", LATER, "meta", "simclr", FT),
    (README, "released code the gain is not shown ({mean})", SECOND, "meta-released", "simclr-released", FT),
    (ECG, "{positive} of {n} differences are positive (Wilcoxon's signed-rank test: p = {p})", SECOND, STRENGTH,
     "simclr", FT),
    (ECG, "without a decision: {mean},", SECOND, STRENGTH, "simclr", FT, range(3)),
    (ECG, ", {mean} and 1.0 ± 0.2 points.", SECOND, STRENGTH, "simclr", FT, range(6)),
    (ECG, "and {mean} points. In linear evaluation no", SECOND, STRENGTH, "simclr", FT, range(10)),
    (ECG, "is {mean} points above its start in FT", SECOND, "meta-released", "simclr-released", FT),
    (ECG, "and {mean} in linear evaluation |", SECOND, "meta-released", "simclr-released", LINEAR),
    (ECG, "minus `simclr` is {mean} points in FT of the whole network ({low} to {high})", SECOND, "simclr-released",
     "simclr", FT),
    (ECG, "by itself (95 % interval {low} to {high}). The levels are", LATER, "meta", "simclr", FT),
    (ECG, "appears again ({error} points)", LATER, "meta", "simclr", FT, (), "STTC"),
    (ECG, "HYP does not ({error})", LATER, "meta", "simclr", FT, (), "HYP"),
    (ECG, "`simclr-mild` is {mean} points above `simclr` with these", LATER, "simclr-mild", "simclr", FT),
    (ECG, "`meta` is {mean} points above `simclr-mild` ({low} to {high})", LATER, "meta", "simclr-mild", FT),
    (ECG, "all 17 PT seeds the differences are {mean} and", ALL, "simclr-mild", "simclr", FT),
    (ECG, "and {mean}. In linear evaluation, where this was not", ALL, "meta", "simclr-mild", FT),
    (ECG, "over all {n} it is {mean} points ({low} to {high}), {positive} of them positive", ALL, "simclr", "no_pt",
     FT),
    *((ECG, f"| {seeds} | {EVALUATIONS[evaluation]} | {{mean}} ({ends}) | {{positive}} of {{n}}", table, arm, "simclr",
       evaluation)
      for arm, evaluation, seeds, table, ends in (
          (SEARCH, LINEAR, "100 to 104", LATER_SECOND, "{low} to {high}"),
          (SEARCH, LINEAR, "all 17", ALL_SECOND, "{low} to {high}"),
          (SEARCH, FT, "100 to 104", LATER_SECOND, "{low} to {high}"),
          (SEARCH, FT, "all 17", ALL_SECOND, "-0.02 to 1.16"),
          (STRENGTH, FT, "100 to 104", LATER_SECOND, "{low} to {high}"),
          (STRENGTH, FT, "all 17", ALL_SECOND, "{low} to {high}"),
          (STRENGTH, LINEAR, "100 to 104", LATER_SECOND, "{low} to 0.01"),
          (STRENGTH, LINEAR, "all 17", ALL_SECOND, "{low} to 0.03"),
      )),
    (SUMMARY, "Yes in FT: {mean} (n = {n}, {low} to {high}), further", FIRST, "meta", "simclr", FT),
    (SUMMARY, "further {mean} (open). Not shown in linear", LATER, "meta", "simclr", FT),
    (SUMMARY, "(open). Not shown in linear: {interval}", FIRST, "meta", "simclr", LINEAR),
    (SUMMARY, "choices. FT: {mean} (n = {n}, {low} to {high})", SECOND, "meta-released", "simclr-released", FT),
    (SUMMARY, "{mean} over a fixed, smooth warp of 4 samples (FT, n = {n}, {low} to {high}), further", FIRST, "meta",
     "simclr-mild", FT),
    (SUMMARY, "further {mean} (open). - **Protein graphs.** Equal", LATER, "meta", "simclr-mild", FT),
    (SUMMARY, "short PT runs. FT: {mean} (n = {n}, {low} to {high})", SECOND, "meta-stable", "random_search", FT),
    (SUMMARY, "Linear: {interval}. `meta-stable` is", SECOND, "meta-stable", "random_search", LINEAR),
    (SUMMARY, "Yes in linear, for which it searches: {mean} (n = {n}, {low} to {high})", SECOND, SEARCH,
     "simclr", LINEAR),
    (SUMMARY, "further {mean} (open). Not shown in FT", LATER_SECOND, SEARCH, "simclr", LINEAR),
    (SUMMARY, "Not shown in FT: {interval}", SECOND, SEARCH, "simclr", FT),
    (SUMMARY, "for which it searches: {mean} (n = {n}, {low} to {high}), further", SECOND, STRENGTH, "simclr", FT),
    (SUMMARY, "further {mean} (open). It ends at very", LATER_SECOND, STRENGTH, "simclr", FT),
    (SUMMARY, "In linear: {interval}, further", SECOND, STRENGTH, "simclr", LINEAR),
    (SUMMARY, "further {mean} (open) ([more](ecg.md#a-learner-of-the", LATER_SECOND, STRENGTH, "simclr", LINEAR),
    (SUMMARY, "Not shown: {mean} (linear, n = {n}, {low} to {high}), and for", SECOND, SEARCH, RANDOM, LINEAR),
    (SUMMARY, "warp's strength {mean} (FT, n = {n}, {low} to {high})", SECOND, STRENGTH, STRENGTHS, FT),
    (SUMMARY, "{mean} over a temperature of 0.125 (linear, n = {n}, {low} to {high})", SECOND, SEARCH, LOW, LINEAR),
    (SUMMARY, "Not shown. FT: {mean} (n = {n}, {low} to {high}). Linear:", PPI, "meta", SUPERVISED, FT),
    (SUMMARY, "Linear: {interval} ([more](ppi.md))", PPI, "meta", SUPERVISED, LINEAR),
    (SUMMARY, "is not shown either. FT: {mean} (n = {n}, {low} to {high})", PPI_SECOND, "meta-stable", SUPERVISED, FT),
    (SUMMARY, "Linear: {interval}. There it costs 12", PPI_SECOND, "meta-stable", SUPERVISED, LINEAR),
    (GRAPHS, "{error} points above `no_pt-released` in FT", PPI, f"{SUPERVISED}-released", "no_pt-released", FT),
    (GRAPHS, "FT of the whole network and {error} in linear evaluation (no planned claim", PPI,
     f"{SUPERVISED}-released", "no_pt-released", LINEAR),
    (GRAPHS, "this costs {error} points without PT", PPI, "no_pt", "no_pt-released", FT),
    (GRAPHS, "{mean} points above the permuted ones ({low} to {high}), six of eight", PPI_SECOND, "meta-stable-frozen",
     "meta-stable-permuted", LINEAR),
    (GRAPHS, "({mean}, {low} to {high}; not planned)", PPI_SECOND, "meta-stable-frozen", SUPERVISED, LINEAR),
    *(row for half in (50, 90) for search in ("group_search", "group_search-random") for row in (
        (GRAPHS, "{mean}", f"{SEARCHES}:permuted_{half}", search, SUPERVISED, LINEAR),
        (GRAPHS, "{mean}", f"{SEARCHES}:permuted_{half}", search, SUPERVISED, LINEAR, (), "validation"))),
    (SUMMARY, "Not shown: {mean} with 50 % and", f"{SEARCHES}:permuted_50", "group_search", SUPERVISED, LINEAR),
    (SUMMARY, "50 % and {mean} with 90 %", f"{SEARCHES}:permuted_90", "group_search", SUPERVISED, LINEAR),
    (GRAPHS, "{mean} points above equal weights with 50 % permuted labels, -0.3", f"{LEARNERS}:permuted_50", "meta",
     SUPERVISED, LINEAR),
    (GRAPHS, "permuted labels, {mean} with 90 %; the changed", f"{LEARNERS}:permuted_90", "meta", SUPERVISED, LINEAR),
    (GRAPHS, "the changed learner {mean} and", f"{LEARNERS}:permuted_50", "meta-stable", SUPERVISED, LINEAR),
    (GRAPHS, "learner 0.9 ± 0.4 and {mean}.", f"{LEARNERS}:permuted_90", "meta-stable", SUPERVISED, LINEAR),
    (SUMMARY, "not shown either: {mean} and", f"{LEARNERS}:permuted_50", "meta", SUPERVISED, LINEAR),
    (SUMMARY, "and {mean} (linear, n = {n}), further", f"{LEARNERS}:permuted_90", "meta", SUPERVISED, LINEAR),
    (SUMMARY, "further {mean} and", f"{FURTHER}:permuted_50", "meta", SUPERVISED, LINEAR),
    (SUMMARY, "further 0.5 ± 0.2 and {mean} (open)", f"{FURTHER}:permuted_90", "meta", SUPERVISED, LINEAR),
]  # fmt: skip


@pytest.mark.parametrize("row", SAID, ids=lambda row: f"{row[0]}: {row[1]}")
def test_a_page_says_what_the_difference_between_two_arms_is(row: tuple[Any, ...]) -> None:
    page, words, *runs = row
    assert words.format(**said(gain(*runs))) in text_of(page)


ROWS = {
    "temperature": (("simclr", SEARCH, RANDOM, LOW),
                    ((SEARCH, "simclr"), (SEARCH, RANDOM), (SEARCH, LOW))),
    "strength": (("simclr", STRENGTH, STRENGTHS),
                 ((STRENGTH, "simclr"), (STRENGTHS, "simclr"), (STRENGTH, STRENGTHS))),
    "released": (("no_pt-released", "simclr-released", "meta-released"),
                 (("simclr-released", "no_pt-released"), ("meta-released", "simclr-released"))),
    "short": (("simclr", "random_search", "meta-stable"),
              (("meta-stable", "random_search"), ("random_search", "simclr"), ("meta-stable", "simclr"))),
}  # fmt: skip
"""Of rows of tables: arms whose mean AUROC they have, and pairs whose differences."""


@pytest.mark.parametrize("evaluation", EVALUATIONS)
@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_a_table_says_what_the_arms_are(name: str, evaluation: str) -> None:
    (levels, pairs), seeds = ROWS[name], by_seed(SECOND)
    cells = [EVALUATIONS[evaluation], *(f"{seeds[evaluation, arm].mean():.1f}" for arm in levels)]
    cells += [words_of(gain(SECOND, *pair, evaluation), interval=True) for pair in pairs]
    assert f"| {' | '.join(cells)} |" in text_of(ECG)


NAMES = {"no_pt": "no PT", "simclr": "SimCLR", "meta": "meta (K = 1)", "meta-frozen": "meta's warp, frozen",
         "meta-stable": "meta-stable", "meta-stable-start": "meta-stable's warp at the start",
         "meta-stable-frozen": "meta-stable's warp, frozen"}  # fmt: skip


@pytest.mark.parametrize("evaluation", EVALUATIONS)
@pytest.mark.parametrize(
    ("arm", "control"),
    [("simclr", "no_pt"), ("meta", "simclr"), ("meta", "meta-frozen"), ("meta-stable", "meta-stable-start"),
     ("meta-stable", "meta-stable-frozen")],
)  # fmt: skip
def test_the_table_of_differences_on_ecgs_is_that_of_the_runs(arm: str, control: str, evaluation: str) -> None:
    words = "| {} | {} minus {} | {n} | {error} [{low}, {high}] |"
    names = EVALUATIONS[evaluation], NAMES[arm], NAMES[control]
    assert words.format(*names, **said(gain(FIRST, arm, control, evaluation))) in text_of(ECG)


@pytest.mark.parametrize("arm", ["graph_supervised", "meta-stable", "meta-stable-frozen", "meta-stable-permuted"])
def test_the_table_of_the_changed_learner_on_protein_graphs_is_that_of_the_runs(arm: str) -> None:
    end = {"frozen": "'s weights, frozen", "permuted": "'s weights, permuted"}.get(arm.split("-")[-1], "")
    name = arm.removesuffix("-frozen").removesuffix("-permuted").replace("_", " ") + end
    cells = [words_of(by_seed(PPI_SECOND)[evaluation, arm]) for evaluation in EVALUATIONS]
    assert f"| {name} | {' | '.join(cells)} |" in text_of(GRAPHS)
