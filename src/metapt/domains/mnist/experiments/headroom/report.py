"""Experiment `headroom`: what other rotations of PT images could gain, a positive control.

Not in the paper.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator

from metapt.domains.mnist.config import ArmSettings, BpttStudy, FixedArm
from metapt.domains.mnist.jobs import MnistJobs, minutes
from metapt.domains.mnist.quantities import ACCURACY, VALIDATION_ACCURACY
from metapt.domains.mnist.results import MnistResults
from metapt.evaluation.experiment import Needs
from metapt.evaluation.headroom import REFERENCE
from metapt.sections import Positive, key
from metapt.twostage.headroom import HeadroomSection, experiment, rising


class MnistHeadroom(HeadroomSection):
    """Random mean rotations of PT images, each with the same PT seeds: a positive control. Not in the paper."""

    logarithmic: ClassVar[bool] = False

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
        return [*self.made_arms(), REFERENCE]

    def ranges(self) -> dict[str, tuple[float, float]]:
        return {"mean": self.mean}

    def reference_values(self) -> dict[str, float]:
        return {"mean": self.reference}


def needs(jobs: MnistJobs, section: MnistHeadroom) -> Needs:
    """Return the run of each setting, with all PT seeds."""
    keys = "target", "pretrain_examples", "finetune_examples", "pretrain_steps", "finetune_steps"
    own: dict[str, Any] = {key: getattr(section, key) for key in keys} | {"replicates": section.pretrain_seeds}
    runs = []
    for name, values in (section.drawn() | {REFERENCE: section.reference_values()}).items():
        study = BpttStudy(arms={name: FixedArm(method="fixed", mean=values["mean"])}, **own)
        runs.append(
            jobs.training(
                "study",
                f"headroom/{name}",
                "domains.mnist.experiments.headroom.run",
                ArmSettings[BpttStudy](experiment="headroom", arm=name, settings=study),
                {"data": jobs.prepared().outputs["data"]},
                resumable=False,
                mem_mb=2000,
                minutes=minutes(study, name),
            )
        )
    return Needs(runs)


EXPERIMENT = experiment(
    MnistHeadroom,
    order=6,
    needs=needs,
    results=MnistResults,
    problem=lambda results: ("", "mnist rotation"),
    test=lambda results: ACCURACY,
    validation=VALIDATION_ACCURACY,
    label=ACCURACY,
    names={"mean": "mean rotation in PT (degrees)"},
    title="What other rotations of PT images could gain",
)
