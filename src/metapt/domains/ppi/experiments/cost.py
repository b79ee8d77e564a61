"""Experiment `cost`: time and memory of PT, and time of FT."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from metapt.domains.ppi.config import ArmsSection, Names
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.labels import looks
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.settings import FULL_ACCESS
from metapt.evaluation.comparisons import Comparison
from metapt.evaluation.experiment import Experiment, Needs
from metapt.evaluation.tables import Tables
from metapt.sections import key
from metapt.twostage import cost
from metapt.twostage.quantities import PEAK_MEMORY, TIME_PER_STEP

PAPER = ("2.5 h, 4-5 GB", "5 h, 8-9 GB")
"""The paper's time and memory of plain PT and of meta-PT (appendix "Implementation details")."""

LIMITS = (
    cost.Limit(TIME_PER_STEP, "twice the time per PT step", 2.0, "5 h against 2.5 h"),
    cost.Limit(PEAK_MEMORY, "about twice the memory", 2.2, "8-9 GB against 4-5 GB"),
)


class PpiCost(ArmsSection):
    """Time and memory, measured in PT runs, and FT runs of the first arm. `meta-stable` is not in the paper."""

    arms: Names = key(["graph_supervised", "meta", "meta-stable"], "arms, keys of `ppi.arms`", min_length=1)


def needs(jobs: PpiJobs, section: PpiCost) -> Needs:
    """Return the PT runs of each arm, and the FT runs of the first one, since those of all arms take equally long."""
    return Needs([*jobs.pretrain_all(section.arms, FULL_ACCESS), jobs.finetune(section.arms[0], FULL_ACCESS)])


def costs(results: PpiResults) -> cost.Cost:
    """Return time and memory of the runs."""
    return cost.cost_of(results, looks(results.arms), results.plain, PAPER, ratio=5.0 / 2.5)


def tables(results: PpiResults) -> Tables:
    """Return a row per arm."""
    return cost.tables(costs(results))


def figure(results: PpiResults) -> Figure:
    """Draw time and memory of each arm."""
    return cost.figure(costs(results))


def comparisons(results: PpiResults) -> Iterator[Comparison]:
    """Yield a claim on time and one on memory for each meta arm."""
    return cost.comparisons(costs(results), results.meta_arms, LIMITS)


EXPERIMENT = Experiment(
    title="Time and memory of PT on protein graphs",
    figure_title="Time and memory of PT on protein graphs, for each arm",
    section=PpiCost,
    order=11,
    needs=needs,
    results=PpiResults,
    tables=tables,
    figure=figure,
    comparisons=comparisons,
)
