"""The results of an experiment's PT and FT runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pandas as pd

from metapt.evaluation.metrics import NotMeasuredError
from metapt.evaluation.results import Results
from metapt.evaluation.statistics import Estimate
from metapt.twostage.quantities import EVALUATIONS, PRETRAINING
from metapt.twostage.seeds import seed_means


@dataclass(frozen=True)
class TwoStageResults(Results):
    """The results of an experiment with PT and FT runs."""

    auroc: ClassVar[str] = ""  # the metric by which FT runs are compared

    def finetuning(self, arm: str, setting: str, evaluation: str) -> pd.Series[float]:
        """Return the test AUROC (%) of each FT run, indexed by pair of seeds.

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

    def pretraining_series(self, arm: str, name: str, setting: str | None = None) -> pd.DataFrame:
        """Return the rows of a series of an arm's PT runs; none if no run has it."""
        s = self.series
        found = s[(s["stage"] == "pretrain") & (s["arm"] == arm) & (s["name"] == name)]
        return found if setting is None else found[found["setting"] == setting]

    def by_seed(self, arm: str, name: str, setting: str) -> pd.DataFrame:
        """Return a series of an arm's PT runs, with a row for each step and a column for each PT seed.

        Raises NotMeasuredError if no PT run has it.
        """
        found = self.pretraining_series(arm, name, setting)
        if found.empty:
            raise NotMeasuredError(f"No PT run of {arm}, {setting}, has left a series {name!r}.")
        return found.pivot(index="step", columns="seed", values="value")

    def papers_aurocs(
        self, arms: Sequence[str], names: Mapping[str, str] | None = None, name: str = ""
    ) -> pd.DataFrame:
        """Return the paper's AUROC of our `arms` as setting, evaluation, arm, mean, standard_error.

        `names` gives the paper's name of an arm where it differs; `name` is that of the experiment if it is another
        one.
        """
        numbers = self.papers
        numbers = numbers[(numbers["experiment"] == (name or self.name)) & (numbers["metric"] == self.auroc)]
        ours = {theirs: arm for arm, theirs in (names or {}).items()}
        numbers = numbers.assign(arm=numbers["arm"].replace(ours))
        numbers = numbers.rename(columns={"paper_mean": "mean", "paper_standard_error": "standard_error"})
        found = numbers[numbers["arm"].isin(arms)]
        return found[["setting", "evaluation", "arm", "mean", "standard_error"]].reset_index(drop=True)


def auroc_cell(words: Mapping[str, Any], mean: float, spread: Estimate, seeds: Estimate) -> dict[str, Any]:
    """Return a row of a table of AUROC: `words`, the mean over FT runs and its spread, and that over PT seeds."""
    return {
        **words,
        "mean": mean,
        "standard_error": spread.standard_error,
        "n": spread.n,
        "seed_standard_error": seeds.standard_error,
        "seeds": seeds.n,
    }
