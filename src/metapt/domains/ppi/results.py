"""What the runs of a PPI experiment have left, read once, in the form that its tables, figures and claims work on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from metapt.domains.ppi.config import PpiConfig, learns_weights
from metapt.domains.ppi.needs import arms_of, finetune_setting
from metapt.domains.ppi.settings import FULL_ACCESS, HELD_OUT
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.paper import paper_numbers
from metapt.evaluation.statistics import Estimate, estimate_mean
from metapt.twostage.seeded import machine_of, over_runs, over_seeds

AUROC = "mean test AUROC over FT tasks (%)"
TASK_AUROC = "{}, test AUROC of a task (%)"
ONLINE = {"validation": "online validation AUROC (%)", "test": "online test AUROC (%)"}
INTACT, PLANTED = "AUROC of weight against intact labels", "AUROC of weight against planted use"
RELATIVES, OTHERS = "mean weight of relatives", "mean weight of others"
WEIGHT, PERMUTED = "learned weight", "permuted"
QUANTILES = ("weight, 10 % quantile", "weight, median", "weight, 90 % quantile")
PRETRAINING, REPRESENTATIONS = "pretraining", "representations"
HELD_OUT_TASKS, BEST = "held_out_tasks", "best of full transfer and linear evaluation"


@dataclass(frozen=True)
class Results:
    """The results of an experiment.

    Attributes:
        config: the section `ppi`.
        key: of the experiment, as in `full_access`.
        arms: in the order of the config.
        metrics: of all its runs, with `ppi_{key}` as experiment.
        series: of its PT runs: arm, setting, seed, step, name, value.
        tasks_series: of its FT runs, where the experiment looks at single tasks: arm, setting, replicate, step, name, value.
        machines: arm -> the machines that its PT ran on, in words.
        tasks: kind, task, term, description; empty where the experiment has no input `tasks`.
    """

    config: PpiConfig
    key: str
    arms: list[str]
    metrics: pd.DataFrame
    series: pd.DataFrame
    tasks_series: pd.DataFrame
    machines: dict[str, list[str]]
    tasks: pd.DataFrame

    @property
    def experiment(self) -> str:
        return f"ppi_{self.key}"

    @property
    def section(self) -> Any:
        """The experiment's own settings."""
        return getattr(self.config, self.key)

    @property
    def learners(self) -> list[str]:
        """The experiment's arms that learn task weights."""
        return [arm for arm in self.section.arms if learns_weights(self.config.arms[arm])]

    def runs(self, arm: str, setting: str, evaluation: str) -> pd.Series[float]:
        """Test AUROC (%) of each FT run, indexed by pair of seeds; under `held_out_tasks` the mean over the folds.

        Raises NotMeasuredError where there is none, or a fold has none, and DataError where folds have other seeds.
        """
        if setting != HELD_OUT_TASKS:
            return self._cell(arm, setting, evaluation)
        folds = self.folds(arm, evaluation)
        if folds.isna().any(axis=None) and not _same_index([self._cell(arm, fold, evaluation) for fold in HELD_OUT]):
            raise DataError(f"The folds of {arm}, {evaluation}, have other seeds than one another; make their runs again.")
        return folds.mean(axis=1, skipna=False)

    def folds(self, arm: str, evaluation: str) -> pd.DataFrame:
        """Test AUROC (%) by pair of seeds and fold of held-out tasks. Raises NotMeasuredError where a fold has none."""
        return pd.concat({fold: self._cell(arm, fold, evaluation) for fold in HELD_OUT}, axis=1)

    def _cell(self, arm: str, setting: str, evaluation: str) -> pd.Series[float]:
        cell = arm, finetune_setting(self.config.arms[arm], setting), evaluation
        if cell not in self._aurocs:
            raise NotMeasuredError(f"No run has measured the AUROC of {arm}, {cell[1]}, {evaluation}.")
        return self._aurocs[cell]

    @cached_property
    def _aurocs(self) -> dict[Any, pd.Series[float]]:
        """(arm, setting, evaluation) -> values, indexed by pair of seeds."""
        rows = self.metrics[self.metrics["metric"] == AUROC].set_index("replicate")
        return {cell: part["value"] for cell, part in rows.groupby(["arm", "setting", "evaluation"])}

    def pretraining(self, arm: str, metric: str, setting: str = FULL_ACCESS) -> pd.Series[float]:
        """A number of each PT run of an arm, indexed by PT seed. Raises NotMeasuredError where there is none."""
        words = {"experiment": self.experiment, "arm": arm, "metric": metric, "setting": setting, "evaluation": PRETRAINING}
        return metrics.select(self.metrics, **words).sort_index()

    def by_seed(self, arm: str, name: str, setting: str = FULL_ACCESS) -> pd.DataFrame:
        """A series of an arm's PT runs: a row per step, a column per PT seed. Raises NotMeasuredError where there is none."""
        s = self.series
        part = s[(s["arm"] == arm) & (s["setting"] == setting) & (s["name"] == name)]
        if part.empty:
            raise NotMeasuredError(f"No PT run of {arm}, {setting}, has left a series {name!r}.")
        return part.pivot(index="step", columns="seed", values="value")

    def weights(self, arm: str, setting: str = FULL_ACCESS) -> pd.DataFrame:
        """The learned weights: a row per PT task, a column per PT seed. Raises NotMeasuredError where there are none."""
        return self.by_seed(arm, WEIGHT, setting)

    def task_aurocs(self, arm: str, evaluation: str) -> pd.DataFrame:
        """Test AUROC (%), a row per FT task, a column per pair of seeds. Raises NotMeasuredError where there is none."""
        s, name = self.tasks_series, TASK_AUROC.format(evaluation)
        part = s[(s["arm"] == arm) & (s["setting"] == FULL_ACCESS) & (s["name"] == name)]
        if part.empty:
            raise NotMeasuredError(f"No FT run of {arm} has measured the AUROC of single tasks, {evaluation}.")
        return part.pivot(index="step", columns="replicate", values="value")


def read(config: Mapping[str, Any], inputs: Mapping[str, Path]) -> Results:
    """Reads what the inputs of `metapt.domains.ppi.experiments.summarise` name. Raises DataError where a file is no such table."""
    section, key = PpiConfig.model_validate(config["settings"]), config["experiment"]
    tables = metrics.read([path for name, path in inputs.items() if name.endswith("/metrics")])
    tables["experiment"] = f"ppi_{key}"
    machines: dict[str, list[str]] = {}
    pretraining = [pd.DataFrame({"arm": [], "setting": [], "seed": [], "step": [], "name": [], "value": []})]
    tasks = [pd.DataFrame({"arm": [], "setting": [], "replicate": [], "step": [], "name": [], "value": []})]
    for name, path in inputs.items():
        stage, *words = name.split("/")
        if stage == "pretrain" and words[-1] == "series":
            read_series = metrics.read_series(path).drop(columns="replicate")
            pretraining.append(read_series.assign(arm=words[0], setting=words[1], seed=int(words[2])))
        elif stage == "pretrain" and words[-1] == "run":
            machines.setdefault(words[0], []).append(machine_of(path))
        elif stage == "finetune" and words[-1] == "series" and key == "negative_transfer":
            tasks.append(metrics.read_series(path).assign(arm=words[0], setting=words[1]))
    return Results(
        section,
        key,
        arms_of(section, key),
        tables,
        pd.concat(pretraining[1:] or pretraining, ignore_index=True),
        pd.concat(tasks[1:] or tasks, ignore_index=True),
        {arm: list(dict.fromkeys(names)) for arm, names in machines.items()},
        _tasks(inputs.get("tasks")),
    )


def auroc_cells(results: Results, settings: Sequence[str]) -> pd.DataFrame:
    """Our test AUROC in every cell that was run, one row each, in the order setting, evaluation, arm.

    Columns: setting, evaluation, arm, mean, standard_error (over FT runs; under `held_out_tasks` over the folds, as in the
    paper), n (of those), seed_standard_error (over PT seeds' means), seeds. Raises DataError where nothing was run.
    """
    rows = []
    for setting in settings:
        for evaluation in results.config.evaluations:
            for arm in results.arms:
                try:
                    values = results.runs(arm, setting, evaluation)
                except NotMeasuredError:
                    continue
                if setting == HELD_OUT_TASKS:
                    spread = estimate_mean(results.folds(arm, evaluation).mean(skipna=False).to_numpy(dtype=float))
                else:
                    spread = over_runs(values)
                seeds = over_seeds(values)
                rows.append(
                    {
                        "setting": setting,
                        "evaluation": evaluation,
                        "arm": arm,
                        "mean": seeds.mean,
                        "standard_error": spread.standard_error,
                        "n": spread.n,
                        "seed_standard_error": seeds.standard_error,
                        "seeds": seeds.n,
                    }
                )
    if not rows:
        raise DataError(f"No FT run of {results.experiment} has measured {AUROC!r}.")
    return pd.DataFrame(rows)


def papers_cells(key: str, arms: Sequence[str]) -> pd.DataFrame:
    """The paper's AUROC: setting, evaluation, arm, mean, standard_error."""
    numbers = paper_numbers()
    numbers = numbers[(numbers["experiment"] == f"ppi_{key}") & (numbers["metric"] == AUROC) & numbers["arm"].isin(arms)]
    numbers = numbers.rename(columns={"paper_mean": "mean", "paper_standard_error": "standard_error"})
    return numbers[["setting", "evaluation", "arm", "mean", "standard_error"]].reset_index(drop=True)


def papers_number(key: str, arm: str, metric: str) -> float:
    """A number of the paper that stands once in an experiment, NaN where there is none."""
    numbers = paper_numbers()
    found = numbers[(numbers["experiment"] == f"ppi_{key}") & (numbers["arm"] == arm) & (numbers["metric"] == metric)]
    return float(found["paper_mean"].iloc[0]) if len(found) else math.nan


def agreement(weights: pd.DataFrame) -> Estimate:
    """Mean rank correlation (Spearman) of the weights [tasks, PT seeds] over the pairs of PT seeds.

    Pairs share seeds, so the standard error is the jackknife's over seeds (Efron and Stein 1981); `n` is their number, but 1
    with two of them, whose one pair has no spread. Weights that are all equal have no ranks: NaN. Raises NotMeasuredError for
    one seed.
    """
    count = weights.shape[1]
    if count < 2:
        raise NotMeasuredError("A correlation between PT seeds needs two of them.")
    r = correlations(weights)
    pairs = r[np.triu_indices(count, 1)]
    if count == 2:
        return Estimate(float(pairs[0]), math.nan, 1, math.nan, math.nan)
    total = float(pairs.sum())
    without = [(total - float(np.delete(r[i], i).sum())) / (len(pairs) - count + 1) for i in range(count)]
    # Pseudo-values have the jackknife's standard error, and the mean of the pairs as theirs: it has no bias to remove.
    return estimate_mean(count * total / len(pairs) - (count - 1) * np.array(without))


def correlations(weights: pd.DataFrame) -> NDArray[np.float64]:
    """Spearman's correlation [PT seeds, PT seeds] of weights [tasks, PT seeds]; NaN for a seed that has one not finite."""
    ranks = weights.where(np.isfinite(weights)).rank().to_numpy(dtype=float)
    with np.errstate(all="ignore"):
        return np.atleast_2d(np.corrcoef(ranks, rowvar=False))


def _same_index(cells: Sequence[pd.Series[float]]) -> bool:
    return all(set(cell.index) == set(cells[0].index) for cell in cells)


def _tasks(path: Path | None) -> pd.DataFrame:
    columns = ["kind", "task", "term", "description"]
    if path is None:
        return pd.DataFrame({name: [] for name in columns})
    try:
        found = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")[columns]
        return found.assign(task=found["task"].astype(int))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} is not the list of tasks ({error}); prepare the data again.") from None
