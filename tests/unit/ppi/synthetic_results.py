"""Files of an experiment's runs in a small world whose answers are known."""

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
from metapt.evaluation.experiment import SUMMARY
from metapt.evaluation.metrics import row
from metapt.evaluation.results import run_words
from metapt.evaluation.tables import write_blocks
from metapt.machine import Machine
from metapt.sections import SummarySettings, seed_numbers
from metapt.twostage.quantities import FT_TIME, PEAK_MEMORY, TIME_PER_STEP, WALL_TIME
from metapt.twostage.replicates import pair

CONFIG = DOMAIN.section()
PLACE = Place("results", "raw", {"hu2020": {"name": "hu2020"}}, [])
MAKERS = list(DOMAIN.experiments)[:9]  # the experiments of the paper
FEW = {"arms": ["no_pt", "graph_supervised", "meta", "meta-stable"]}
SEED_SPREAD = (-0.5, 0.1, 0.4, -0.2, 0.2)
"""Offset of each PT seed to the AUROC of every arm, which cancels in paired differences."""
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


class Runs:
    """Numbers of an experiment's runs, which a test may change before `write`."""

    def __init__(self, folder: Path, key: str, **settings: Any) -> None:
        self.folder = folder
        settings = {"pretrain_seeds": 5, "finetune_seeds": 5, key: {}, **settings}
        if settings.get("source") == "simulated":
            settings.setdefault("test_species", SIMULATED.species[-1:])
        self.config: Any = CONFIG.model_validate(settings)
        self.experiment, self.summary = DOMAIN.experiments[key], DOMAIN.summary(PpiJobs("ppi", self.config, PLACE), key)
        self.settings = SummarySettings.model_validate(self.summary.config)
        self.inputs: dict[str, Path] = {}
        self.auroc, self.task_auroc, self.weight, self.online = auroc_of, task_aurocs_of, weights_of, online_of
        self.validation: Callable[[str, str, str], float] = lambda arm, setting, evaluation: -1.0  # minus the test's
        self.gap: Callable[[str, str, int], float] = lambda arm, setting, seed: (  # offset of the AUROC
            (-0.9, 0.0, 0.9, 0.5, -0.5)[seed] if arm == "meta" else 0.0
        )
        self.machine: Callable[[str], str] = lambda arm: "a machine"

    def write(self) -> Runs:
        """Write all files that the summary reads."""
        for run in dict.fromkeys(name.rpartition("/")[0] for name in self.summary.inputs if "/" in name):
            words = run_words(run)
            if run == "representations/cka":
                self._alignment(run)
            elif words["stage"] in ("pretrain", "finetune"):
                make = self._pretrain if words["stage"] == "pretrain" else self._finetune
                make(run, str(words["arm"]), str(words["setting"]), int(words["seed"]))
        terms = [
            *(("coarse", i, f"GO:{i:07d}", f"process number {i} of a cell, of a long name") for i in range(COARSE)),
            *(("fine", i, f"GO:9{i:06d}", f"function number {i} of a protein") for i in range(FINE)),
        ]
        tasks = pd.DataFrame(terms, columns=["kind", "task", "term", "description"]).assign(category="", positives=100)
        self.inputs["tasks"] = self.folder / "tasks.csv"
        tasks.to_csv(self.inputs["tasks"], index=False)
        return self

    def _tables(self, run: str, rows: list[dict[str, Any]], series: list[dict[str, Any]]) -> None:
        for name, write, content in (("metrics", metrics.write, rows), ("series", metrics.write_series, series)):
            path = self.inputs[f"{run}/{name}"] = self.folder / f"{run.replace('/', '-')}-{name}.csv"
            write(content, path)

    def _pretrain(self, run: str, arm: str, setting: str, seed: int) -> None:
        seconds = {"graph_supervised": 0.05, "meta": 0.08}.get(arm, 0.15)
        memory = {"graph_supervised": 1.0, "meta": 1.4}.get(arm, 1.5)
        numbers = {TIME_PER_STEP: seconds * (1 + 0.02 * seed), WALL_TIME: 3600 * seconds, PEAK_MEMORY: memory}
        series: list[dict[str, Any]] = []
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
        words = {"replicate": seed, "setting": setting, "evaluation": "pretraining"}
        self._tables(run, [row("ppi", arm, name, value, **words) for name, value in numbers.items()], series)
        path = self.inputs[f"{run}/record"] = self.folder / f"{run.replace('/', '-')}-run.json"
        path.write_text(json.dumps({"machine": {"name": self.machine(arm), "device": "cuda"}}))

    def _finetune(self, run: str, arm: str, setting: str, pt: int) -> None:
        rows, series, count = [], [], self.config.finetune_seeds
        for evaluation in self.config.evaluations:
            value = self.auroc(arm, setting, evaluation) + SEED_SPREAD[pt] + self.gap(arm, setting, pt)
            seen, tasks = value + self.validation(arm, setting, evaluation), self.task_auroc(arm, evaluation, pt)
            for ft in range(count):
                shift = 0.3 * (ft - (count - 1) / 2)
                words = {"replicate": pair(pt, ft), "setting": setting, "evaluation": evaluation}
                numbers = {AUROC: value + shift, "validation AUROC (%)": seen, FT_TIME: 9.0 if ft == 0 else 3.0}
                rows += [row("ppi", arm, name, number, **words) for name, number in numbers.items()]
                series += _points(f"{evaluation}, {TASK_AUROC}", dict(enumerate(tasks + shift)), pair(pt, ft))
        self._tables(run, rows, series)

    def _alignment(self, run: str) -> None:
        """Write a CKA of 0.9 minus 0.07 times the distance between two arms in the list, each pair once."""
        arms, words = self.config.representations.arms, {"setting": "full_access", "evaluation": "representations"}
        rows = [
            row("ppi", arm, cka_with(other), 0.9 - 0.07 * (j - i) + 0.01 * seed, replicate=seed, **words)
            for i, arm in enumerate(arms)
            for j, other in enumerate(arms[i + 1 :], i + 1)
            for seed in seed_numbers(self.config.pretrain_seeds)
        ]
        self._tables(run, rows, [])

    def results(self) -> PpiResults:
        found = self.experiment.results.read(self.experiment.section, self.settings, self.inputs)
        assert isinstance(found, PpiResults)
        return found

    def judged(self) -> pd.DataFrame:
        """Return the verdicts, by text of the claims."""
        results, comparisons = self.results(), self.experiment.comparisons
        return judge(results.name, comparisons(results)).set_index("claim")

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
        assert all(outputs[name].stat().st_size > 0 for name in SUMMARY)
        assert imread(outputs["figure_png"])[..., :3].std() > 0.02, "the figure is blank"
        assert set(metrics.read(outputs["metrics"])["experiment"]) == {f"ppi_{self.settings.experiment}"}
        return outputs


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
