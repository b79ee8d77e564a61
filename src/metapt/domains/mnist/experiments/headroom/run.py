"""Experiment `headroom`: PT with a fixed rotation, and FT on images of another rotation, for several seeds."""

from __future__ import annotations

from pathlib import Path

from metapt.domains.mnist import arms
from metapt.domains.mnist.arms import Outcome, Run
from metapt.domains.mnist.config import ArmSettings, BpttStudy, FixedArm
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.experiments.bptt.run import Stages, rotated_test_images
from metapt.domains.mnist.problem import logits
from metapt.domains.mnist.quantities import ACCURACY, VALIDATION_ACCURACY
from metapt.machine import Machine
from metapt.sections import seed_numbers
from metapt.training.supervised import accuracy
from metapt.twostage.quantities import FULL_TRANSFER, pair


def run(settings: ArmSettings[BpttStudy], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Pre-train and fine-tune a setting with each of its PT seeds; see `arms.run_arm`."""
    arms.run_arm(settings, train, __name__, inputs, outputs, machine)


def train(study: BpttStudy, run: Run, data: MnistData) -> Outcome:
    """Return the FT accuracy on test and validation images of each seed. Raises ConfigError as `batches.sample`."""
    arm = study.arms[run.arm]
    assert isinstance(arm, FixedArm)
    test, rows = rotated_test_images(study, run, data), []
    for seed in seed_numbers(study.replicates):
        stages = Stages(study, run, data, seed)
        network = stages.finetune(stages.pretrain(arm.mean))
        parts = {ACCURACY: test, VALIDATION_ACCURACY: stages.batches.whole_validation()}
        found = {name: float(accuracy(logits(*network, part.images), part.labels)) for name, part in parts.items()}
        rows += run.rows(found, replicate=pair(seed, 0), evaluation=FULL_TRANSFER)
    return Outcome(rows, [], [])
