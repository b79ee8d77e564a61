"""Experiment `estimators`: persistent evolution strategies of one problem and PT seed, along the weights of groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metapt.domains.ppi.batches import PpiBatches
from metapt.domains.ppi.pretraining_setting import PpiSetting
from metapt.domains.ppi.problem import WEIGHTS, MultitaskProblem
from metapt.domains.ppi.settings import group
from metapt.domains.ppi.studies.estimators import FOLDED, RIDGE, opened
from metapt.evaluation import metrics
from metapt.hypergrad import Adam, Params
from metapt.machine import Machine
from metapt.training.estimators import Slope
from metapt.training.evolution import COORDINATES, Trajectory, perturbations, slope
from metapt.training.seeds import generator
from metapt.twostage.slopes import rows


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Estimate the slopes along the weights of groups, and write them.

    The config is that of `studies.estimators`, with `study` of `problem`, `groups`, `pairs`, `windows` and `size`.
    """
    arm, study, setting = opened(config, inputs, machine)
    found = estimate(setting, arm.pretrain_lr, study["groups"], study["pairs"], study["windows"], study["size"])

    def along(gradient: Params) -> dict[str, float]:
        return {group(number): value for number, value in enumerate(gradient[COORDINATES].tolist())}

    metrics.write(rows("ppi_estimators", study["problem"], setting.seed, [found], along), outputs["metrics"])
    metrics.write_series([], outputs["series"])


def estimate(setting: PpiSetting, lr: float, count: int, pairs: int, windows: int, size: float) -> Slope:
    """Return the estimate along the weights of `count` groups, which are moved by `size` from 1."""
    groups = torch.from_numpy(setting.groups(count)).to(setting.dataset.device)

    def meta(change: Tensor) -> Params:
        weights = (1 + change).float().to(groups.device)[groups]
        return {WEIGHTS: torch.logit(weights / 2)}

    trajectory = Trajectory(
        problem=MultitaskProblem(setting.trained()),
        pretrained=setting.initial(),
        head=setting.initial_head(),
        optimizer=Adam(lr),
        steps=setting.steps,
        pretrain=setting.batches(PpiBatches),
        finetune=setting.batches(PpiBatches, FOLDED),
        finetuning=RIDGE,
    )
    moves = perturbations(pairs, windows, count, size, generator("ppi perturbations", setting.seed))
    return slope(trajectory, meta, moves, size)
