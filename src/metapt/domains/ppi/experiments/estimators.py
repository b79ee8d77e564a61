"""Experiment `estimators`: which estimates of the derivative w.r.t. weights of groups of PT tasks agree with results.

Not in the paper.
"""

from __future__ import annotations

from typing import Annotated

import pandas as pd
from pydantic import Field

from metapt.domains.ppi.config import Arm, PpiSettings, Supervised
from metapt.domains.ppi.experiments.headroom import check_reference, problem_of
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.settings import group, permuted
from metapt.evaluation.experiment import Needs
from metapt.sections import Count, Distinct, Rate, key
from metapt.twostage.estimators import (
    EstimatorsSection,
    Evolution,
    RunPair,
    ends,
    experiment,
    measured_runs,
    pair_slopes,
    perturbations,
    slopes_of,
)
from metapt.twostage.quantities import LINEAR_EVALUATION, VALIDATION_AUROC


class PpiEstimators(EstimatorsSection):
    """Estimates of the derivative w.r.t. weights of groups of PT tasks, at equal weights. Not in the paper."""

    reference: str = key(
        "graph_supervised", "arm of plain PT with equal weights; the estimates are made at the end of its PT"
    )
    groups: int = key(20, "groups of PT tasks, those of the headroom", ge=2)
    permuted: Annotated[list[Annotated[int, Field(ge=0, le=99)]], Distinct] = key(
        [0, 50, 90], "share of the PT tasks whose labels are permuted (%), a problem each", min_length=1
    )
    finetune_lr: Rate = key(1e-3, "learning rate of unrolled FT steps (Adam)")
    pairs: Count = key(10, "pairs of whole runs with all weights perturbed at once; 0: none")
    perturbation: Annotated[float, Field(gt=0, lt=1)] = key(0.5, "change of each weight in such a run")
    evolution: Evolution = key(Evolution(size=0.5), "persistent evolution strategies")

    def arm_names(self) -> list[str]:
        """Return the reference."""
        return [self.reference]

    def made_arms(self) -> list[str]:
        """Return the names of the perturbed runs."""
        return ends(pairs(self))

    def check(self, domain: PpiSettings) -> None:
        """Raise ValueError as `EstimatorsSection.check`, for a reference with weights, and for results it lacks."""
        super().check(domain)
        check_reference(self.reference, domain)
        if self.evolution.pairs and self.evolution.size >= 1:
            raise ValueError(f".evolution.size is {self.evolution.size:g}, and weights are above 0; legal: below 1")
        if self.pairs and "linear_evaluation" not in domain.evaluations:
            raise ValueError(
                f".pairs is {self.pairs}, and perturbed runs are judged by linear evaluation, which is not in "
                "ppi.evaluations; legal: 0, or linear_evaluation among them"
            )


def pairs(section: PpiEstimators) -> list[RunPair]:
    """Return the pairs of runs whose weights are perturbed."""
    return perturbations([group(number) for number in range(section.groups)], section.pairs, section.perturbation)


def needs(jobs: PpiJobs, section: PpiEstimators) -> Needs:
    """Return the estimates of each problem and PT seed, and the FT runs of the pairs."""
    reference = jobs.config.arms[section.reference]
    assert isinstance(reference, Supervised)
    problems = {setting: problem_of(jobs.config, setting) for setting in map(permuted, section.permuted)}
    runs = [
        jobs.estimates(entry, section.reference, setting, seed, own | {"groups": section.groups, "problem": problem})
        for entry, own in section.studies("finetune_lr").items()
        for setting, problem in problems.items()
        for seed in section.pretrain_seeds
    ]
    for setting in problems:
        for each in pairs(section):
            for name, sign in ((each.low, -1), (each.high, 1)):
                weights = [1 + sign * each.direction[group(number)] for number in range(section.groups)]
                arm: Arm = reference.model_copy(update={"group_weights": weights})
                runs += [jobs.finetune(name, setting, seed, arm) for seed in section.pretrain_seeds]
    names = [group(number) for number in range(section.groups)]
    return Needs(runs, words=measured_runs(section, list(problems.values()), names))


def slopes(results: PpiResults) -> pd.DataFrame:
    """Return the table of slopes."""
    section: PpiEstimators = results.section
    found = [slopes_of(results.metrics[results.metrics["setting"].str.contains(", horizon ")])]
    for setting in map(permuted, section.permuted):
        words = (pairs(section), VALIDATION_AUROC, LINEAR_EVALUATION, setting)
        found.append(pair_slopes(results, problem_of(results.config, setting), "perturbed runs", *words))
    return pd.concat([each for each in found if len(each)], ignore_index=True)


EXPERIMENT = experiment(
    PpiEstimators,
    order=13,
    needs=needs,
    results=PpiResults,
    slopes=slopes,
    title="Which estimates of the derivative w.r.t. weights of groups of PT tasks agree with what happened",
)
