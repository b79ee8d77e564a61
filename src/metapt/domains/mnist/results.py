"""The results of an experiment each of whose arms is a run, its table, and the record of such an experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metapt.domains.mnist.config import MnistSettings, Study
from metapt.domains.mnist.quantities import DIAGNOSIS
from metapt.evaluation import figures, results
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, Comparison, Criterion
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.statistics import estimate_mean, summarise
from metapt.evaluation.tables import Tables, beside_paper, ours_and_papers
from metapt.sections import plain


@dataclass(frozen=True)
class MnistResults(results.Results):
    """The results of an experiment; see `metapt.evaluation.results.Results`."""

    settings: ClassVar[type[MnistSettings]] = MnistSettings

    def series_by_arm(self) -> dict[str, pd.DataFrame]:
        """Return the series of each arm, in the order of `arms`."""
        return {arm: self.series[self.series["arm"] == arm] for arm in self.arms}

    def trajectories(self, draw: Callable[[Axes, pd.DataFrame], None], ylabel: str) -> Figure:
        """Return a figure with a panel for each arm, on which `draw` draws the arm's series over meta-iterations."""
        series = self.series_by_arm()
        whole, axes = figures.panels(columns=len(series))
        for axis, (arm, frame) in zip(axes, series.items(), strict=True):
            draw(axis, frame)
            axis.set_title(arm)
        axes[0].set_ylabel(ylabel)
        figures.same_range(axes, "y")
        figures.legend_above(whole, axes)
        return whole

    def paper_says(self, arm: str, words: str, *others: str) -> str:
        """Return `words`, or `BEYOND_THE_PAPER` where the study or one of the arms is not the paper's.

        `arm` may have other heads than the default `meta`, since the paper leaves open whether PT and FT share one
        here. Each of `others` must equal the default arm of its name.
        """
        own, default = self.section.arms, self._papers.arms
        meta = own[arm].model_copy(update={"heads": default["meta"].heads})
        same = meta == default["meta"] and all(own[each] == default.get(each) for each in others if each in own)
        return words if same and self._is_the_papers_study() else BEYOND_THE_PAPER

    def claim(
        self, text: str, arm: str, metric: str, criterion: Criterion, paper: str, setting: str | None = None
    ) -> Comparison:
        """Return a claim about the mean of an arm's number over replicates, which is compared with a number."""
        return Comparison(
            text, arm, "", metric, criterion, lambda: estimate_mean(self.values(arm, metric, setting)), paper=paper
        )

    @property
    def own_papers(self) -> pd.DataFrame:
        """The paper's numbers, of arms and a study with its settings."""
        same = [arm for arm in self.arms if self.section.arms[arm] == self._papers.arms.get(arm)]
        return self.papers[self.papers["arm"].isin(same if self._is_the_papers_study() else [])]

    @property
    def _papers(self) -> Study:
        """The paper's study, which has the default of each key."""
        default: Study = type(self.section)()
        return default

    def _is_the_papers_study(self) -> bool:
        """Return whether the study has the paper's settings; its arms, starts and the number of runs may differ."""
        own, papers = plain(self.section), plain(self._papers)
        return all(own[key] == papers[key] for key in own.keys() - {"arms", "starts", "replicates", "evaluations"})

    def beside_paper(self, caption: str) -> Tables:
        """Return the mean of each number over replicates beside the paper's, without the loop's diagnosis."""
        joined = beside_paper(summarise(self.metrics[self.metrics["evaluation"] != DIAGNOSIS]), self.own_papers)
        return Tables({caption: ours_and_papers(joined)}, joined)


def experiment(
    key: str,
    section: type[Study],
    order: int,
    figure: Callable[[MnistResults], Figure],
    comparisons: Callable[[MnistResults], Iterable[Comparison]],
    *,
    caption: str,
    title: str,
    figure_title: str,
) -> Experiment:
    """Return the record of an experiment each of whose arms is a run; `caption` is that of its table."""
    return Experiment(
        title=title,
        figure_title=figure_title,
        section=section,
        order=order,
        needs=lambda jobs, section: Needs([jobs.study(key, arm) for arm in sorted(section.arms)]),
        results=MnistResults,
        tables=lambda results: results.beside_paper(caption),
        figure=figure,
        comparisons=comparisons,
    )
