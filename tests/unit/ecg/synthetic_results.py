"""Files of the ECG experiments' runs with given numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metapt.domains.ecg.domain import DOMAIN
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ecg.quantities import AUROC, DISPLACEMENT, LABELS, ORIGINAL, viewed
from metapt.engine.config_files import read_one
from metapt.engine.execute import work_of
from metapt.engine.jobs import Job, Place
from metapt.engine.plan import SOURCES
from metapt.evaluation import figures, metrics
from metapt.machine import Machine
from metapt.sections import SummarySettings
from metapt.twostage.quantities import PEAK_MEMORY, TIME_PER_STEP, WALL_TIME
from metapt.twostage.replicates import pair

SEED_SPREAD = (-0.5, 0.1, 0.4, -0.2, 0.2)
"""What a PT seed adds to the AUROC of every arm, so that it cancels in paired differences."""

AurocOf = Callable[[str, int, int | None, str], float]
"""Arm, |D_FT|, FT ECGs at meta-PT time, evaluation -> mean AUROC (%)."""


class Runs:
    """The files of an experiment's runs, with numbers that a test may change before `write`.

    Attributes:
        job, experiment, settings: the summary, its record, and what it reads.
        inputs: its inputs, once they are written.
        auroc: see `AurocOf`.
        gap: arm, PT seed -> offset of the AUROC.
        trajectory: arm, PT seed -> displacement of the warp at each step.
        numbers: arm, PT seed -> further numbers of a PT run.
        machine: arm -> name of the machine.
        views: rows of the series of the study of views.
    """

    def __init__(self, folder: Path, key: str, settings: Mapping[str, Any]) -> None:
        self.key, self.folder = key, folder
        self.config: Any = DOMAIN.section().model_validate(
            {key: {}, "source": "ptbxl-1.0.3", "pretrain_seeds": 5, **settings}
        )
        jobs = EcgJobs("ecg", self.config, Place(str(folder), str(folder / "raw"), read_one(SOURCES), []))
        self.job, self.experiment = DOMAIN.summary(jobs, key), DOMAIN.experiments[key]
        self.settings = SummarySettings.model_validate(self.job.config)
        self.inputs = {name: Path(path) for name, path in self.job.inputs.items()}
        self.made = list(jobs.made.values())
        self.generator = np.random.default_rng(0)
        self.auroc: AurocOf = lambda arm, size, few, evaluation: 80.0
        self.gap: Callable[[str, int], float] = lambda arm, seed: 0.0
        self.trajectory: Callable[[str, int], list[float]] = lambda arm, seed: []
        self.numbers: Callable[[str, int], dict[str, float]] = lambda arm, seed: {}
        self.machine: Callable[[str], str] = lambda arm: "a machine"
        self.views: list[dict[str, Any]] = []

    def write(self) -> None:
        for job in self.made:
            if job.trains:
                rows: list[dict[str, Any]] = []
                steps = self.views
                if job.stage == "pretrain":
                    steps = series(DISPLACEMENT, self.trajectory(job.config["arm"], job.config["seed"]))
                    rows = self._pretrain(job)
                elif job.stage == "finetune":
                    rows, steps = self._finetune(job), []
                metrics.write(rows, Path(job.outputs["metrics"]))
                metrics.write_series(steps, Path(job.outputs["series"]))
                machine = {"name": self.machine(job.config.get("arm", "")), "device": "cuda"}
                Path(job.record).write_text(json.dumps({"machine": machine}))

    def _pretrain(self, job: Job) -> list[dict[str, Any]]:
        arm, seed, size = (job.config[key] for key in ("arm", "seed", "meta_size"))
        setting = "" if size is None else f"meta_ft_size={size}"
        usual = {TIME_PER_STEP: 0.04, WALL_TIME: 144.0, PEAK_MEMORY: 2.0}
        numbers = usual | {DISPLACEMENT: [10.0, *self.trajectory(arm, seed)][-1]} | self.numbers(arm, seed)
        return metrics.rows_of("ecg", arm, numbers, replicate=seed, setting=setting, evaluation="pretraining")

    def _finetune(self, job: Job) -> list[dict[str, Any]]:
        arm, size, few, pt = (job.config[key] for key in ("arm", "size", "meta_size", "seed"))
        setting = f"ft_size={size}" + (f" meta_ft_size={few}" if few not in (None, size) else "")
        rows = []
        for evaluation in self.config.evaluations:
            for ft in range(self.config.finetune_seeds):
                value = self.auroc(arm, size, few, evaluation) + SEED_SPREAD[pt] + self.gap(arm, pt)
                value += 0.3 * (ft - (self.config.finetune_seeds - 1) / 2)
                words = {"replicate": pair(pt, ft), "setting": setting, "evaluation": evaluation}
                rows.append(metrics.row("ecg", arm, AUROC, value, **words))
        return rows

    def results(self) -> Any:
        """Return what the experiment reads of its runs."""
        return self.experiment.results.read(self.experiment.section, self.settings, self.inputs)

    def summarise(self) -> dict[str, Path]:
        """Write the runs, and return the files of their summary; its figure is only built, and not written."""
        self.write()
        outputs = {name: Path(path) for name, path in self.job.outputs.items()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(figures, "save", lambda figure, path: None)
            work_of(self.job)(self.inputs, outputs, Machine())
        return outputs


def series(name: str, *replicates: Iterable[float]) -> list[dict[str, Any]]:
    return [row for number, values in enumerate(replicates) for row in metrics.series(name, values, number)]


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


def augmentations(folder: Path, **settings: Any) -> Runs:
    runs = Runs(folder, "augmentations", settings)
    ends, random = {"simclr": 60.0, "meta": 75.0, "meta-stable": 5.0}, runs.generator
    runs.trajectory = lambda arm, seed: [] if arm == "simclr" else list(np.geomspace(60, ends[arm] + 0.1 * seed, 60))
    runs.numbers = lambda arm, seed: {DISPLACEMENT: 60.0} if arm == "simclr" else {}
    time = np.arange(1000) / 100
    beat = np.exp(-(((time % 0.9) - 0.4) ** 2) / 3e-4) + 0.2 * np.exp(-(((time % 0.9) - 0.65) ** 2) / 4e-3)
    labels = random.random((400, 5)) < 0.3
    runs.views = series(ORIGINAL, beat)
    for name, having in zip(LABELS.values(), labels.T, strict=True):
        runs.views += series(name, having.astype(float))
    for arm, end in ends.items():
        for when, size in (("initial", 60.0), ("learned", end)):
            bends = [size / 100 * np.sin(2 * np.pi * time / 5 + phase) for phase in (0.3, 1.4)]
            runs.views += series(viewed(arm, when), *(np.interp(time + bend, time, beat) for bend in bends))
        runs.views += series(viewed(arm, "strength"), end * np.exp(0.2 * random.normal(size=400) + 0.2 * labels[:, 1]))
    return runs


def cost(folder: Path, **settings: Any) -> Runs:
    runs = Runs(folder, "cost", settings)

    def numbers(arm: str, seed: int) -> dict[str, float]:
        seconds, gigabytes = {"simclr": (0.040, 2.0), "meta": (0.060, 3.5)}.get(arm, (0.12, 3.8))
        seconds *= 1 + 0.02 * seed
        return {TIME_PER_STEP: seconds, WALL_TIME: 3600 * seconds, PEAK_MEMORY: gigabytes}

    runs.numbers = numbers
    return runs


MAKERS = {
    "full_access": full_access,
    "unroll_steps": unroll_steps,
    "partial_access": partial_access,
    "augmentations": augmentations,
    "cost": cost,
}
SMALL: dict[str, dict[str, Any]] = {
    "full_access": {"arms": ["no_pt", "simclr", "meta", "meta-stable"], "finetune_sizes": [100]},
    "unroll_steps": {"finetune_sizes": [100, 500]},
    "partial_access": {"finetune_sizes": [500], "meta_sizes": [50]},
    "augmentations": {},
    "cost": {},
}


def runs_of(key: str, folder: Path, **settings: Any) -> Runs:
    return MAKERS[key](folder, **settings)
