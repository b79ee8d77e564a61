"""Experiment `half_data`: AUROC of each arm with half of the FT data at meta-PT time."""

from metapt.domains.ppi.config import ArmsSection
from metapt.domains.ppi.results import experiment
from metapt.domains.ppi.stages import HALF_DATA


class HalfData(ArmsSection):
    """Half of the FT training and validation graphs at meta-PT time, all of them in FT."""


EXPERIMENT = experiment(
    HalfData,
    order=2,
    settings=[HALF_DATA],
    title="Test AUROC of each arm on protein graphs, with half of the FT data at meta-PT time",
    figure_title="Test AUROC on protein graphs where meta-PT sees half of the FT data, for each arm",
)
