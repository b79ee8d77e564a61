"""Experiment `full_access`: all FT data are available at meta-PT time, for several sizes of the FT set (Table 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from metapt.domains.ecg.aurocs import ArmClaim, auroc_tables, beats, needs, over_sizes
from metapt.domains.ecg.config import ARMS, EcgExperiment
from metapt.domains.ecg.results import EcgResults
from metapt.evaluation.experiment import Experiment
from metapt.sections import Positive, key

NO_WORSE = 0.5  # percentage points of AUROC by which an arm may fall behind one that it is to be as good as

CLAIMS = (
    ArmClaim("simclr", "no_pt", papers=True),
    ArmClaim("meta", "simclr", papers=True),
    ArmClaim("meta", "optsla", papers=True),
    ArmClaim("meta-stable", "simclr", papers=False),
    ArmClaim("meta-stable", "meta", papers=False),
    ArmClaim("meta-stable", "random_search", papers=False, margin=NO_WORSE),
    ArmClaim("meta-stable", "branch_search", papers=False, margin=NO_WORSE),
)


class FullAccess(EcgExperiment):
    """All FT data are there at meta-PT time, at several sizes of the FT set."""

    arms: list[str] = key(list(ARMS), "arms, keys of `ecg.arms`", min_length=1)
    finetune_sizes: list[Positive] = key([100, 250, 500, 1000, 2500], "labelled ECGs, |D_FT|", min_length=1)


@dataclass(frozen=True)
class FullAccessResults(EcgResults):
    """The results of the experiment."""

    papers_arms: ClassVar[Mapping[str, str]] = {"optsla": "simclr_optsla"}


EXPERIMENT = Experiment(
    title="Test AUROC of each arm on ECGs, by the number of labelled ECGs",
    figure_title="Test AUROC on ECGs over the number of labelled ECGs, for each arm",
    section=FullAccess,
    order=1,
    needs=needs,
    results=FullAccessResults,
    tables=auroc_tables,
    figure=over_sizes,
    comparisons=lambda results: beats(results, CLAIMS),
)
