"""The record of the ECG domain."""

from __future__ import annotations

from metapt.domain import Domain, discover
from metapt.domains.ecg.config import EcgSettings
from metapt.domains.ecg.jobs import PREPARED, RAW, EcgJobs

DOMAIN = Domain(
    name="ecg",
    title="SimCLR on ECGs",
    settings=EcgSettings,
    jobs=EcgJobs,
    experiments=discover("metapt.domains.ecg.experiments"),
    simulated={"simulated": list(RAW)},
    prepared=PREPARED,
)
