"""Experiment `full_access`: all FT data are available at meta-PT time, for several sizes of the FT set (Table 2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from metapt.domains.ecg.config import ARMS, BestOf, BiSsl, Joint
from metapt.domains.ecg.results import EcgResults, auroc_tables, needs, over_sizes
from metapt.evaluation.experiment import Experiment
from metapt.sections import ExperimentSection, Sizes, key
from metapt.twostage.tables import beats


class FullAccess(ExperimentSection):
    """All FT data are there at meta-PT time, at several sizes of the FT set."""

    arms: list[str] = key(
        [
            name
            for name, arm in ARMS.items()
            if not (isinstance(arm, BestOf | Joint | BiSsl) or getattr(arm, "placebo", None))
        ],
        "arms, keys of `ecg.arms`; by default all but placebos and those from best_of_4 on",
        min_length=1,
    )
    finetune_sizes: Sizes = key([100, 250, 500, 1000, 2500], "labelled ECGs, |D_FT|")


@dataclass(frozen=True)
class FullAccessResults(EcgResults):
    papers_arms: ClassVar[Mapping[str, str]] = {"optsla": "simclr_optsla"}
    papers_claims: ClassVar[Collection[tuple[str, str]]] = (("simclr", "no_pt"), ("meta", "simclr"), ("meta", "optsla"))


EXPERIMENT = Experiment(
    title="Test AUROC of each arm on ECGs, by the number of labelled ECGs",
    figure_title="Test AUROC of each arm on ECGs",
    section=FullAccess,
    order=1,
    needs=needs,
    results=FullAccessResults,
    tables=auroc_tables,
    figure=over_sizes,
    comparisons=beats,
)
