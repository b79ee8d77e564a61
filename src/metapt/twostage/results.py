"""The results of an experiment's PT and FT runs, and statistics of FT runs that share encoders.

The paper reports means over all runs; only means over PT seeds are independent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from metapt.evaluation.figures import Look, Style, looks
from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.results import Results
from metapt.evaluation.statistics import Estimate, estimate_mean, paired_difference
from metapt.twostage.arms import META_PT, Pair, label_of, pairs
from metapt.twostage.quantities import EVALUATIONS, PRETRAINING, pretrain_seed


class Cell(NamedTuple):
    """A place in a table of AUROC: an arm's FT runs in a setting under an evaluation."""

    arm: str
    setting: str  # as in the metrics table
    evaluation: str
    words: dict[str, Any]  # the columns of the table that say where it is, by name


@dataclass(frozen=True)
class TwoStageResults(Results):
    """The results of an experiment with PT and FT runs."""

    styles: ClassVar[Mapping[str, Style]] = {}  # of arms of the default config, which look the same everywhere
    papers_arms: ClassVar[Mapping[str, str]] = {}  # our name of an arm -> the paper's, where they differ
    papers_claims: ClassVar[Collection[tuple[str, str]]] = ()  # arm and control of the paper's claims

    @property
    def auroc(self) -> str:
        """Return the metric by which FT runs are compared."""
        raise NotImplementedError

    @property
    def meta_arms(self) -> list[str]:
        """Return the experiment's arms that learn with Algorithm 2."""
        return [arm for arm in self.arms if self.config.arms[arm].method == META_PT]

    def pairs(self) -> list[Pair]:
        """Return the arms that claims and the table of differences compare."""
        return pairs(self.arm_settings(), self.papers_claims)

    def cells(self) -> list[Cell]:
        """Return the cells of the table of AUROC, in their order."""
        raise NotImplementedError

    def where(self, cell: Cell) -> str:
        """Return the end of a claim's sentence, which says where it is made."""
        raise NotImplementedError

    def label(self, arm: str) -> str:
        """Return the name of an arm in tables and figures."""
        return label_of(arm, self.config.arms.get(arm))

    def looks(self) -> dict[str, Look]:
        """Return how figures draw each arm."""
        return looks({arm: self.label(arm) for arm in self.arms}, self.styles)

    def spread(self, arm: str, setting: str, evaluation: str) -> Estimate:
        """Return mean and standard error over all FT runs, as if runs with one encoder were independent (as the paper).

        Raises NotMeasuredError if there is no such run.
        """
        return estimate_mean(self.runs(arm, setting, evaluation))

    def runs(self, arm: str, setting: str, evaluation: str) -> pd.Series[float]:
        """Return the test AUROC (%) of each FT run that stands for a cell, indexed by pair of seeds.

        Raises NotMeasuredError if there is no such run.
        """
        cell = arm, setting, evaluation
        if cell not in self._aurocs:
            raise NotMeasuredError(f"No run has measured the AUROC of {arm}, {setting}, {evaluation}.")
        return self._aurocs[cell]

    @cached_property
    def _aurocs(self) -> dict[Any, pd.Series[float]]:
        rows = self.metrics[self.metrics["metric"] == self.auroc].set_index("replicate")
        return {cell: part["value"] for cell, part in rows.groupby(["arm", "setting", "evaluation"])}

    def independent(self, values: pd.Series[float], evaluation: str) -> pd.Series[float]:
        """Return the mean over the FT runs of each PT seed; numbers that are not of FT runs have a PT seed each."""
        return seed_means(values) if evaluation in EVALUATIONS else values

    def pretraining(self, arm: str, metric: str, setting: str | None = None) -> pd.Series[float]:
        """Return a number of each PT run of an arm, indexed by PT seed.

        Raises NotMeasuredError if there is no such run.
        """
        return self.values(arm, metric, setting, PRETRAINING).sort_index()

    def by_seed(self, arm: str, name: str, setting: str) -> pd.DataFrame:
        """Return a series of an arm's PT runs, with a row for each step and a column for each PT seed.

        Raises NotMeasuredError if no PT run has it.
        """
        s = self.series
        ours = (s["stage"] == "pretrain") & (s["arm"] == arm) & (s["setting"] == setting)
        found = s[ours & (s["name"] == name)]
        if found.empty:
            raise NotMeasuredError(f"No PT run of {arm}, {setting}, has left a series {name!r}.")
        return found.pivot(index="step", columns="seed", values="value")

    def papers_aurocs(self, arms: Collection[str]) -> pd.DataFrame:
        """Return the paper's AUROC of our `arms` as setting, evaluation, arm, mean, standard_error."""
        numbers = self.papers
        numbers = numbers[(numbers["experiment"] == self.name) & (numbers["metric"] == self.auroc)]
        ours = {theirs: arm for arm, theirs in self.papers_arms.items()}
        numbers = numbers.assign(arm=numbers["arm"].replace(ours))
        numbers = numbers.rename(columns={"paper_mean": "mean", "paper_standard_error": "standard_error"})
        found = numbers[numbers["arm"].isin(arms)]
        return found[["setting", "evaluation", "arm", "mean", "standard_error"]].reset_index(drop=True)

    def papers_cells(self) -> pd.DataFrame:
        """Return the paper's AUROC of our arms, with the columns of the cells' words, mean and standard_error."""
        return self.papers_aurocs(self.arms)

    def papers_cell(self, arm: str, setting: str, evaluation: str) -> tuple[pd.DataFrame, str]:
        """Return the paper's AUROC of an arm as at most one row, and a note on it."""
        found = self.papers_aurocs([arm])
        return found[(found["setting"] == setting) & (found["evaluation"] == evaluation)], ""


def seed_means(values: pd.Series[float]) -> pd.Series[float]:
    """Return the mean over the FT runs of each PT seed."""
    seeds = np.array([pretrain_seed(int(replicate)) for replicate in values.index])
    found = values.to_numpy(dtype=float)
    return pd.Series({int(seed): float(np.mean(found[seeds == seed])) for seed in np.unique(seeds)}, dtype=float)


def over_seeds(values: pd.Series[float]) -> Estimate:
    """Return mean and standard error over the means of the PT seeds."""
    return estimate_mean(seed_means(values))


def difference(a: pd.Series[float], b: pd.Series[float]) -> Estimate:
    """Return the difference between two arms' means of PT seeds, paired by PT seed.

    Raises DataError if the arms have different PT seeds.
    """
    return paired_difference(seed_means(a), seed_means(b))
