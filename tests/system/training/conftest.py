"""Data of the tests that run jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from metapt.domains.mnist.data import FILES, prepare
from metapt.domains.mnist.data.simulate import write_digits
from metapt.engine import records
from metapt.files import sha256
from metapt.machine import Machine
from metapt.sections import JobSettings


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the prepared digits, with the record of the job that made them beside them."""
    folder = tmp_path_factory.mktemp("digits")
    raw = {name: folder / name for name in FILES.values()}
    write_digits(raw)
    prepare.run(JobSettings(), raw, {"data": folder / "digits.pt"}, Machine())
    sums = {"outputs": {"data": sha256(folder / "digits.pt")}}
    records.write(folder / "digits.run.json", {"outputs": {"data": "digits.pt"}, "sha256": sums})
    return folder / "digits.pt"
