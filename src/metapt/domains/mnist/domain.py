"""The record of this domain."""

from __future__ import annotations

from metapt.domains.mnist.config import MnistSettings
from metapt.domains.mnist.data import FILES
from metapt.domains.mnist.jobs import PREPARED, MnistJobs
from metapt.engine.domain import Domain, discover

DOMAIN = Domain(
    name="mnist",
    title="MNIST",
    settings=MnistSettings,
    jobs=MnistJobs,
    experiments=discover("metapt.domains.mnist.experiments"),
    simulated={"digits": list(FILES.values())},
    prepared=PREPARED,
)
