"""The record of this domain."""

from __future__ import annotations

from metapt.domains.noise.config import NoiseSettings
from metapt.domains.noise.jobs import PREPARED, RAW, NoiseJobs

from metapt.engine.domain import Domain, discover

DOMAIN = Domain(
    name="noise",
    title="Noise",
    settings=NoiseSettings,
    jobs=NoiseJobs,
    experiments=discover("metapt.domains.noise.experiments"),
    simulated={"simulated": RAW},
    prepared=PREPARED,
)
