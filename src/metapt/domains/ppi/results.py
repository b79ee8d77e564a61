"""Results of the runs of a PPI experiment, in the form that its tables, figures and comparisons use."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import pandas as pd

from metapt.domains.ppi.config import (
    Arm,
    PpiMeta,
    PpiSettings,
    Supervised,
    has_equal_weights,
    learns_weights,
    resolved,
    start_of,
)
from metapt.domains.ppi.quantities import AUROC, WEIGHT
from metapt.domains.ppi.settings import FULL_ACCESS, HALF_DATA, HELD_OUT, finetune_setting
from metapt.errors import DataError
from metapt.evaluation.figures import Style
from metapt.evaluation.statistics import Estimate, estimate_mean
from metapt.files import reading
from metapt.twostage.quantities import EVALUATIONS, VALIDATION_AUROC
from metapt.twostage.results import Cell, TwoStageResults

STYLES: dict[str, Style] = {
    "no_pt": (6, 6, "-"),
    "graph_supervised": (0, 0, "-"),
    "graph_supervised-slow": (0, 1, "--"),
    "no_pt-released": (6, 3, ":"),
    "graph_supervised-released": (0, 3, ":"),
    "cotrain": (5, 4, "-"),
    "cotrain_pcgrad": (4, 5, "-"),
    "cotrain_pcgrad-shared": (4, 0, "--"),
    "cotrain_learned_weights": (3, 3, "-"),
    "meta": (1, 1, "-"),
    "meta-fast": (1, 0, "--"),
    "meta-released": (1, 3, ":"),
    "meta-identity": (1, 6, "--"),
    "meta-stable": (2, 2, "-"),
    "meta-frozen": (4, 1, "--"),
    "meta-permuted": (6, 1, "--"),
    "meta-stable-frozen": (2, 4, ":"),
    "meta-stable-permuted": (6, 2, ":"),
    "meta-top": (2, 0, "--"),
    "meta-bottom": (3, 5, "--"),
    "related_only": (0, 4, "--"),
}
"""How figures draw arms of the default config."""

SETTINGS = {
    "full_access": "full access",
    "half_data": "half data",
    "held_out_tasks": "held-out tasks",
    "permuted_50": "50 % of PT tasks permuted",
    "permuted_90": "90 % of PT tasks permuted",
}
"""Names of settings in tables and figures."""

BASELINE, LEARNED = "graph_supervised", "meta"  # the paper's plain PT, and its meta arm
RELEASED = "meta-released"  # its meta arm with the released code's choices

PAPERS_CLAIMS = (
    (BASELINE, "no_pt"),
    (BASELINE, "cotrain"),
    (LEARNED, BASELINE),
    (LEARNED, "cotrain"),
    (LEARNED, "cotrain_pcgrad"),
    (LEARNED, "no_pt"),
)
"""Arm and control of each claim of the paper on AUROC."""

HELD_OUT_TASKS = "held_out_tasks"  # the experiment whose AUROC is the mean over the folds


@dataclass(frozen=True)
class PpiResults(TwoStageResults):
    """The results of an experiment."""

    settings: ClassVar[type[PpiSettings]] = PpiSettings
    auroc: ClassVar[str] = AUROC
    styles: ClassVar[Mapping[str, Style]] = STYLES
    papers_claims: ClassVar[Collection[tuple[str, str]]] = PAPERS_CLAIMS

    config: PpiSettings  # the section `ppi`, with the arms that the experiment names

    @property
    def learners(self) -> list[str]:
        """Return the experiment's arms that learn task weights."""
        return [arm for arm in self.section.arms if learns_weights(self.config.arms[arm])]

    @property
    def meta_arms(self) -> list[str]:
        """Return the experiment's arms that learn with Algorithm 2."""
        return [arm for arm in self.arms if isinstance(self.config.arms[arm], PpiMeta)]

    @property
    def plain(self) -> str | None:
        """Return the first arm with supervised PT and equal weights of all tasks; None if there is none."""
        own = ((name, self.config.arms[name]) for name in self.arms)
        return next((name for name, arm in own if isinstance(arm, Supervised) and has_equal_weights(arm)), None)

    def resolved(self, arm: Arm) -> Arm:
        """Return an arm with the PT learning rate that it has."""
        return resolved(arm, self.config.arms)

    def cells(self) -> list[Cell]:
        """Return the cells of the experiment's setting: each evaluation and arm, in this order."""
        return self.cells_of([self.key])

    def cells_of(self, settings: Iterable[str]) -> list[Cell]:
        """Return the cells of each setting, evaluation and arm, in this order."""
        return [
            Cell(arm, setting, evaluation, {"setting": setting, "evaluation": evaluation, "arm": arm})
            for setting in settings
            for evaluation in self.config.evaluations
            for arm in self.arms
        ]

    def where(self, cell: Cell) -> str:
        """Return the end of a claim's sentence."""
        return f"{SETTINGS[cell.setting]}, {EVALUATIONS[cell.evaluation]}"

    def spread(self, arm: str, setting: str, evaluation: str) -> Estimate:
        """Return mean and standard error over all FT runs; under `held_out_tasks` over the folds, as in the paper."""
        if setting != HELD_OUT_TASKS:
            return super().spread(arm, setting, evaluation)
        return estimate_mean(self.folds(arm, evaluation).mean(skipna=False).to_numpy(dtype=float))

    def papers_cell(self, arm: str, setting: str, evaluation: str) -> tuple[pd.DataFrame, str]:
        """Return the paper's AUROC of an arm as at most one row, and a note: without PT it has full transfer only."""
        found, note = super().papers_cell(arm, setting, evaluation)
        if len(found) or arm != "no_pt":
            return found, note
        found = self.papers_aurocs([arm])
        return found[found["setting"] == setting], " (no_pt: full transfer)"

    def setting_of_control(self, control: str, setting: str) -> str:
        """Return the setting of a control's runs; under half data, those of PT without FT data are of full access."""
        arm = self.config.arms.get(control)
        served = self.key == HALF_DATA and arm is not None and setting in (FULL_ACCESS, HALF_DATA)
        return finetune_setting(arm, HALF_DATA) if served and arm is not None else setting

    def starts(self, arms: Iterable[str]) -> list[tuple[str, str]]:
        """Return pairs of an arm and its start (`start_of`), of those of `arms` that have one."""
        found = ((arm, start_of(arm, self.config.arms)) for arm in arms)
        return [(arm, start) for arm, start in found if start is not None]

    def gains(self) -> list[tuple[str, str]]:
        """Return the paper's meta arm and its plain PT if they are compared, then each meta arm and its start."""
        papers = [(arm, control) for arm, control, _ in self.pairs() if (arm, control) == (LEARNED, BASELINE)]
        return list(dict.fromkeys([*papers, *self.starts(self.meta_arms)]))

    def validation(self, arm: str, setting: str, evaluation: str) -> float:
        """Return the mean validation AUROC (%) over the FT runs; for `held_out_tasks` that of all folds.

        Raises NotMeasuredError if no run was measured in the setting, or in one of the folds.
        """
        served = HELD_OUT if setting == HELD_OUT_TASKS else [finetune_setting(self.config.arms[arm], setting)]
        found = [self.values(arm, VALIDATION_AUROC, each, evaluation).mean(skipna=False) for each in served]
        return sum(map(float, found)) / len(found)

    def runs(self, arm: str, setting: str, evaluation: str) -> pd.Series[float]:
        """Return the test AUROC (%) of each FT run, indexed by pair of seeds; for `held_out_tasks` the folds' mean.

        Raises NotMeasuredError if no run was measured, or none in one of the folds. Raises DataError if the folds have
        different seeds.
        """
        if setting != HELD_OUT_TASKS:
            return self.finetuning(arm, finetune_setting(self.config.arms[arm], setting), evaluation)
        folds = self.folds(arm, evaluation)
        if any(set(self.runs(arm, fold, evaluation).index) != set(folds.index) for fold in HELD_OUT):
            raise DataError(
                f"The folds of {arm}, {evaluation}, have other seeds than one another; make their runs again."
            )
        return folds.mean(axis=1, skipna=False)

    def folds(self, arm: str, evaluation: str) -> pd.DataFrame:
        """Return the test AUROC (%) by pair of seeds and fold.

        Raises NotMeasuredError if no run was measured in one of the folds.
        """
        return pd.concat({fold: self.runs(arm, fold, evaluation) for fold in HELD_OUT}, axis=1)

    def weights(self, arm: str, setting: str = FULL_ACCESS) -> pd.DataFrame:
        """Return the learned weights [PT tasks, PT seeds]. Raises NotMeasuredError if the arm has learned none."""
        return self.by_seed(arm, WEIGHT, setting)

    def papers_number(self, arm: str, metric: str) -> float:
        """Return the paper's number for an arm and metric of this experiment, NaN if it has none."""
        numbers = self.papers
        found = numbers[(numbers["experiment"] == self.name) & (numbers["arm"] == arm) & (numbers["metric"] == metric)]
        return float(found["paper_mean"].iloc[0]) if len(found) else math.nan

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """Return kind, task, term and description of the tasks; empty if the experiment does not read them.

        Raises DataError if the file is not a list of tasks.
        """
        return _tasks(self.files.get("tasks"))


def _tasks(path: Path | None) -> pd.DataFrame:
    columns = ["kind", "task", "term", "description"]
    if path is None:
        return pd.DataFrame({name: [] for name in columns})
    try:
        with reading(path, "prepare the data again") as file:
            found = pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8")[columns]
        return found.assign(task=found["task"].astype(int))
    except (ValueError, KeyError) as error:
        raise DataError(f"{path} is not the list of tasks ({error}); prepare the data again.") from None


def task_names(tasks: pd.DataFrame, kind: str, width: int = 48) -> dict[int, str]:
    """Return the description of each task of a kind, by index, or its term if it has none; cut to `width` letters.

    >>> tasks = pd.DataFrame({"kind": ["coarse"], "task": [3], "term": ["GO:0008150"], "description": [""]})
    >>> task_names(tasks, "coarse")
    {3: 'GO:0008150'}
    """
    part = tasks[tasks["kind"] == kind]
    words = zip(part["task"].astype(int), part["description"].fillna(""), part["term"].fillna(""), strict=True)
    return {
        task: textwrap.shorten(str(description or term or f"task {task}"), width, placeholder=" ...")
        for task, description, term in words
    }
