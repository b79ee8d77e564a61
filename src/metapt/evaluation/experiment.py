"""The record of an experiment: its runs, its comparisons, its tables and its figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from metapt.engine.jobs import Job
from metapt.evaluation import figures, metrics
from metapt.evaluation.comparisons import Comparison, judge
from metapt.evaluation.results import Results, compared, differences
from metapt.evaluation.tables import Tables, write_blocks
from metapt.files import atomic_path
from metapt.machine import Machine
from metapt.sections import ExperimentSection, SummarySettings

SUMMARY = {
    "metrics": "metrics.csv",
    "claims": "claims.csv",
    "differences": "differences.csv",
    "table_csv": "table.csv",
    "table_md": "table.md",
    "table_tex": "table.tex",
    "table_html": "table.html",
    "figure_svg": "figure.svg",
    "figure_png": "figure.png",
}
"""Names of the files that summarise an experiment, in its folder, by output."""


@dataclass(frozen=True)
class Needs:
    """The inputs of an experiment's summary."""

    runs: list[Job]  # jobs whose metrics, series and records it reads
    files: dict[str, str] = field(default_factory=dict)  # paths of further inputs, by names without a slash
    arms: list[str] = field(default_factory=list)  # arms whose settings it reads beside those that are compared


@dataclass(frozen=True)
class Experiment:
    """An experiment. Its file holds this record as `EXPERIMENT`; the file's name is the experiment's key."""

    title: str  # what its table holds; the caption in the report
    section: type[ExperimentSection]  # the model of its settings, with its arms
    order: int  # its position among the experiments of its domain, as in the paper
    # returns what the summary reads, given the domain's jobs and the experiment's settings
    needs: Callable[[Any, Any], Needs]
    results: type[Results]  # the class that reads it; see `Results`
    tables: Callable[[Any], Tables]  # returns the tables, given the results
    figure: Callable[[Any], Figure]  # returns the figure, given the results; called in the common style
    comparisons: Callable[[Any], Iterable[Comparison]] = lambda results: ()  # returns the claims, given the results
    figure_title: str = ""  # what its figure shows; empty: as its table

    def summarise(
        self, settings: SummarySettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine
    ) -> None:
        """Write tables, figure and verdicts to `outputs`, named as in `SUMMARY`; other arguments: see `Results.read`.

        Raises DataError if a file is missing or not what its name says, or an arm and its control have different PT
        seeds.
        """
        results = self.results.read(self.section, settings, inputs)
        metrics.write(results.metrics, outputs["metrics"])
        blocks, numbers = self.tables(results)
        write_blocks(blocks, outputs["table_csv"].with_suffix(""), numbers)
        with figures.style():
            figures.save(self.figure(results), outputs["figure_svg"].with_suffix(""))
        stand_in, papers = results.config.stand_in, results.config.papers_data
        claims = judge(results.name, self.comparisons(results), stand_in, own=not (stand_in or papers))
        chosen = compared(results.arm_settings(), zip(claims["arm"], claims["control"], strict=True))
        for name, table in (("claims", claims), ("differences", differences(results, chosen))):
            with atomic_path(outputs[name]) as path:
                table.to_csv(path, index=False)
