"""Experiment `headroom`: what other rotations of PT images could gain, a positive control.

Not in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import pandas as pd
from pydantic import AfterValidator

from metapt.domains.mnist.config import BpttStudy, FixedArm, FixedRotation, MnistSettings
from metapt.domains.mnist.jobs import MnistJobs, minutes
from metapt.domains.mnist.quantities import ACCURACY, PROBLEM, VALIDATION_ACCURACY
from metapt.domains.mnist.results import MnistResults
from metapt.evaluation.experiment import Needs
from metapt.evaluation.headroom import REFERENCE
from metapt.jobs import Job
from metapt.sections import Distinct, Positive, Seed, key
from metapt.twostage.headroom import Cell, HeadroomSection, experiment, rising, table_of_runs

NAMES = {"mean": "mean rotation in PT (degrees)"}
"""Hyperparameter -> its name in tables and figures."""


class MnistHeadroom(HeadroomSection):
    """Random mean rotations of PT images, each with the same PT seeds: a positive control. Not in the paper."""

    pretrain_seeds: Annotated[list[Seed], Distinct] = key(
        list(range(8)), "PT seeds, the same for all settings; tables with other seeds can be joined"
    )
    mean: Annotated[tuple[float, float], AfterValidator(rising)] = key(
        (0.0, 180.0), "range of the mean rotation in PT, uniform, degrees"
    )
    reference: float = key(45.0, "the mean rotation that settings are compared with, degrees")
    target: float = key(90.0, "mean rotation of FT images, degrees; the standard deviation is 1 in PT and FT")
    pretrain_examples: Positive = key(3000, "PT images")
    finetune_examples: Positive = key(3000, "FT images, half of them for validation")
    pretrain_steps: Positive = key(500, "PT steps")
    finetune_steps: Positive = key(500, "FT steps")

    def arm_names(self) -> list[str]:
        """Return the settings and the reference, each an arm of its own."""
        return list(settings(self))


def settings(section: MnistHeadroom) -> dict[str, dict[str, float]]:
    """Return the hyperparameters of each setting and of the reference, by its name."""
    return section.draws({"mean": section.mean}, logarithmic=False) | {REFERENCE: {"mean": section.reference}}


def needs(jobs: MnistJobs, section: MnistHeadroom) -> Needs:
    """Return the run of each setting."""
    means = {name: drawn["mean"] for name, drawn in settings(section).items()}
    return Needs(fixed_runs(jobs, section, means, section.pretrain_seeds))


def fixed_runs(jobs: MnistJobs, section: MnistHeadroom, means: Mapping[str, float], seeds: Sequence[int]) -> list[Job]:
    """Return a job for each mean rotation, by its name, with all PT seeds."""
    made = []
    for name, mean in means.items():
        own = study(section, {name: mean})
        config = FixedRotation(experiment="headroom", arm=name, settings=own, seeds=list(seeds))
        entry, inputs = "domains.mnist.experiments.headroom.run", {"data": jobs.prepared().outputs["data"]}
        words = "study", f"headroom/{name}", entry, config, inputs
        made.append(jobs.training(*words, resumable=False, mem_mb=2000, minutes=minutes(own, name, len(seeds))))
    return made


def study(section: MnistHeadroom, means: Mapping[str, float]) -> BpttStudy:
    """Return the settings of PT with fixed mean rotations, and of FT."""
    keys = "target", "pretrain_examples", "finetune_examples", "pretrain_steps", "finetune_steps"
    arms = {name: FixedArm(method="fixed", mean=mean) for name, mean in means.items()}
    return BpttStudy(arms=arms, **{key: getattr(section, key) for key in keys})


def problem_of(config: MnistSettings) -> str:
    """Return the name of the problem in the table of runs."""
    return f"{config.source} " * config.stand_in + PROBLEM


def runs(results: MnistResults) -> pd.DataFrame:
    """Return the table of runs."""
    problem = problem_of(results.config)
    cells = [Cell(name, "", problem, name, drawn) for name, drawn in settings(results.section).items()]
    return table_of_runs(results, cells, ACCURACY, VALIDATION_ACCURACY)


EXPERIMENT = experiment(
    MnistHeadroom,
    order=6,
    needs=needs,
    results=MnistResults,
    runs=runs,
    metric=ACCURACY,
    label=ACCURACY,
    names=NAMES,
    title="What other rotations of PT images could gain",
)
