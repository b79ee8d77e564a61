"""Experiment `cost`: time and memory of PT, and time of FT (appendix "Implementation details")."""

from __future__ import annotations

from metapt.domains.ppi.config import ArmsSection, Names
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.stages import FULL_ACCESS
from metapt.sections import key
from metapt.twostage.cost import Limit, experiment
from metapt.twostage.quantities import PEAK_MEMORY, TIME_PER_STEP

LIMITS = (
    Limit(TIME_PER_STEP, "twice the time per PT step", 2.0, "5 h against 2.5 h"),
    Limit(PEAK_MEMORY, "about twice the memory", 2.2, "8-9 GB against 4-5 GB"),
)


class PpiCost(ArmsSection):
    """Time and memory, measured in PT runs, and FT runs of the first arm. `meta-stable` is not in the paper."""

    arms: Names = key(["graph_supervised", "meta", "meta-stable"], "arms, keys of `ppi.arms`", min_length=1)


EXPERIMENT = experiment(
    PpiCost,
    order=11,
    setting=lambda section: FULL_ACCESS,
    results=PpiResults,
    plain=lambda results: results.plain,
    papers={"graph_supervised": "2.5 h, 4-5 GB", "meta": "5 h, 8-9 GB"},
    limits=LIMITS,
    problem="protein graphs",
)
