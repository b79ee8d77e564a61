"""Experiment `estimators`: the estimates of one PT seed at the end of SimCLR with given strengths of views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from metapt.domains.ecg.batches import SimclrBatches
from metapt.domains.ecg.config import Simclr
from metapt.domains.ecg.setting import Setting, policy_of, study_setting
from metapt.domains.ecg.view_strengths import STRENGTHS, ViewStrengthsProblem
from metapt.evaluation import metrics
from metapt.hypergrad import Adam, RidgeHead, Unroll
from metapt.machine import Machine
from metapt.training.estimators import Slope, estimates, pretrain
from metapt.twostage.slopes import rows

_FOLDS = 5
RIDGE = RidgeHead(cross_fit=True, minibatches=_FOLDS - 1)
"""Ridge heads are cross-fitted over all labelled ECGs, a patient's ECGs in one fold."""


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Pre-train, estimate the slopes along the logarithms of the strengths, and write them.

    The config holds `arm_settings` (a `Simclr` with one strength for all ECGs), `width`, `samples`, `pretrain`,
    `meta_size`, `split`, `seed`, and `study`: `problem` (see `rows`), `draws`, `horizons`, `finetune_batch` and
    `finetune_lr`. The inputs are `signals` and `records`.
    """
    study = config["study"]
    setting = study_setting(config, inputs, config["seed"], machine.device)
    found = estimate(setting, Simclr.model_validate(config["arm_settings"]), study)
    made = rows(
        "ecg_estimators",
        study["problem"],
        setting.seed,
        found,
        lambda gradient: {name: float(gradient[own]) for name, own in STRENGTHS.items()},
    )
    metrics.write(made, outputs["metrics"])
    metrics.write_series([], outputs["series"])


def estimate(setting: Setting, arm: Simclr, study: dict[str, Any]) -> list[Slope]:
    """Return the estimates of all estimators; PT computes in float32, and so do they.

    Unrolled FT steps take minibatches, as Algorithm 2 does.
    """
    lr, problem = setting.pretrain.lr, problem_of(setting, arm)
    train, validation = setting.finetune
    size = study["finetune_batch"]
    batches = setting.batches({"train": (train, size), "validation": (validation, size)})
    start = setting.initial(), problem.initial(setting.dataset.device), setting.initial_head()
    end = pretrain(problem, batches, *start, Adam(lr), setting.steps)
    optimizer = Adam(study["finetune_lr"])
    return estimates(end, folds(setting), lambda k: Unroll(k, optimizer), RIDGE, lr, study["draws"], study["horizons"])


def problem_of(setting: Setting, arm: Simclr) -> ViewStrengthsProblem:
    """Return the problem whose meta-parameters are the logarithms of an arm's strengths."""
    own = setting.pretrain
    return ViewStrengthsProblem(setting.encoder, policy_of(arm.warp), own.temperature, own.crop, own.noise)


def folds(setting: Setting) -> SimclrBatches:
    """Return the minibatches of `RIDGE`."""
    return setting.batches({"folds": (np.concatenate(setting.finetune), _FOLDS)})
