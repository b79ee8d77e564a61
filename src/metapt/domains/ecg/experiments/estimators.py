"""Experiment `estimators`: which estimates of the derivative w.r.t. strengths of views agree with what happened.

Not in the paper.
"""

from __future__ import annotations

import math

import pandas as pd

from metapt.domains.ecg.config import EcgSettings
from metapt.domains.ecg.experiments.headroom import arm_of, problem_of
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ecg.results import EcgResults, finetune_setting
from metapt.evaluation.experiment import Needs
from metapt.sections import Positive, Rate, key
from metapt.twostage.estimators import (
    EstimatorsSection,
    Evolution,
    RunPair,
    ends,
    experiment,
    measured_runs,
    pair,
    pair_slopes,
    slopes_of,
)
from metapt.twostage.quantities import EVALUATIONS, VALIDATION_AUROC

HYPERPARAMETERS = ("strength", "crop", "noise", "temperature")


class EcgEstimators(EstimatorsSection):
    """Estimates of the derivative w.r.t. warp, crop, jitter and temperature, at the given values. Not in the paper."""

    strength: Rate = key(4.0, "strength of the warp, whose velocity is smoothed, samples")
    crop: Rate = key(0.218, "largest share of a lead that a crop zeroes")
    noise: Rate = key(0.1, "standard deviation of the white noise over the lead's")
    temperature: Rate = key(0.316, "temperature of NT-Xent")
    secant: float = key(2.0, "factor between an end of a secant and the value", gt=1)
    evolution: Evolution = key(Evolution(pairs=4, size=0.69), "persistent evolution strategies")
    finetune_size: Positive = key(500, "labelled ECGs")
    finetune_batch: Positive = key(64, "ECGs per FT minibatch of unrolled steps")
    finetune_lr: Rate = key(1e-3, "learning rate of unrolled FT steps (Adam)")

    def made_arms(self) -> list[str]:
        """Return the names of the ends of the secants."""
        return ends(secants(self))

    def check(self, domain: EcgSettings) -> None:
        """Raise ValueError as `EstimatorsSection.check`, and if a secant or a move crops more than a lead."""
        super().check(domain)
        if self.crop * self.secant > 1:
            largest = 1 / self.secant
            raise ValueError(f".crop is {self.crop:g}, and secants go beyond a whole lead; legal: at most {largest:g}")
        if self.evolution.pairs and self.crop * math.exp(self.evolution.size) > 1:
            words = f".evolution.size is {self.evolution.size:g}, and moves of {self.crop:g} go beyond a whole lead"
            raise ValueError(f"{words}; legal: at most {-math.log(self.crop):.3g}")


def values(section: EcgEstimators) -> dict[str, float]:
    """Return the values of the hyperparameters at which the estimates are made."""
    return {name: getattr(section, name) for name in HYPERPARAMETERS}


def secants(section: EcgEstimators) -> list[RunPair]:
    """Return the ends of the secant along each hyperparameter."""
    return [pair(f"secant-{name}", {name: math.log(section.secant)}) for name in HYPERPARAMETERS]


def needs(jobs: EcgJobs, section: EcgEstimators) -> Needs:
    """Return the estimates of each PT seed, and the FT runs of the secants."""
    at, size = values(section), section.finetune_size
    problem = problem_of(jobs.config)
    runs = [
        jobs.estimates(entry, arm_of(**at), seed, size, own | {"problem": problem})
        for entry, own in section.studies("finetune_batch", "finetune_lr").items()
        for seed in section.pretrain_seeds
    ]
    for seed in section.pretrain_seeds:
        for each in secants(section):
            for end, sign in ((each.low, -1), (each.high, 1)):
                moved = {name: at[name] * math.exp(sign * length) for name, length in each.direction.items()}
                runs.append(jobs.finetune(end, "none", size, seed, arm_of(**at | moved)))
    return Needs(runs, words=measured_runs(section, [problem], HYPERPARAMETERS))


def slopes(results: EcgResults) -> pd.DataFrame:
    """Return the table of slopes."""
    section: EcgEstimators = results.section
    found = [slopes_of(results.metrics[results.metrics["setting"].str.contains(", horizon ")])]
    problem, setting = problem_of(results.config), finetune_setting(section.finetune_size)
    for evaluation in results.config.evaluations:
        words = problem, f"secant, {EVALUATIONS[evaluation]}", secants(section), VALIDATION_AUROC, evaluation, setting
        found.append(pair_slopes(results, *words))
    return pd.concat(found, ignore_index=True)


EXPERIMENT = experiment(
    EcgEstimators,
    order=9,
    needs=needs,
    results=EcgResults,
    slopes=slopes,
    logarithmic=HYPERPARAMETERS,
    title="Which estimates of the derivative w.r.t. strengths of views agree with what happened",
)
