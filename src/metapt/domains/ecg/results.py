"""What the runs of an ECG experiment have left, read once, in the form that its tables, figures and claims work on."""

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

from metapt.domains.ecg.config import EcgConfig
from metapt.domains.ecg.labels import PAPERS_ARMS
from metapt.domains.ecg.quantities import DISPLACEMENT
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.paper import paper_numbers
from metapt.twostage.seeded import machine_of, over_runs, over_seeds

AUROC = "mean test AUROC over 5 classes (%)"
PRETRAINING = "pretraining"


@dataclass(frozen=True)
class Results:
    """The results of an experiment.

    Attributes:
        config: the section `ecg`.
        key: of the experiment, as in `full_access`.
        arms: in the order of the config; in `partial_access` the baseline comes first.
        metrics: of all its runs, with `ecg_{key}` as experiment.
        series: of its PT runs: arm, seed, step, name, value.
        machines: arm -> the machines that its PT ran on, in words.
        views: arrays of the experiment `augmentations`, by name; none elsewhere.
    """

    config: EcgConfig
    key: str
    arms: list[str]
    metrics: pd.DataFrame
    series: pd.DataFrame
    machines: dict[str, list[str]]
    views: dict[str, NDArray[Any]]

    @property
    def experiment(self) -> str:
        return f"ecg_{self.key}"

    @property
    def section(self) -> Any:
        """The experiment's own settings."""
        return getattr(self.config, self.key)

    def runs(self, arm: str, size: int, evaluation: str, meta_size: int | None = None) -> pd.Series[float]:
        """Test AUROC (%) of each FT run, indexed by pair of seeds. Raises NotMeasuredError where there is none."""
        cell = arm, finetune_setting(size, meta_size), evaluation
        if cell not in self._aurocs:
            raise NotMeasuredError(f"No run has measured the AUROC of {arm}, {cell[1]}, {evaluation}.")
        return self._aurocs[cell]

    @cached_property
    def _aurocs(self) -> dict[Any, pd.Series[float]]:
        """(arm, setting, evaluation) -> values, indexed by pair of seeds."""
        rows = self.metrics[self.metrics["metric"] == AUROC].set_index("replicate")
        return {cell: part["value"] for cell, part in rows.groupby(["arm", "setting", "evaluation"])}

    def pretraining(self, arm: str, metric: str) -> pd.Series[float]:
        """A number of each PT run of an arm, indexed by PT seed. Raises NotMeasuredError where there is none."""
        return metrics.select(
            self.metrics, experiment=self.experiment, arm=arm, metric=metric, evaluation=PRETRAINING
        ).sort_index()

    def trajectory(self, arm: str, seed: int, name: str = DISPLACEMENT) -> pd.DataFrame:
        """step and value of a series of a PT run, by step; empty where the run has none."""
        series = self.series
        return series[(series["arm"] == arm) & (series["seed"] == seed) & (series["name"] == name)].sort_values("step")


def read(config: Mapping[str, Any], inputs: Mapping[str, Path]) -> Results:
    """Reads what the inputs of `metapt.domains.ecg.experiments.summarise` name. Raises DataError where a file is no such table."""
    section, key = EcgConfig.model_validate(config["settings"]), config["experiment"]
    tables = metrics.read([path for name, path in inputs.items() if name.endswith("/metrics")])
    tables["experiment"] = f"ecg_{key}"
    if key == "partial_access":
        tables = _with_meta_size(tables, section.partial_access.baseline if section.partial_access else "")
    machines: dict[str, list[str]] = {}
    series = [pd.DataFrame({"arm": [], "seed": [], "step": [], "name": [], "value": []})]
    for name, path in inputs.items():
        stage, *words = name.split("/")
        if stage == "pretrain" and words[-1] == "series":
            read_series = metrics.read_series(path)
            series.append(read_series.assign(arm=words[0], seed=_seed(words[2])).drop(columns="replicate"))
        elif stage == "pretrain" and words[-1] == "run":
            machines.setdefault(words[0], []).append(machine_of(path))
    return Results(
        section,
        key,
        _arms(section, key),
        tables,
        pd.concat(series[1:] or series, ignore_index=True),
        {arm: list(dict.fromkeys(names)) for arm, names in machines.items()},
        _views(inputs["views"]) if "views" in inputs else {},
    )


def finetune_setting(size: int, meta_size: int | None = None) -> str:
    """The words for |D_FT| and, where it is another (or 0: none are used), the number of FT ECGs at meta-PT time."""
    return f"ft_size={size}" if meta_size is None else f"ft_size={size} meta_ft_size={meta_size}"


def first_size(results: Results) -> int:
    """The |D_FT| of the paper's curve over |D_FT^meta|: 500, or the first of the config where that is not run."""
    sizes: list[int] = results.section.finetune_sizes
    return 500 if 500 in sizes else sizes[0]


def words(setting: str) -> dict[str, str]:
    """A setting as its words.

    >>> words("ft_size=500 meta_ft_size=50")
    {'ft_size': '500', 'meta_ft_size': '50'}
    """
    return dict(word.split("=", 1) for word in setting.split())


def auroc_cells(results: Results) -> pd.DataFrame:
    """Our test AUROC in every cell that was run, one row each, in the order evaluation, arm, |D_FT|, meta-PT size.

    Columns: evaluation, arm, size, meta_size (NaN under full access), mean, standard_error (over runs), n (runs),
    seed_standard_error (over PT seeds' means), seeds.
    """
    rows = []
    for evaluation in results.config.evaluations:
        for arm in results.arms:
            for size in results.section.finetune_sizes:
                for meta_size in _meta_sizes(results, arm, size):
                    try:
                        values = results.runs(arm, size, evaluation, meta_size)
                    except NotMeasuredError:
                        continue
                    runs, seeds = over_runs(values), over_seeds(values)
                    rows.append(
                        {
                            "evaluation": evaluation,
                            "arm": arm,
                            "size": size,
                            "meta_size": math.nan if meta_size is None else meta_size,
                            "mean": runs.mean,
                            "standard_error": runs.standard_error,
                            "n": runs.n,
                            "seed_standard_error": seeds.standard_error,
                            "seeds": seeds.n,
                        }
                    )
    if not rows:
        raise DataError(f"No FT run of ecg_{results.key} has measured {AUROC!r}.")
    return pd.DataFrame(rows)


def papers_cells(key: str, arms: Sequence[str]) -> pd.DataFrame:
    """The paper's AUROC in our names: evaluation, arm, size, meta_size (NaN under full access), mean, standard_error."""
    numbers = paper_numbers()
    numbers = numbers[(numbers["experiment"] == f"ecg_{key}") & (numbers["metric"] == AUROC)]
    ours = {theirs: arm for arm, theirs in PAPERS_ARMS.get(key, {}).items()}
    settings = [words(setting) for setting in numbers["setting"]]
    found = pd.DataFrame(
        {
            "evaluation": numbers["evaluation"],
            "arm": numbers["arm"].replace(ours),
            "size": [int(setting["ft_size"]) for setting in settings],
            "meta_size": [float(setting.get("meta_ft_size", "nan")) for setting in settings],
            "mean": numbers["paper_mean"],
            "standard_error": numbers["paper_standard_error"],
        }
    )
    return found[found["arm"].isin(arms)].reset_index(drop=True)


def _arms(section: EcgConfig, key: str) -> list[str]:
    settings = getattr(section, key)
    if key == "partial_access":
        return list(dict.fromkeys([settings.baseline, *settings.arms]))
    return list(settings.starts) if key == "warp_study" else list(settings.arms)


def _meta_sizes(results: Results, arm: str, size: int) -> list[int | None]:
    if results.key != "partial_access":
        return [None]
    if arm == results.section.baseline:
        return [0]
    return [meta_size for meta_size in sorted(results.section.meta_sizes) if meta_size <= size]


def _with_meta_size(table: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Names in every FT row the number of FT ECGs at meta-PT time: none for the baseline, all where the run names none."""

    def named(arm: str, setting: str) -> str:
        found = words(setting)
        if "ft_size" not in found or "meta_ft_size" in found:
            return setting
        return finetune_setting(int(found["ft_size"]), 0 if arm == baseline else int(found["ft_size"]))

    return table.assign(setting=[named(arm, setting) for arm, setting in zip(table["arm"], table["setting"], strict=True)])


def _seed(word: str) -> int:
    return int(word.removeprefix("seed"))


def _views(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}
