"""Experiment `half_data`: AUROC of each arm with half of the FT data at meta-PT time."""

from __future__ import annotations

from metapt.domains.ppi.auroc_experiment import comparisons, figure, tables
from metapt.domains.ppi.config import ArmsSection
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.settings import HALF_DATA
from metapt.evaluation.experiment import Experiment, Needs


class HalfData(ArmsSection):
    """Half of the FT training and validation graphs at meta-PT time, all of them in FT."""


def needs(jobs: PpiJobs, section: HalfData) -> Needs:
    """Return the FT runs of each arm. Arms whose PT sees no FT data share those of full access."""
    return Needs([jobs.finetune(arm, HALF_DATA) for arm in section.arms])


EXPERIMENT = Experiment(
    title="Test AUROC of each arm on protein graphs, with half of the FT data at meta-PT time",
    figure_title="Test AUROC on protein graphs where meta-PT sees half of the FT data, for each arm",
    section=HalfData,
    order=2,
    needs=needs,
    results=PpiResults,
    tables=tables,
    figure=figure,
    comparisons=comparisons,
)
