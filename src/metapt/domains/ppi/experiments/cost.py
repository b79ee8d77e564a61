"""Experiment `cost`: time and memory of PT, and time of FT."""

from __future__ import annotations

from metapt.domains.ppi.config import ArmsSection, Names
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.stages import FULL_ACCESS
from metapt.evaluation.experiment import Needs
from metapt.sections import key
from metapt.twostage.cost import Limit, experiment
from metapt.twostage.quantities import PEAK_MEMORY, TIME_PER_STEP

PAPERS_COST = ("2.5 h, 4-5 GB", "5 h, 8-9 GB")
"""The paper's time and memory of plain PT and of meta-PT (appendix "Implementation details")."""

PAPERS_RATIO = 5.0 / 2.5
LIMITS = (
    Limit(TIME_PER_STEP, "twice the time per PT step", 2.0, "5 h against 2.5 h"),
    Limit(PEAK_MEMORY, "about twice the memory", 2.2, "8-9 GB against 4-5 GB"),
)


class PpiCost(ArmsSection):
    """Time and memory, measured in PT runs, and FT runs of the first arm. `meta-stable` is not in the paper."""

    arms: Names = key(["graph_supervised", "meta", "meta-stable"], "arms, keys of `ppi.arms`", min_length=1)


def cost_runs(jobs: PpiJobs, section: PpiCost) -> Needs:
    """Return the PT runs of each arm, and the FT runs of the first one, since those of all arms take equally long."""
    return Needs([*jobs.encoders(section.arms, FULL_ACCESS), *jobs.finetunes([(section.arms[0], FULL_ACCESS)])])


EXPERIMENT = experiment(
    PpiCost,
    order=11,
    needs=cost_runs,
    results=PpiResults,
    plain=lambda results: results.plain,
    meta_arms=lambda results: results.meta_arms,
    papers=PAPERS_COST,
    papers_ratio=PAPERS_RATIO,
    limits=LIMITS,
    problem="protein graphs",
)
