"""Experiment `full_access`: AUROC of each arm with all FT data at meta-PT time."""

from metapt.domains.ppi.config import ArmsSection
from metapt.domains.ppi.results import experiment
from metapt.domains.ppi.stages import FULL_ACCESS


class PpiFullAccess(ArmsSection):
    """AUROC with all FT data at meta-PT time."""


EXPERIMENT = experiment(
    PpiFullAccess,
    order=1,
    settings=[FULL_ACCESS],
    title="Test AUROC of each arm on protein graphs, FT of the whole network and of the head",
    figure_title="Test AUROC on protein graphs, for each arm, FT of the whole network and of the head",
)
