"""Files of an experiment's runs in a small world whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from metapt.domains.ppi.config import learns_weights
from metapt.domains.ppi.data.sections import SIMULATED
from metapt.domains.ppi.domain import DOMAIN
from metapt.domains.ppi.experiments.during_pretraining import trains_head
from metapt.domains.ppi.stages import AUROC, ONLINE, OTHERS, PLANTED, QUANTILES, RELATIVES, TASK_AUROC, WEIGHT, cka_with
from metapt.engine.jobs import Job
from metapt.evaluation import metrics
from metapt.evaluation.metrics import row
from metapt.sections import seed_numbers
from metapt.twostage.quantities import FT_TIME, PEAK_MEMORY, TIME_PER_STEP, WALL_TIME

from ..twostage import synthetic_runs
from ..twostage.synthetic_runs import SEED_SPREAD, Rows

MAKERS = list(DOMAIN.experiments)[:9]  # the experiments of the paper
FEW = {"arms": ["no_pt", "graph_supervised", "meta", "meta-stable"]}
FINE, COARSE = 8, 60
AUROCS = {
    "no_pt": 66.0,
    "graph_supervised": 72.0,
    "cotrain": 70.0,
    "cotrain_pcgrad": 69.0,
    "cotrain_learned_weights": 68.0,
    "meta": 72.4,
    "meta-stable": 74.0,
    "meta-frozen": 73.0,
    "meta-permuted": 71.0,
}


def auroc_of(arm: str, setting: str, evaluation: str) -> float:
    """Return the mean test AUROC (%). Linear evaluation has one point more."""
    fold = int(setting[-1]) - 1.5 if setting.startswith("held_out") else 0.0
    return AUROCS.get(arm, 71.5) + (evaluation == "linear_evaluation") + fold


def task_aurocs_of(arm: str, evaluation: str, seed: int) -> Any:
    """Return the AUROC (%) of FT tasks [FINE]: from 60 to 80 without PT. Task 7 has none.

    Plain PT loses two of them by three points, and the others gain five. Linear evaluation gains two.
    """
    values = np.linspace(60, 80, FINE) + SEED_SPREAD[seed]
    if arm != "no_pt":
        lost = 2 if arm == "graph_supervised" else 0
        values = values + np.where(np.arange(FINE) < lost, -3.0, 5.0 if evaluation == "full_transfer" else 2.0)
    elif evaluation == "linear_evaluation":
        values = values - 20.0  # not used as a control
    return np.where(np.arange(FINE) == 7, np.nan, values)


def weights_of(arm: str, setting: str, seed: int) -> Any:
    """Return learned weights [COARSE]: those of `meta-stable` find the useful first half for all PT seeds."""
    draws = np.random.default_rng([seed, len(arm), len(setting)]).normal(size=COARSE)
    signal = np.linspace(2.5, -2.5, COARSE) if arm == "meta-stable" else 0.0
    return 2 / (1 + np.exp(-(signal + (0.3 if arm == "meta-stable" else 2.0) * draws)))


def online_of(arm: str, which: str) -> float:
    """Return the AUROC (%) of the FT head at the end of PT."""
    ends = {"meta": 76.0, "cotrain": 67.0, "cotrain_pcgrad": 69.0, "cotrain_learned_weights": 70.5}
    return ends.get(arm, 72.0) + (12.0 if which == "validation" else 0.0)


class Runs(synthetic_runs.Runs):
    """Numbers of an experiment's runs, which a test may change before `write`."""

    domain = "ppi"

    def __init__(self, folder: Path, key: str, **settings: Any) -> None:
        if settings.get("source") == "simulated":
            settings.setdefault("test_species", SIMULATED.species[-1:])
        super().__init__(folder, key, **settings)
        self.auroc, self.task_auroc, self.weight, self.online = auroc_of, task_aurocs_of, weights_of, online_of
        self.validation: Callable[[str, str, str], float] = lambda arm, setting, evaluation: -1.0  # minus the test's
        self.gap: Callable[[str, str, int], float] = lambda arm, setting, seed: (  # offset of the AUROC
            (-0.9, 0.0, 0.9, 0.5, -0.5)[seed] if arm == "meta" else 0.0
        )

    def write(self) -> Self:
        """Write all files that the summary reads."""
        super().write()
        terms = [
            *(("coarse", i, f"GO:{i:07d}", f"process number {i} of a cell, of a long name") for i in range(COARSE)),
            *(("fine", i, f"GO:9{i:06d}", f"function number {i} of a protein") for i in range(FINE)),
        ]
        tasks = pd.DataFrame(terms, columns=["kind", "task", "term", "description"]).assign(category="", positives=100)
        self.inputs["tasks"] = self.folder / "tasks.csv"
        tasks.to_csv(self.inputs["tasks"], index=False)
        return self

    def _pretrain(self, job: Job) -> tuple[Rows, Rows]:
        arm, setting, seed = (job.config[key] for key in ("arm", "setting", "seed"))
        seconds = {"graph_supervised": 0.05, "meta": 0.08}.get(arm, 0.15)
        memory = {"graph_supervised": 1.0, "meta": 1.4}.get(arm, 1.5)
        numbers = {TIME_PER_STEP: seconds * (1 + 0.02 * seed), WALL_TIME: 3600 * seconds, PEAK_MEMORY: memory}
        series: Rows = []
        settings = self.config.arms[arm]
        if trains_head(settings):
            for which, metric in ONLINE.items():
                end = numbers[metric] = self.online(arm, which) + SEED_SPREAD[seed]
                per = getattr(settings, "pretrain_steps", 1)  # arms that learn weights count iterations
                series += _points(metric, {step // per: end - 8 * 0.6 ** (step / 100) for step in range(0, 1001, 100)})
        if learns_weights(settings):
            weights = np.asarray(self.weight(arm, setting, seed), dtype=float)
            half = COARSE // 2
            numbers |= {RELATIVES: float(weights[:10].mean()), OTHERS: float(weights[10:].mean())}
            if self.config.source == "simulated":
                numbers[PLANTED] = float(np.mean(weights[:half, None] > weights[None, half:]))
            series += _points(WEIGHT, dict(enumerate(weights)))
            for name, share in QUANTILES.items():
                end = float(np.quantile(weights, share))
                series += _points(name, {step: 1 + (end - 1) * (1 - 0.8**step) for step in range(21)})
        words: Any = {"replicate": seed, "setting": setting, "evaluation": "pretraining"}
        return metrics.rows_of("ppi", arm, numbers, **words), series

    def _finetune(self, job: Job) -> tuple[Rows, Rows]:
        arm, setting, pt = (job.config[key] for key in ("arm", "setting", "seed"))
        rows: Rows = []
        series: Rows = []
        for words, shift in self.finetunings(job):
            evaluation, replicate = words["evaluation"], words["replicate"]
            value = self.auroc(arm, setting, evaluation) + SEED_SPREAD[pt] + self.gap(arm, setting, pt)
            seen, tasks = value + self.validation(arm, setting, evaluation), self.task_auroc(arm, evaluation, pt)
            numbers = {AUROC: value + shift, "validation AUROC (%)": seen, FT_TIME: 3.0}
            rows += metrics.rows_of("ppi", arm, numbers, setting=setting, **words)
            series += _points(f"{evaluation}, {TASK_AUROC}", dict(enumerate(tasks + shift)), replicate)
        return rows, series

    def _study(self, job: Job) -> tuple[Rows, Rows]:
        """Return a CKA of 0.9 minus 0.07 times the distance between two arms in the list."""
        arms, words = self.config.representations.arms, {"setting": "full_access", "evaluation": "representations"}
        rows = [
            row("ppi", arm, cka_with(other), 0.9 - 0.07 * abs(j - i) + 0.01 * seed, replicate=seed, **words)
            for (i, arm), (j, other) in permutations(enumerate(arms), 2)
            for seed in seed_numbers(self.config.pretrain_seeds)
        ]
        return rows, []


def _points(name: str, values: Mapping[int, float], replicate: int = 0) -> list[dict[str, Any]]:
    """Return the rows of a series."""
    at = {"replicate": replicate, "name": name}
    return [at | {"step": step, "value": float(value)} for step, value in values.items()]


def runs_of(key: str, folder: Path, **settings: Any) -> Runs:
    """Return the runs of an experiment before they are written."""
    others = {"half_data": {}, "held_out_tasks": {}} if key == "summary" else {}
    return Runs(folder, key, **others | settings)


def written(key: str, folder: Path, **settings: Any) -> Runs:
    """Write an experiment's runs, and return them."""
    return runs_of(key, folder, **settings).write()
