"""The jobs of this domain: their settings, files, threads, memory and time."""

from __future__ import annotations

import math

from metapt.domains.mnist.config import (
    ArmSettings,
    BpttStudy,
    ExampleWeighting,
    Fidelity,
    LearnedRotation,
    MnistSettings,
    Study,
)
from metapt.domains.mnist.data import FILES, TRAIN_IMAGES
from metapt.engine.jobs import Job, Jobs
from metapt.sections import JobSettings, seed_numbers

PREPARED = {"data": "images.pt"}


class MnistJobs(Jobs[MnistSettings]):
    """The jobs of this domain; see `Jobs`."""

    def prepared(self) -> Job:
        raw = self.raw(FILES.values(), minutes=30)
        return self.prepare(self.config.source, PREPARED, JobSettings(), raw, mem_mb=2000, minutes=10)

    def study(self, experiment: str, arm: str) -> Job:
        """Return the job that pre-trains and fine-tunes an arm of an experiment.

        An arm with the budget of another takes that arm's metrics as an input.
        """
        section: Study = getattr(self.config, experiment)
        own = section.arms[arm].to_run()
        inputs = {"data": self.prepared().outputs["data"]}
        other = getattr(own, "budget_of", None)
        if other is not None:
            inputs["budget"] = self.study(experiment, other).outputs["metrics"]
        study = section.model_copy(update={"arms": {arm: own}})
        runs = "rotation_mean" if isinstance(section, LearnedRotation) else experiment
        return self.training(
            "study",
            f"{experiment}/{arm}",
            f"domains.mnist.experiments.{runs}.run",
            ArmSettings[Study](experiment=experiment, arm=arm, settings=study),
            inputs,
            mem_mb=_mem_mb(section),
            minutes=minutes(section, arm),
            threads=_threads(section),
            resumable=isinstance(own, section.resumable),
            alone=isinstance(section, BpttStudy),  # its arms are timed
        )


def _threads(section: Study) -> int:
    """Return the number of CPU threads.

    Weighting trains its replicates in parallel. The other studies' networks are so small that one thread is fastest.
    """
    return min(4, len(seed_numbers(section.replicates))) if isinstance(section, ExampleWeighting) else 1


def minutes(section: Study, arm: str) -> int:
    """Return the time limit of an arm's job.

    It is an hour, and a minute for each outer step, with the sizes of the default. Larger sizes and more replicates get
    more in proportion.
    """
    arm_settings, default = section.arms[arm], type(section)()
    own = section.model_copy(
        update={"epochs": getattr(arm_settings, "epochs", None) or getattr(section, "epochs", None)}
    )
    larger = [_total(own, keys) / _total(default, keys) for keys in _SIZES if hasattr(default, keys[0])]
    limit: int = 60 + getattr(arm_settings, "outer_steps", 0)
    return math.ceil(limit * math.prod(max(1.0, each) for each in larger))


_SIZES = (
    ("pretrain_examples", "finetune_examples"),
    ("examples", "finetune_examples"),
    ("neumann_terms",),
    ("epochs",),
    ("pretrain_steps", "finetune_steps"),
    ("replicates",),
)
"""Keys of sizes; those of a tuple add up, and the time is in proportion to each sum."""


def _total(section: Study, keys: tuple[str, ...]) -> int:
    """Return the sum of some sizes: of a list its sum, of seeds their number, of all images 60,000."""
    sizes = {key: getattr(section, key, 0) for key in keys} | {"replicates": len(seed_numbers(section.replicates))}
    numbers = [TRAIN_IMAGES["mnist"] if sizes[key] == "all" else sizes[key] for key in keys]
    return sum(sum(number) if isinstance(number, list) else number for number in numbers)


def _mem_mb(section: Study) -> int:
    """Return megabytes.

    Imports, images and a reserve take 2,000; backpropagation through a whole PT and FT keeps about 4 for each step of
    64 images; weighting 3,000 images as one batch takes about 3,000 in each thread, and comparing their hypergradients
    1,000.
    """
    match section:
        case BpttStudy():
            return 2000 + 4 * (section.pretrain_steps + section.finetune_steps) * max(64, section.batch_size) // 64
        case Fidelity():
            return 1000 + max(3000, section.examples) // 3
        case ExampleWeighting():
            return 2000 + 3000 * _threads(section)
    return 2000
