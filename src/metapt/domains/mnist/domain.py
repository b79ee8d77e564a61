"""The record of this domain."""

from __future__ import annotations

from metapt.domains.mnist.config import MnistSettings
from metapt.domains.mnist.jobs import PREPARED, SIMULATED, MnistJobs
from metapt.engine.domain import Domain, discover

DOMAIN = Domain(
    name="mnist",
    title="MNIST",
    settings=MnistSettings,
    jobs=MnistJobs,
    experiments=discover("metapt.domains.mnist.experiments"),
    simulated=SIMULATED,
    prepared=PREPARED,
)
