"""Experiment `unroll_steps`: the effect of the number of unrolled FT steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from metapt.domains.ecg.results import EcgResults, auroc_tables, needs, over_sizes
from metapt.evaluation.comparisons import Comparison, within
from metapt.evaluation.experiment import Experiment
from metapt.evaluation.statistics import Estimate
from metapt.sections import ExperimentSection, Sizes, key
from metapt.twostage.arms import Pair, differing
from metapt.twostage.results import Cell, difference
from metapt.twostage.tables import beats, papers_words

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
    papers_arms: ClassVar[Mapping[str, str]] = {"meta-k0": "K=0", "meta": "K=1", "meta-k5": "K=5", "meta-k10": "K=10"}
    papers_claims: ClassVar[Collection[tuple[str, str]]] = (("meta", "meta-k0"), ("meta-k0", "simclr"))

    def pairs(self) -> list[Pair]:
        """Return the paper's arm and that without unrolled steps first, then each arm and its controls."""
        first = [Pair(ONE_STEP, "meta-k0", papers=True)] if self.comparable("meta-k0") else []
        return list(dict.fromkeys(first + super().pairs()))

    def comparable(self, arm: str) -> bool:
        """Return whether an arm was run that differs from the paper's in its unrolled steps alone."""
        arms = self.arm_settings()
        return {arm, ONE_STEP} <= arms.keys() and differing(arms[ONE_STEP], arms[arm]) <= {"unroll_steps"}


def comparisons(results: UnrollStepsResults) -> Iterator[Comparison]:
    """Yield the claims on pairs of arms, and the claim that more steps add little."""
    yield from beats(results)

    def differ(cell: Cell) -> Estimate:
        many, one = (results.runs(arm, cell.setting, cell.evaluation) for arm in (MANY_STEPS, ONE_STEP))
        return difference(many, one)

    for cell in results.cells() if results.comparable(MANY_STEPS) else []:
        if cell.arm == MANY_STEPS:
            text = f"{MANY_STEPS} comes within {FEW_POINTS:g} point of {ONE_STEP}, {results.where(cell)}"
            near, measure, paper = within(0.0, FEW_POINTS), partial(differ, cell), papers_words(results, cell, ONE_STEP)
            yield Comparison(text, MANY_STEPS, ONE_STEP, results.auroc, near, measure, cell.evaluation, paper)


EXPERIMENT = Experiment(
    title="Test AUROC on ECGs, by the number of FT steps that are differentiated through",
    figure_title="Test AUROC on ECGs, for each number of unrolled FT steps",
    section=UnrollSteps,
    order=2,
    needs=needs,
    results=UnrollStepsResults,
    tables=auroc_tables,
    figure=over_sizes,
    comparisons=comparisons,
)
