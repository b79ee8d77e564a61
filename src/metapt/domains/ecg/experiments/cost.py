"""Experiment `cost`: time and memory, as measured in the runs themselves (appendix "Implementation details")."""

from __future__ import annotations

from metapt.domains.ecg.config import Simclr
from metapt.domains.ecg.jobs import labelled
from metapt.domains.ecg.results import EcgResults
from metapt.sections import ExperimentSection, Positive, key
from metapt.twostage.cost import Limit, experiment
from metapt.twostage.quantities import PEAK_MEMORY, TIME_PER_STEP

ABOUT_TWICE = 2.2
LIMITS = (
    Limit(TIME_PER_STEP, "about twice the time per PT step", ABOUT_TWICE, "3 h against 1.5 h"),
    Limit(PEAK_MEMORY, "about twice the memory", ABOUT_TWICE, "8-9 GB against 4-5 GB"),
)


class EcgCost(ExperimentSection):
    """Time and memory, as measured in the PT runs, and in the FT runs of the first arm."""

    arms: list[str] = key(["simclr", "meta", "meta-stable"], "arms, keys of `ecg.arms`", min_length=1)
    finetune_size: Positive = key(500, "labelled ECGs at meta-PT time, and in FT")


EXPERIMENT = experiment(
    EcgCost,
    order=6,
    setting=lambda section: labelled(section.finetune_size),
    results=EcgResults,
    plain=lambda results: next((arm for arm in results.arms if isinstance(results.config.arms[arm], Simclr)), None),
    papers={"simclr": "1.5 h, 4-5 GB", "meta": "3 h, 8-9 GB"},
    limits=LIMITS,
    problem="ECGs",
)
