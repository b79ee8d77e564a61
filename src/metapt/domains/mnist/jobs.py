"""The jobs of this domain: their settings, files, threads, memory and time."""

from __future__ import annotations

import math
from typing import Any

from metapt.domains.mnist.config import BpttStudy, ExampleWeighting, MnistSettings, Study
from metapt.domains.mnist.data.sources import FILES
from metapt.jobs import Job, Jobs, Json
from metapt.sections import plain, seed_numbers

PREPARED = {"data": "images.pt"}
SIMULATED = {"digits": list(FILES.values())}


class MnistJobs(Jobs[MnistSettings]):
    """The jobs of this domain; see `Jobs`."""

    def prepared(self) -> Job:
        """Return the job that prepares the images of the config's source."""
        source = self.config.source
        if source in SIMULATED:
            raw = self.simulate(source, SIMULATED[source]).outputs
        else:
            listed = self.place.sources[source]
            raw = {file: self.download(listed, file, minutes=30).outputs["file"] for file in FILES.values()}
        return self.prepare(source, PREPARED, config={}, inputs=raw, mem_mb=2000, minutes=10)

    def studies(self, experiment: str) -> list[Job]:
        """Return the job of each arm of an experiment, sorted by name."""
        return [self.study(experiment, arm) for arm in sorted(getattr(self.config, experiment).arms)]

    def study(self, experiment: str, arm: str) -> Job:
        """Return the job that pre-trains and fine-tunes an arm of an experiment.

        An arm with the budget of another takes that arm's metrics as an input.
        """
        section: Study = getattr(self.config, experiment)
        settings = plain(section)
        settings["arms"] = {arm: settings["arms"][arm]}
        inputs = {"data": self.prepared().outputs["data"]}
        other = settings["arms"][arm].get("budget_of")
        if other is not None:
            inputs["budget"] = self.study(experiment, other).outputs["metrics"]
        return self.training(
            "study",
            f"{experiment}/{arm}",
            f"domains.mnist.studies.{section.study}",
            {"experiment": experiment, "arm": arm, "settings": settings},
            inputs,
            mem_mb=_mem_mb(section),
            minutes=minutes(section, arm),
            threads=_threads(section),
            resumable=section.keeps_checkpoint(arm),
            alone=isinstance(section, BpttStudy),  # its arms are timed
        )


def _threads(section: Study) -> int:
    """Return the number of CPU threads.

    Weighting trains its replicates in parallel. The other studies' networks are so small that one thread is fastest.
    """
    return min(4, len(seed_numbers(section.replicates))) if isinstance(section, ExampleWeighting) else 1


def minutes(section: Study, arm: str, runs: int | None = None) -> int:
    """Return the time limit of an arm's job.

    It is an hour, and a minute for each outer step, with the sizes of the default. Larger sizes get more in proportion,
    and so do more runs than the default's replicates; `runs` are those of a study with PT seeds of its own.
    """
    own, default = plain(section), plain(type(section)())
    settings = own["arms"][arm]
    own |= {"replicates": runs or own["replicates"], "epochs": settings.get("epochs") or own.get("epochs", 0)}
    larger = [_total(own, keys) / _total(default, keys) for keys in _SIZES if keys[0] in default]
    limit: int = 60 + settings.get("outer_steps", 0)
    return math.ceil(limit * math.prod(max(1.0, each) for each in larger))


_SIZES = (
    ("pretrain_examples", "finetune_examples"),
    ("epochs",),
    ("pretrain_steps", "finetune_steps"),
    ("replicates",),
)
"""Keys of sizes; those of a tuple add up, and the time is in proportion to each sum."""


def _total(sizes: Json, keys: tuple[str, ...]) -> int:
    return sum(_number(sizes.get(key, 0), key) for key in keys)


def _number(value: Any, key: str) -> int:
    """Return a size as a number: of a list its sum, or of replicates their number; of all images 60,000."""
    if isinstance(value, list):
        return len(value) if key == "replicates" else sum(value)
    return 60_000 if value == "all" else int(value)


def _mem_mb(section: Study) -> int:
    """Return megabytes.

    Imports, images and a reserve take 2,000; backpropagation through a whole PT and FT keeps about 4 for each step;
    weighting 3,000 images as one batch takes about 3,000 in each thread.
    """
    match section:
        case BpttStudy():
            return 2000 + 4 * (section.pretrain_steps + section.finetune_steps)
        case ExampleWeighting():
            return 2000 + 3000 * _threads(section)
    return 2000
