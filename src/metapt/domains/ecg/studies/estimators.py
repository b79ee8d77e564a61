"""Experiment `estimators`: the estimates of one PT seed at the end of SimCLR with given strengths of views."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from metapt.domains.ecg.config import Simclr
from metapt.domains.ecg.setting import Setting, policy_of, study_setting
from metapt.domains.ecg.view_strengths import STRENGTHS, ViewStrengthsProblem
from metapt.evaluation import metrics
from metapt.hypergrad import Adam, RidgeHead, Unroll
from metapt.machine import Machine
from metapt.training.estimators import PERIOD, Slope, exact, pretrain, refitted, slopes, unrolled
from metapt.twostage.slopes import rows

_FOLDS = 5


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Pre-train, estimate the slopes along the logarithms of the strengths, and write them.

    The config holds `arm_settings` (a `Simclr` with one strength for all ECGs), `width`, `samples`, `pretrain`,
    `meta_size`, `split`, `seed`, and `study`: `problem` (see `rows`), `draws`, `horizons`, `finetune_batch` and
    `finetune_lr`. The inputs are `signals` and `records`.
    """
    study = config["study"]
    setting = study_setting(config, inputs, config["seed"], machine.device)
    found = estimates(setting, Simclr.model_validate(config["arm_settings"]), study)
    made = rows(
        "ecg_estimators",
        study["problem"],
        setting.seed,
        found,
        lambda gradient: {name: float(gradient[own]) for name, own in STRENGTHS.items()},
    )
    metrics.write(made, outputs["metrics"])
    metrics.write_series([], outputs["series"])


def estimates(setting: Setting, arm: Simclr, study: dict[str, Any]) -> list[Slope]:
    """Return the estimates of all estimators; PT computes in float32, and so do they.

    Unrolled FT steps take minibatches, as Algorithm 2 does. Ridge heads are cross-fitted over all labelled ECGs, a
    patient's ECGs in one fold.
    """
    own, lr, draws = setting.pretrain, setting.pretrain.lr, study["draws"]
    policy = policy_of(arm.warp)
    problem = ViewStrengthsProblem(setting.encoder, policy, own.temperature, own.crop, own.noise)
    train, validation = setting.finetune
    size = study["finetune_batch"]
    batches = setting.batches({"train": (train, size), "validation": (validation, size)})
    start = setting.initial(), problem.initial(setting.dataset.device), setting.initial_head()
    end = pretrain(problem, batches, *start, Adam(lr), setting.steps)
    updates = setting.steps // PERIOD
    steps = {k: Unroll(k, Adam(study["finetune_lr"])) for k in (0, 1, 5)}
    found = list(slopes(end, unrolled(steps.__getitem__, lr, updates), draws))
    found += slopes(end, exact("K = 1", steps[1], study["horizons"], updates), draws)
    ridge = RidgeHead(cross_fit=True, minibatches=_FOLDS - 1)
    folded = replace(end, batches=setting.batches({"folds": (np.concatenate([train, validation]), _FOLDS)}))
    fitted = refitted("ridge head", ridge, lr) | exact("ridge head", ridge, study["horizons"])
    return found + list(slopes(folded, fitted, max(1, draws // 8)))
