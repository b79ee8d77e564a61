"""The record of the ECG domain."""

from __future__ import annotations

from metapt.domains.ecg.config import EcgSettings
from metapt.domains.ecg.jobs import PREPARED, RAW, EcgJobs
from metapt.engine.domain import Domain, discover

DOMAIN = Domain(
    name="ecg",
    title="SimCLR on ECGs",
    settings=EcgSettings,
    jobs=EcgJobs,
    experiments=discover("metapt.domains.ecg.experiments"),
    simulated={"simulated": list(RAW)},
    prepared=PREPARED,
)
