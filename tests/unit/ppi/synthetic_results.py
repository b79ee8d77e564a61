"""Files of an experiment's runs with given numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.image import imread

from metapt.domains.ppi.config import learns_weights
from metapt.domains.ppi.data.sections import SIMULATED
from metapt.domains.ppi.domain import DOMAIN
from metapt.domains.ppi.experiments.during_pretraining import trains_head
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.quantities import (
    AUROC,
    ONLINE,
    OTHERS,
    PLANTED,
    QUANTILES,
    RELATIVES,
    TASK_AUROC,
    WEIGHT,
    cka_with,
)
from metapt.domains.ppi.results import PpiResults
from metapt.engine.jobs import Place
from metapt.evaluation import metrics
from metapt.evaluation.comparisons import judge
from metapt.evaluation.experiment import SUMMARY, Experiment
from metapt.evaluation.metrics import row
from metapt.evaluation.results import run_words
from metapt.evaluation.tables import write_blocks
from metapt.machine import Machine
from metapt.sections import SummarySettings, seed_numbers
from metapt.twostage.quantities import FT_TIME, PEAK_MEMORY, TIME_PER_STEP, WALL_TIME
from metapt.twostage.replicates import pair

CONFIG = DOMAIN.section()
PLACE = Place("results", "raw", {"hu2020": {"name": "hu2020"}}, [])
SEED_SPREAD = (-0.5, 0.1, 0.4, -0.2, 0.2)
"""Offset of each PT seed to the AUROC of every arm, which cancels in paired differences."""
FINE, COARSE = 8, 60


class Runs:
    """Numbers of an experiment's runs, which a test may change before `write`.

    Attributes:
        auroc: arm, setting, evaluation -> mean test AUROC (%).
        validation: arm, setting, evaluation -> mean validation AUROC (%) minus that on the test set.
        gap: arm, setting, PT seed -> offset of the AUROC.
        task_auroc: arm, evaluation, PT seed -> AUROC (%) of the FT tasks [FINE].
        weight: arm, setting, PT seed -> learned weights [COARSE]; the first half of the tasks is useful.
        online: arm, which -> AUROC (%) of the FT head at the end of PT.
        seconds, gigabytes: arm -> time of a PT step, peak memory.
    """

    def __init__(self, folder: Path, key: str, **settings: Any) -> None:
        self.folder, self.key = folder, key
        settings = {"pretrain_seeds": 5, "finetune_seeds": 5, key: {}, **settings}
        if settings.get("source") == "simulated":
            settings.setdefault("test_species", SIMULATED.species[-1:])
        self.config: Any = CONFIG.model_validate(settings)
        self.summary = DOMAIN.summary(PpiJobs("ppi", self.config, PLACE), key)
        self.settings = SummarySettings.model_validate(self.summary.config)
        self.inputs: dict[str, Path] = {}
        self.auroc: Callable[[str, str, str], float] = lambda arm, setting, evaluation: 70.0
        self.validation: Callable[[str, str, str], float] = lambda arm, setting, evaluation: -1.0
        self.gap: Callable[[str, str, int], float] = lambda arm, setting, seed: 0.0
        self.task_auroc: Callable[[str, str, int], Any] = lambda arm, evaluation, seed: np.full(FINE, 70.0)
        self.weight: Callable[[str, str, int], Any] = lambda arm, setting, seed: np.linspace(2, 0, COARSE)
        self.online: Callable[[str, str], float] = lambda arm, which: 70.0
        self.seconds: Callable[[str], float] = lambda arm: 0.05
        self.gigabytes: Callable[[str], float] = lambda arm: 2.0
        self.machine: Callable[[str], str] = lambda arm: "a machine"

    @property
    def experiment(self) -> Experiment:
        return DOMAIN.experiments[self.key]

    def write(self) -> None:
        for run in dict.fromkeys(name.rpartition("/")[0] for name in self.summary.inputs if "/" in name):
            words = run_words(run)
            if words["stage"] == "pretrain":
                self._pretrain(run, str(words["arm"]), str(words["setting"]), int(words["seed"]))
            elif words["stage"] == "finetune":
                self._finetune(run, str(words["arm"]), str(words["setting"]), int(words["seed"]))
        terms = [
            ("coarse", i, f"GO:{i:07d}", f"process number {i} of a cell, which has a long name") for i in range(COARSE)
        ]
        terms += [("fine", i, f"GO:9{i:06d}", f"function number {i} of a protein") for i in range(FINE)]
        tasks = pd.DataFrame(terms, columns=["kind", "task", "term", "description"]).assign(category="", positives=100)
        tasks.to_csv(self.folder / "tasks.csv", index=False)
        self.inputs["tasks"] = self.folder / "tasks.csv"

    def table(self, name: str, rows: list[dict[str, Any]]) -> None:
        self.inputs[name] = self.folder / f"{name.replace('/', '-')}.csv"
        metrics.write(rows, self.inputs[name])

    def series(self, name: str, rows: list[dict[str, Any]]) -> None:
        self.inputs[name] = self.folder / f"{name.replace('/', '-')}.csv"
        metrics.write_series(rows, self.inputs[name])

    def _pretrain(self, run: str, arm: str, setting: str, seed: int) -> None:
        numbers = {
            TIME_PER_STEP: self.seconds(arm) * (1 + 0.02 * seed),
            WALL_TIME: 3600 * self.seconds(arm),
            PEAK_MEMORY: self.gigabytes(arm),
        }
        series: list[dict[str, Any]] = []
        settings = self.config.arms[arm]
        if trains_head(settings):
            for which, metric in ONLINE.items():
                end = self.online(arm, which) + SEED_SPREAD[seed]
                numbers[metric] = end
                per = getattr(settings, "pretrain_steps", 1)  # arms that learn weights count iterations
                series += _points(metric, {step // per: end - 8 * 0.6 ** (step / 100) for step in range(0, 1001, 100)})
        if learns_weights(settings):
            weights = np.asarray(self.weight(arm, setting, seed), dtype=float)
            half = COARSE // 2
            useful = float(np.mean(weights[:half, None] > weights[None, half:]))
            numbers |= {RELATIVES: float(weights[:10].mean()), OTHERS: float(weights[10:].mean())}
            if self.config.source == "simulated":
                numbers[PLANTED] = useful
            series += _points(WEIGHT, dict(enumerate(weights)))
            for name, share in zip(QUANTILES, (0.1, 0.5, 0.9), strict=True):
                end = float(np.quantile(weights, share))
                series += _points(name, {step: 1 + (end - 1) * (1 - 0.8**step) for step in range(21)})
        words = {"replicate": seed, "setting": setting, "evaluation": "pretraining"}
        self.table(f"{run}/metrics", [row("ppi", arm, name, value, **words) for name, value in numbers.items()])
        self.series(f"{run}/series", series)
        self.inputs[f"{run}/record"] = path = self.folder / f"{run.replace('/', '-')}-run.json"
        path.write_text(json.dumps({"machine": {"name": self.machine(arm), "device": "cuda"}}))

    def _finetune(self, run: str, arm: str, setting: str, pt: int) -> None:
        rows, series = [], []
        for evaluation in self.config.evaluations:
            value = self.auroc(arm, setting, evaluation) + SEED_SPREAD[pt] + self.gap(arm, setting, pt)
            for ft in range(self.config.finetune_seeds):
                shift = 0.3 * (ft - (self.config.finetune_seeds - 1) / 2)
                words = {"replicate": pair(pt, ft), "setting": setting, "evaluation": evaluation}
                rows.append(row("ppi", arm, AUROC, value + shift, **words))
                seen = value + self.validation(arm, setting, evaluation)
                rows.append(row("ppi", arm, "validation AUROC (%)", seen, **words))
                rows.append(row("ppi", arm, FT_TIME, 9.0 if ft == 0 else 3.0, **words))
                aurocs = self.task_auroc(arm, evaluation, pt)
                series += _points(f"{evaluation}, {TASK_AUROC}", dict(enumerate(aurocs + shift)), pair(pt, ft))
        self.table(f"{run}/metrics", rows)
        self.series(f"{run}/series", series)

    def results(self) -> PpiResults:
        found = self.experiment.results.read(self.experiment.section, self.settings, self.inputs)
        assert isinstance(found, PpiResults)
        return found

    def judged(self) -> pd.DataFrame:
        """Return the verdicts, by text of the claims."""
        results = self.results()
        return judge(results.name, self.experiment.comparisons(results)).set_index("claim")

    def tabled(self) -> tuple[pd.DataFrame, str]:
        """Return the table's numbers, read from its CSV, and its text."""
        blocks, numbers = self.experiment.tables(self.results())
        write_blocks(blocks, self.folder / "table", numbers)
        return pd.read_csv(self.folder / "table.csv"), (self.folder / "table.md").read_text()

    def summarise(self) -> dict[str, Path]:
        """Return all outputs, and check that none is empty."""
        outputs = {name: self.folder / "out" / file for name, file in SUMMARY.items()}
        outputs["metrics"].parent.mkdir(exist_ok=True)
        self.experiment.summarise(self.settings, self.inputs, outputs, Machine())
        for name in SUMMARY:
            assert outputs[name].stat().st_size > 0, name
        assert imread(outputs["figure_png"])[..., :3].std() > 0.02, "the figure is blank"
        assert set(metrics.read(outputs["metrics"])["experiment"]) == {f"ppi_{self.key}"}
        return outputs


def _points(name: str, values: Mapping[int, float], replicate: int = 0) -> list[dict[str, Any]]:
    return [
        {"replicate": replicate, "step": step, "name": name, "value": float(value)} for step, value in values.items()
    ]


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
    "meta-top": 73.0,
    "meta-bottom": 67.0,
}


def of_auroc(folder: Path, key: str, **settings: Any) -> Runs:
    """Return runs with the AUROC of `AUROCS` for each arm.

    Linear evaluation has one point more. `meta` varies by PT seed.
    """
    runs = Runs(folder, key, **settings)

    def auroc(arm: str, setting: str, evaluation: str) -> float:
        value = AUROCS.get(arm, 71.5) + (1.0 if evaluation == "linear_evaluation" else 0.0)
        fold = int(setting[-1]) - 1.5 if setting.startswith("held_out") else 0.0
        return value + fold

    runs.auroc = auroc
    runs.gap = lambda arm, setting, seed: (-0.9, 0.0, 0.9, 0.5, -0.5)[seed] if arm == "meta" else 0.0
    return runs


def of_weights(folder: Path, key: str, **settings: Any) -> Runs:
    """Return runs whose `meta-stable` finds the useful half of the tasks for all PT seeds; other weights are random."""
    runs = of_auroc(folder, key, **settings)

    def weight(arm: str, setting: str, seed: int) -> Any:
        draws = np.random.default_rng([seed, len(arm), len(setting)]).normal(size=COARSE)
        signal = np.linspace(2.5, -2.5, COARSE) if arm == "meta-stable" else 0.0
        return 2 / (1 + np.exp(-(signal + (0.3 if arm == "meta-stable" else 2.0) * draws)))

    runs.weight = weight
    return runs


def of_transfer(folder: Path, key: str = "negative_transfer", **settings: Any) -> Runs:
    """Return runs with FT tasks from 60 to 80 %.

    Plain PT loses two of them by three points, and the others gain five. Task 7 has no AUROC. Linear evaluation gains
    two.
    """
    runs = of_auroc(folder, key, **settings)

    def task_auroc(arm: str, evaluation: str, seed: int) -> Any:
        values = np.linspace(60, 80, FINE) + SEED_SPREAD[seed]
        if arm != "no_pt":
            lost = 2 if arm == "graph_supervised" else 0
            values = values + np.where(np.arange(FINE) < lost, -3.0, 5.0 if evaluation == "full_transfer" else 2.0)
        elif evaluation == "linear_evaluation":
            values = values - 20.0  # not used as a control
        return np.where(np.arange(FINE) == 7, np.nan, values)

    runs.task_auroc = task_auroc
    return runs


def of_online(folder: Path, key: str = "during_pretraining", **settings: Any) -> Runs:
    runs = Runs(folder, key, **settings)
    ends = {"meta": 76.0, "cotrain": 67.0, "cotrain_pcgrad": 69.0, "cotrain_learned_weights": 70.5}
    runs.online = lambda arm, which: ends.get(arm, 72.0) + (12.0 if which == "validation" else 0.0)
    return runs


def of_representations(folder: Path, key: str = "representations", **settings: Any) -> Runs:
    """Return runs with a CKA of 0.9 minus 0.07 times the distance between two arms in the list, each pair once."""
    runs = Runs(folder, key, **settings)
    arms = list(getattr(runs.config, key).arms)
    rows = []
    for place, arm in enumerate(arms):
        for other in range(place + 1, len(arms)):
            for seed in seed_numbers(runs.config.pretrain_seeds):
                value = 0.9 - 0.07 * (other - place) + 0.01 * seed
                words = {"replicate": seed, "setting": "full_access", "evaluation": "representations"}
                rows.append(row("ppi", arm, cka_with(arms[other]), value, **words))
    runs.table("representations/cka/metrics", rows)
    return runs


def of_cost(folder: Path, key: str = "cost", **settings: Any) -> Runs:
    runs = Runs(folder, key, **settings)
    runs.seconds = lambda arm: {"graph_supervised": 0.05, "meta": 0.08}.get(arm, 0.15)
    runs.gigabytes = lambda arm: {"graph_supervised": 1.0, "meta": 1.4}.get(arm, 1.5)
    return runs


MAKERS: dict[str, Callable[..., Runs]] = {
    **dict.fromkeys(("full_access", "half_data", "held_out_tasks", "summary"), of_auroc),
    "during_pretraining": of_online,
    "representations": of_representations,
    "learned_weights": of_weights,
    "negative_transfer": of_transfer,
    "cost": of_cost,
}


def runs_of(key: str, folder: Path, **settings: Any) -> Runs:
    if key == "summary":
        settings = {"half_data": {}, "held_out_tasks": {}} | settings
    return MAKERS[key](folder, key=key, **settings)


def written(key: str, folder: Path, **settings: Any) -> Runs:
    """Write an experiment's runs, and return them."""
    runs = runs_of(key, folder, **settings)
    runs.write()
    return runs
