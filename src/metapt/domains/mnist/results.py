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


@dataclass(frozen=True)
class MnistResults(results.Results):
    """The results of an experiment; see `metapt.evaluation.results.Results`."""

    settings: ClassVar[type[MnistSettings]] = MnistSettings

    def series_by_arm(self) -> dict[str, pd.DataFrame]:
        """Return the series of each arm, in the order of `arms`."""
        return {arm: self.series[self.series["arm"] == arm] for arm in self.arms}

    def paper_says(self, arm: str, words: str) -> str:
        """Return `words`, or `BEYOND_THE_PAPER` for an arm that differs from the paper's in more than its heads.

        The paper leaves open whether PT and FT share a head here.
        """
        default = type(self.section).model_fields["arms"].default["meta"]
        same = self.section.arms[arm].model_copy(update={"heads": default.heads}) == default
        return words if same else BEYOND_THE_PAPER

    def beside_paper(self, caption: str) -> Tables:
        """Return the mean of each number over replicates beside the paper's, without the loop's diagnosis."""
        joined = beside_paper(summarise(self.metrics[self.metrics["evaluation"] != DIAGNOSIS]), self.papers)
        return Tables({caption: ours_and_papers(joined)}, joined)
