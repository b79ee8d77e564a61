"""Experiment `unroll_steps`: the effect of the number of unrolled FT steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from metapt.domains.ecg.aurocs import auroc_tables, beats, cells, needs, over_sizes, papers_words, where
from metapt.domains.ecg.quantities import AUROC
from metapt.domains.ecg.results import EcgResults
from metapt.evaluation.comparisons import Comparison, within
from metapt.evaluation.experiment import Experiment
from metapt.evaluation.statistics import Difference
from metapt.sections import ExperimentSection, Sizes, key
from metapt.twostage.arms import differing
from metapt.twostage.seeds import difference

FEW_POINTS = 1.0  # difference in percentage points of AUROC that counts as small

MANY_STEPS, ONE_STEP = "meta-k10", "meta"


class UnrollSteps(ExperimentSection):
    """How many FT steps are differentiated through."""

    arms: list[str] = key(
        ["simclr", "meta-k0", "meta", "meta-k5", "meta-k10"], "arms, keys of `ecg.arms`", min_length=1
    )
    finetune_sizes: Sizes = key([100, 250, 500, 1000], "labelled ECGs, |D_FT|")


@dataclass(frozen=True)
class UnrollStepsResults(EcgResults):
    """The results of the experiment."""

    papers_arms: ClassVar[Mapping[str, str]] = {"meta-k0": "K=0", "meta": "K=1", "meta-k5": "K=5", "meta-k10": "K=10"}
    papers_pairs: ClassVar[Mapping[tuple[str, str], Collection[str]]] = {
        ("meta", "meta-k0"): ("unroll_steps",),
        ("meta-k0", "simclr"): (),
    }


def comparisons(results: UnrollStepsResults) -> Iterator[Comparison]:
    """Yield the claims on pairs of arms, and the claim that more steps add little."""
    yield from beats(results)

    def differ(evaluation: str, size: int) -> Difference:
        many, one = (results.runs(arm, size, evaluation) for arm in (MANY_STEPS, ONE_STEP))
        return difference(many, one)

    arms = results.arm_settings()
    both = [arms[name] for name in (MANY_STEPS, ONE_STEP) if name in arms]
    comparable = len(both) == 2 and differing(*both) <= {"unroll_steps"}
    for evaluation, size in cells(results) if comparable else []:
        text = f"{MANY_STEPS} comes within {FEW_POINTS:g} point of {ONE_STEP}, {where(evaluation, size)}"
        paper = papers_words(results, evaluation, size, (MANY_STEPS, None), (ONE_STEP, None))
        near, measure = within(0.0, FEW_POINTS), partial(differ, evaluation, size)
        yield Comparison(text, MANY_STEPS, ONE_STEP, AUROC, near, measure, evaluation, paper)


EXPERIMENT = Experiment(
    title="Test AUROC on ECGs, by the number of FT steps that are differentiated through",
    figure_title="Test AUROC on ECGs over the number of labelled ECGs, for each number of unrolled FT steps",
    section=UnrollSteps,
    order=2,
    needs=needs,
    results=UnrollStepsResults,
    tables=auroc_tables,
    figure=over_sizes,
    comparisons=comparisons,
)
