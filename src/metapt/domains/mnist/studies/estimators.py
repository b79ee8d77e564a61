"""Experiment `estimators`: the estimates of one PT seed at the end of PT with a fixed rotation."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from metapt.domains.mnist import arms
from metapt.domains.mnist.arms import Outcome, Run
from metapt.domains.mnist.config import BpttStudy, FixedArm
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.quantities import PROBLEM
from metapt.domains.mnist.studies.bptt import SingleBatches, Stages
from metapt.hypergrad import SGD, Adam, RidgeHead, Unroll
from metapt.machine import Machine
from metapt.training.estimators import estimates, pretrain
from metapt.twostage.slopes import rows

_FOLDS = 3
RIDGE = RidgeHead(cross_fit=True, minibatches=_FOLDS)
"""Ridge heads are cross-fitted on large minibatches, so that each call takes most of the FT images."""


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Estimate with the PT seed `seed` of the config, by its `draws` and `horizons`; see `arms.run_arm`."""
    keys = ("seed", "draws", "horizons")
    arms.run_arm(
        BpttStudy, partial(estimate, **{key: config[key] for key in keys}), __name__, config, inputs, outputs, machine
    )


def estimate(study: BpttStudy, run: Run, data: MnistData, *, seed: int, draws: int, horizons: list[int]) -> Outcome:
    """Return the slopes along the mean rotation as rows of the metrics table. Raises ConfigError as `arms.sample`.

    Unrolled FT steps take minibatches of the size of PT and FT.
    """
    arm = study.arms[run.arm]
    assert isinstance(arm, FixedArm)
    stages = Stages(study, run, data, seed)
    meta = {"mean": torch.tensor(arm.mean, device=run.device)}
    start = stages.problem, stages.batches, stages.pretrained, meta, stages.head
    end = pretrain(*start, Adam(study.pretrain_lr), study.pretrain_steps)
    optimizer, folds = SGD(study.finetune_lr), large_batches(study, run, data, seed)
    found = estimates(
        end, folds, lambda k: Unroll(k, optimizer, network=True), RIDGE, study.pretrain_lr, draws, horizons
    )
    own = rows(run.experiment, PROBLEM, seed, found, lambda gradient: {"mean": float(gradient["mean"])})
    return Outcome(own, [], [])


def large_batches(study: BpttStudy, run: Run, data: MnistData, seed: int) -> SingleBatches:
    """Return the minibatches of `RIDGE`."""
    folds = study.model_copy(update={"batch_size": study.finetune_examples // 2 // _FOLDS})
    return SingleBatches(data, folds, run, seed)
