"""Experiment `estimators`: persistent evolution strategies of one PT seed, along the mean rotation."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metapt.domains.mnist import arms
from metapt.domains.mnist.arms import Outcome, Run
from metapt.domains.mnist.config import BpttStudy, FixedArm
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.quantities import PROBLEM
from metapt.domains.mnist.studies.bptt import Stages
from metapt.domains.mnist.studies.estimators import RIDGE, large_batches
from metapt.hypergrad import Adam, Params
from metapt.machine import Machine
from metapt.training.evolution import COORDINATES, Trajectory, perturbations, slope
from metapt.twostage.slopes import rows


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Estimate with the PT seed `seed` of the config, by its `pairs`, `windows` and `size`; see `arms.run_arm`."""
    keys = ("seed", "pairs", "windows", "size")
    arms.run_arm(
        BpttStudy, partial(estimate, **{key: config[key] for key in keys}), __name__, config, inputs, outputs, machine
    )


def estimate(
    study: BpttStudy, run: Run, data: MnistData, *, seed: int, pairs: int, windows: int, size: float
) -> Outcome:
    """Return the slope along the mean rotation as rows of the metrics table. Raises ConfigError as `arms.sample`.

    `size` is in degrees.
    """
    arm = study.arms[run.arm]
    assert isinstance(arm, FixedArm)
    reference = arm.mean
    stages = Stages(study, run, data, seed)

    def meta(change: Tensor) -> Params:
        return {"mean": torch.tensor(reference + float(change), device=run.device)}

    trajectory = Trajectory(
        problem=stages.problem,
        pretrained=stages.pretrained,
        head=stages.head,
        optimizer=Adam(study.pretrain_lr),
        steps=study.pretrain_steps,
        pretrain=stages.batches,
        finetune=large_batches(study, run, data, seed),
        finetuning=RIDGE,
    )
    found = slope(trajectory, meta, perturbations(pairs, windows, 1, size, run.generator("perturbations", seed)), size)
    own = rows(run.experiment, PROBLEM, seed, [found], lambda gradient: {"mean": float(gradient[COORDINATES])})
    return Outcome(own, [], [])
