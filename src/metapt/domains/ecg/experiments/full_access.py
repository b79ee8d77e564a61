"""Experiment `full_access`: all FT data are available at meta-PT time, for several sizes of the FT set (Table 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from metapt.domains.ecg.auroc_comparisons import ArmClaim, beats
from metapt.domains.ecg.auroc_figures import over_sizes
from metapt.domains.ecg.auroc_tables import auroc_tables
from metapt.domains.ecg.config import ARMS, EcgExperiment, access
from metapt.domains.ecg.jobs import EcgJobs
from metapt.domains.ecg.results import EcgResults
from metapt.evaluation.comparisons import Comparison
from metapt.evaluation.experiment import Experiment, Needs
from metapt.sections import Positive

NO_WORSE = 0.5
"""Percentage points of AUROC by which an arm may fall behind one that it is to be as good as."""

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

    arms: list[str] = Field(list(ARMS), min_length=1, description="arms, keys of `ecg.arms`")
    finetune_sizes: list[Positive] = Field(
        [100, 250, 500, 1000, 2500], min_length=1, description="labelled ECGs, |D_FT|"
    )


@dataclass(frozen=True)
class FullAccessResults(EcgResults):
    """The results of the experiment."""

    papers_arms: ClassVar[Mapping[str, str]] = {"optsla": "simclr_optsla"}


def needs(jobs: EcgJobs, section: FullAccess) -> Needs:
    """Return the FT runs of each arm at each size, and the PT runs that they start from."""
    cells = [
        (arm, access(jobs.config.arms[arm], size), size) for arm in section.arms for size in section.finetune_sizes
    ]
    return Needs(jobs.runs(cells))


def comparisons(results: FullAccessResults) -> Iterator[Comparison]:
    """Return the paper's claims and further ones."""
    return beats(results, CLAIMS)


EXPERIMENT = Experiment(
    title="Test AUROC of each arm on ECGs, by the number of labelled ECGs",
    figure_title="Test AUROC on ECGs over the number of labelled ECGs, for each arm",
    section=FullAccess,
    order=1,
    needs=needs,
    results=FullAccessResults,
    tables=auroc_tables,
    figure=over_sizes,
    comparisons=comparisons,
)
