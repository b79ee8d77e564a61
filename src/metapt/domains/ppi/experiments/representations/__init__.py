"""The experiment `representations`, and what its job reads. Needs neither torch nor matplotlib."""

from __future__ import annotations

from metapt.domains.ppi.config import Network
from metapt.sections import JobSettings


class FeaturesSettings(JobSettings):
    """What the job reads that compares features."""

    graphs: int  # how many are compared at most
    network: Network
    test_species: list[int]  # NCBI taxa
