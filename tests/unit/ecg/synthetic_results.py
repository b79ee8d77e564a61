"""Files of the ECG experiments' runs with given numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from metapt.domains.ecg.stages import AUROC, DISPLACEMENT
from metapt.engine.jobs import Job
from metapt.evaluation import metrics
from metapt.twostage.quantities import PEAK_MEMORY, TIME_PER_STEP, WALL_TIME

from ..twostage import synthetic_runs
from ..twostage.synthetic_runs import SEED_SPREAD, Rows, series

AurocOf = Callable[[str, int, int | None, str], float]
"""Arm, |D_FT|, FT ECGs at meta-PT time, evaluation -> mean AUROC (%)."""


class Runs(synthetic_runs.Runs):
    """The files of an experiment's runs, with numbers that a test may change before `write`.

    Attributes:
        auroc: see `AurocOf`.
        gap: arm, PT seed -> offset of the AUROC.
        trajectory: arm, PT seed -> displacement of the warp at each step.
        numbers: arm, PT seed -> further numbers of a PT run.
    """

    domain = "ecg"
    usual = {"source": "ptbxl-1.0.3"}

    def __init__(self, folder: Path, key: str, settings: dict[str, Any]) -> None:
        super().__init__(folder, key, **settings)
        self.generator = np.random.default_rng(0)
        self.auroc: AurocOf = lambda arm, size, few, evaluation: 80.0
        self.gap: Callable[[str, int], float] = lambda arm, seed: 0.0
        self.trajectory: Callable[[str, int], list[float]] = lambda arm, seed: []
        self.numbers: Callable[[str, int], dict[str, float]] = lambda arm, seed: {}

    def _pretrain(self, job: Job) -> tuple[Rows, Rows]:
        arm, seed, size = (job.config[key] for key in ("arm", "seed", "meta_size"))
        setting, way = "" if size is None else f"meta_ft_size={size}", self.trajectory(arm, seed)
        numbers = {TIME_PER_STEP: 0.04, WALL_TIME: 144.0, PEAK_MEMORY: 2.0, DISPLACEMENT: [10.0, *way][-1]}
        numbers |= self.numbers(arm, seed)
        rows = metrics.rows_of("ecg", arm, numbers, replicate=seed, setting=setting, evaluation="pretraining")
        return rows, series(DISPLACEMENT, way)

    def _finetune(self, job: Job) -> tuple[Rows, Rows]:
        arm, size, few, pt = (job.config[key] for key in ("arm", "size", "meta_size", "seed"))
        setting = f"ft_size={size}" + (f" meta_ft_size={few}" if few not in (None, size) else "")
        rows, gap = [], SEED_SPREAD[pt] + self.gap(arm, pt)
        for words, shift in self.finetunings(job):
            value = self.auroc(arm, size, few, words["evaluation"]) + gap + shift
            rows.append(metrics.row("ecg", arm, AUROC, value, setting=setting, **words))
        return rows, []


SIZES = {
    "no_pt": (71.5, 76.1, 78.7, 82.0, 84.5),
    "simclr": (74.6, 76.5, 79.8, 82.2, 85.8),
    "meta": (75.0, 76.2, 79.9, 82.6, 85.7),
    "meta-stable": (76.5, 79.0, 81.9, 84.1, 86.9),
    "meta-stable-start": (75.0, 77.0, 80.0, 82.0, 86.0),
}


def full_access(folder: Path, **settings: Any) -> Runs:
    runs = Runs(folder, "full_access", settings)

    def auroc(arm: str, size: int, few: int | None, evaluation: str) -> float:
        place = (100, 250, 500, 1000, 2500).index(size)
        value = SIZES[arm][place] if arm in SIZES else 75.0 + 2.6 * place
        return value - (4 if evaluation == "linear_evaluation" else 0)

    runs.auroc = auroc
    runs.gap = lambda arm, seed: (-0.3, 0.0, 0.3, 0.2, -0.2)[seed] if arm == "meta" else 0.0
    return runs


def unroll_steps(folder: Path, **settings: Any) -> Runs:
    runs = Runs(folder, "unroll_steps", settings)
    gains = {"simclr": 0.0, "meta-k0": 0.6, "meta": 1.5, "meta-k5": 1.9, "meta-k10": 1.7}
    runs.auroc = lambda arm, size, few, evaluation: 80.0 + 5 * math.log10(size / 500) + gains[arm]
    runs.gap = lambda arm, seed: (-0.05, 0.0, 0.05, 0.02, -0.02)[seed] if arm != "simclr" else 0.0
    return runs


def partial_access(folder: Path, **settings: Any) -> Runs:
    runs = Runs(folder, "partial_access", settings)

    def auroc(arm: str, size: int, few: int | None, evaluation: str) -> float:
        gain = 0.0 if few is None else (1.0 if arm == "meta" else 2.0) * (1 - math.exp(-few / 40))
        return 80.0 + 5 * math.log10(size / 500) + gain

    runs.auroc = auroc
    runs.gap = lambda arm, seed: (-0.2, 0.0, 0.1, 0.05, 0.05)[seed] if arm != "simclr" else 0.0
    return runs


def cost(folder: Path, **settings: Any) -> Runs:
    runs = Runs(folder, "cost", settings)

    def numbers(arm: str, seed: int) -> dict[str, float]:
        seconds, gigabytes = {"simclr": (0.040, 2.0), "meta": (0.060, 3.5)}.get(arm, (0.12, 3.8))
        seconds *= 1 + 0.02 * seed
        return {TIME_PER_STEP: seconds, WALL_TIME: 3600 * seconds, PEAK_MEMORY: gigabytes}

    runs.numbers = numbers
    return runs


MAKERS = {maker.__name__: maker for maker in (full_access, unroll_steps, partial_access, cost)}


def runs_of(key: str, folder: Path, **settings: Any) -> Runs:
    return MAKERS[key](folder, **settings)
