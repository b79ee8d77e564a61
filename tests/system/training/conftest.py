"""Data of the tests that run jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from metapt.engine import records
from metapt.files import sha256

from ...contract.domain_cases import CASES


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the prepared digits, with the record of the job that made them beside them."""
    data = CASES["mnist"].prepare(tmp_path_factory.mktemp("digits"))["data"]
    sums = {"outputs": {"data": sha256(data)}}
    records.write(data.with_name("digits.run.json"), {"outputs": {"data": data.name}, "sha256": sums})
    return data
