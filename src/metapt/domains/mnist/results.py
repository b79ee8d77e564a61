"""The results of an experiment's arms, and their table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from metapt.domains.mnist.config import MnistSettings
from metapt.domains.mnist.quantities import DIAGNOSIS
from metapt.evaluation import results
from metapt.evaluation.comparisons import BEYOND_THE_PAPER
from metapt.evaluation.paper import beside_paper
from metapt.evaluation.statistics import summarise
from metapt.evaluation.tables import Tables, ours_and_papers
from metapt.sections import plain


@dataclass(frozen=True)
class MnistResults(results.Results):
    """The results of an experiment; see `metapt.evaluation.results.Results`."""

    settings: ClassVar[type[MnistSettings]] = MnistSettings

    def series_by_arm(self) -> dict[str, pd.DataFrame]:
        """Return the series of each arm, in the order of `arms`."""
        return {arm: self.series[self.series["arm"] == arm] for arm in self.arms}

    def paper_says(self, arm: str, words: str, *others: str) -> str:
        """Return `words`, or `BEYOND_THE_PAPER` where the study or one of the arms is not the paper's.

        `arm` may have other heads than the default `meta`, since the paper leaves open whether PT and FT share one
        here. Each of `others` must equal the default arm of its name.
        """
        default = type(self.section).model_fields["arms"].default
        meta = self.section.arms[arm].model_copy(update={"heads": default["meta"].heads})
        run = {each: self.section.arms[each] for each in others if each in self.section.arms}
        same = meta == default["meta"] and all(each == default.get(name) for name, each in run.items())
        return words if same and self._is_the_papers_study() else BEYOND_THE_PAPER

    @property
    def own_papers(self) -> pd.DataFrame:
        """The paper's numbers, of arms and a study with its settings."""
        default = type(self.section).model_fields["arms"].default
        same = [arm for arm in self.arms if self.section.arms[arm] == default.get(arm)]
        return self.papers[self.papers["arm"].isin(same if self._is_the_papers_study() else [])]

    def _is_the_papers_study(self) -> bool:
        """Return whether the study has the paper's settings; its arms, starts and the number of runs may differ."""
        free = {"arms", "starts", "replicates", "evaluations"}
        own, papers = (
            {key: value for key, value in plain(each).items() if key not in free}
            for each in (self.section, type(self.section)())
        )
        return bool(own == papers)

    def beside_paper(self, caption: str) -> Tables:
        """Return the mean of each number over replicates beside the paper's, without the loop's diagnosis."""
        joined = beside_paper(summarise(self.metrics[self.metrics["evaluation"] != DIAGNOSIS]), self.own_papers)
        return Tables({caption: ours_and_papers(joined)}, joined)
