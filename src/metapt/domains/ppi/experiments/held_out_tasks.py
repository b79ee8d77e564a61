"""Experiment `held_out_tasks`: AUROC of each arm on FT tasks that meta-PT does not see."""

from metapt.domains.ppi.config import ArmsSection
from metapt.domains.ppi.results import experiment
from metapt.domains.ppi.stages import HELD_OUT


class HeldOutTasks(ArmsSection):
    """A quarter of the FT tasks is left out at meta-PT time and used in FT; each quarter in turn."""


EXPERIMENT = experiment(
    HeldOutTasks,
    order=3,
    settings=HELD_OUT,
    title="Test AUROC of each arm on FT tasks that were left out at meta-PT time",
    figure_title="Test AUROC on FT tasks that meta-PT does not see, for each arm",
)
