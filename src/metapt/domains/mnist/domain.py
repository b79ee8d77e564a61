"""The record of this domain."""

from __future__ import annotations

from metapt.domain import Domain, discover
from metapt.domains.mnist.config import MnistSettings
from metapt.domains.mnist.jobs import PREPARED, SIMULATED, MnistJobs

DOMAIN = Domain(
    name="mnist",
    title="MNIST",
    settings=MnistSettings,
    jobs=MnistJobs,
    experiments=discover("metapt.domains.mnist.experiments"),
    simulated=SIMULATED,
    prepared=PREPARED,
)
