"""The record of the PPI domain: multitask PT on protein graphs (Section 5)."""

from __future__ import annotations

from metapt.domains.ppi.config import PpiSettings
from metapt.domains.ppi.data.sections import SIMULATED, string_names
from metapt.domains.ppi.jobs import PREPARED, PpiJobs
from metapt.engine.domain import Domain, discover

DOMAIN = Domain(
    name="ppi",
    title="multitask PT on protein graphs",
    settings=PpiSettings,
    jobs=PpiJobs,
    experiments=discover("metapt.domains.ppi.experiments"),
    simulated={"simulated": string_names(SIMULATED)},
    prepared=PREPARED,
)
