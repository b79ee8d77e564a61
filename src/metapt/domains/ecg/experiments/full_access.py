"""Experiment `full_access`: all FT data are available at meta-PT time, for several sizes of the FT set (Table 2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from metapt.domains.ecg.aurocs import auroc_tables, beats, needs, over_sizes
from metapt.domains.ecg.config import ARMS, BestOf
from metapt.domains.ecg.results import EcgResults
from metapt.evaluation.experiment import Experiment
from metapt.sections import ExperimentSection, Sizes, key


class FullAccess(ExperimentSection):
    """All FT data are there at meta-PT time, at several sizes of the FT set."""

    arms: list[str] = key(
        [name for name, arm in ARMS.items() if not (isinstance(arm, BestOf) or getattr(arm, "placebo", None))],
        "arms, keys of `ecg.arms`; placebos, and the best of several runs, which costs as many at each size, "
        "only if named",
        min_length=1,
    )
    finetune_sizes: Sizes = key([100, 250, 500, 1000, 2500], "labelled ECGs, |D_FT|")


@dataclass(frozen=True)
class FullAccessResults(EcgResults):
    """The results of the experiment."""

    papers_arms: ClassVar[Mapping[str, str]] = {"optsla": "simclr_optsla"}
    papers_pairs: ClassVar[Mapping[tuple[str, str], Collection[str]]] = {
        ("simclr", "no_pt"): (),
        ("meta", "simclr"): (),
        ("meta", "optsla"): ("pretrain_steps",),  # P, for which OptSLA has another default
    }


EXPERIMENT = Experiment(
    title="Test AUROC of each arm on ECGs, by the number of labelled ECGs",
    figure_title="Test AUROC on ECGs over the number of labelled ECGs, for each arm",
    section=FullAccess,
    order=1,
    needs=needs,
    results=FullAccessResults,
    tables=auroc_tables,
    figure=over_sizes,
    comparisons=beats,
)
