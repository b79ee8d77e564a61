"""Experiment `headroom`: PT with a fixed rotation, and FT on images of another rotation, for several seeds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from metapt.domains.mnist import arms, networks
from metapt.domains.mnist.arms import Outcome, Run
from metapt.domains.mnist.batches import rotated
from metapt.domains.mnist.config import BpttStudy, FixedArm, FixedRotation
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.experiments.bptt.run import Stages
from metapt.domains.mnist.problem import Images
from metapt.domains.mnist.quantities import ACCURACY, VALIDATION_ACCURACY
from metapt.evaluation import metrics
from metapt.machine import Machine
from metapt.training.supervised import accuracy
from metapt.twostage.quantities import FULL_TRANSFER, pair


def run(settings: FixedRotation, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Pre-train and fine-tune a setting with each of its PT seeds; see `arms.run_arm`."""
    arms.run_arm(settings, partial(train, settings.seeds), __name__, inputs, outputs, machine)


def train(seeds: list[int], study: BpttStudy, run: Run, data: MnistData) -> Outcome:
    """Return the FT accuracy on test and validation images of each seed. Raises ConfigError as `batches.sample`."""
    arm = study.arms[run.arm]
    assert isinstance(arm, FixedArm)
    test = Images(rotated(data.test_images, (study.target, 1.0), run.generator("test rotation")), data.test_labels)
    rows = []
    for seed in seeds:
        stages = Stages(study, run, data, seed)
        network = stages.finetune(stages.pretrain(arm.mean))
        for metric, part in ((ACCURACY, test), (VALIDATION_ACCURACY, stages.batches.whole_validation())):
            value = float(accuracy(networks.outputs(*network, part.images), part.labels))
            words: dict[str, Any] = {"replicate": pair(seed, 0), "evaluation": FULL_TRANSFER}
            rows.append(metrics.row(run.experiment, run.arm, metric, value, **words))
    return Outcome(rows, [], [])
