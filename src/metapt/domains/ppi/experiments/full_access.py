"""Experiment `full_access`: AUROC of each arm with all FT data at meta-PT time."""

from __future__ import annotations

from metapt.domains.ppi.auroc_experiment import comparisons, figure, tables
from metapt.domains.ppi.config import ArmsSection
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.settings import FULL_ACCESS
from metapt.evaluation.experiment import Experiment, Needs


class PpiFullAccess(ArmsSection):
    """AUROC with all FT data at meta-PT time."""


def needs(jobs: PpiJobs, section: PpiFullAccess) -> Needs:
    """Return the FT runs of each arm."""
    return Needs([jobs.finetune(arm, FULL_ACCESS) for arm in section.arms])


EXPERIMENT = Experiment(
    title="Test AUROC of each arm on protein graphs, FT of the whole network and of the head",
    figure_title="Test AUROC on protein graphs, for each arm, FT of the whole network and of the head",
    section=PpiFullAccess,
    order=1,
    needs=needs,
    results=PpiResults,
    tables=tables,
    figure=figure,
    comparisons=comparisons,
)
