"""Experiment `held_out_tasks`: AUROC of each arm on FT tasks that meta-PT does not see."""

from __future__ import annotations

from metapt.domains.ppi.auroc_experiment import comparisons, figure, tables
from metapt.domains.ppi.config import ArmsSection
from metapt.domains.ppi.jobs import PpiJobs
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.settings import HELD_OUT
from metapt.evaluation.experiment import Experiment, Needs


class HeldOutTasks(ArmsSection):
    """A quarter of the FT tasks is left out at meta-PT time and used in FT; each quarter in turn."""


def needs(jobs: PpiJobs, section: HeldOutTasks) -> Needs:
    """Return the FT runs of each arm and fold."""
    return Needs([jobs.finetune(arm, fold) for arm in section.arms for fold in HELD_OUT])


EXPERIMENT = Experiment(
    title="Test AUROC of each arm on FT tasks that were left out at meta-PT time",
    figure_title="Test AUROC on FT tasks that meta-PT does not see, for each arm",
    section=HeldOutTasks,
    order=3,
    needs=needs,
    results=PpiResults,
    tables=tables,
    figure=figure,
    comparisons=comparisons,
)
