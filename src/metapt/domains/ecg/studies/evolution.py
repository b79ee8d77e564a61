"""Experiment `estimators`: persistent evolution strategies of one PT seed, along the strengths of views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from metapt.domains.ecg.config import Simclr
from metapt.domains.ecg.setting import Setting, study_setting
from metapt.domains.ecg.studies.estimators import RIDGE, folds, problem_of
from metapt.domains.ecg.view_strengths import STRENGTHS
from metapt.evaluation import metrics
from metapt.hypergrad import Adam, Params
from metapt.machine import Machine
from metapt.training.estimators import Slope
from metapt.training.evolution import COORDINATES, Trajectory, perturbations, slope
from metapt.training.seeds import generator
from metapt.twostage.slopes import rows


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Estimate the slopes along the logarithms of the strengths, and write them.

    The config is that of `studies.estimators`, with `study` of `problem`, `pairs`, `windows` and `size`.
    """
    study = config["study"]
    setting = study_setting(config, inputs, config["seed"], machine.device)
    arm = Simclr.model_validate(config["arm_settings"])
    found = estimate(setting, arm, study["pairs"], study["windows"], study["size"])

    def along(gradient: Params) -> dict[str, float]:
        return dict(zip(STRENGTHS, gradient[COORDINATES].tolist(), strict=True))

    metrics.write(rows("ecg_estimators", study["problem"], setting.seed, [found], along), outputs["metrics"])
    metrics.write_series([], outputs["series"])


def estimate(setting: Setting, arm: Simclr, pairs: int, windows: int, size: float) -> Slope:
    """Return the estimate along the logarithms of the strengths, in the order of `STRENGTHS`, moved by `size`."""
    problem, batches = problem_of(setting, arm), setting.batches()
    reference = problem.initial(setting.dataset.device)

    def meta(change: Tensor) -> Params:
        moves = dict(zip(STRENGTHS.values(), change.tolist(), strict=True))
        return {name: value + moves[name] for name, value in reference.items()}

    trajectory = Trajectory(
        problem=problem,
        pretrained=setting.initial(),
        head=setting.initial_head(),
        optimizer=Adam(setting.pretrain.lr),
        steps=setting.steps,
        pretrain=batches,
        finetune=folds(setting),
        finetuning=RIDGE,
    )
    moves = perturbations(pairs, windows, len(STRENGTHS), size, generator("ecg perturbations", setting.seed))
    return slope(trajectory, meta, moves, size)
