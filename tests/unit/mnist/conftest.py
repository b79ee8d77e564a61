"""Generated digits, prepared once, and a run for the studies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from metapt.domains.mnist.arms import Run
from metapt.domains.mnist.data import FILES, prepare
from metapt.domains.mnist.data.prepare import MnistData, load
from metapt.domains.mnist.data.simulate import write_digits
from metapt.machine import Machine
from metapt.sections import JobSettings


@pytest.fixture(scope="session")
def digits_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the prepared digits."""
    folder = tmp_path_factory.mktemp("digits")
    raw = {name: folder / name for name in FILES.values()}
    write_digits(raw)
    prepare.run(JobSettings(), raw, {"data": folder / "digits.pt"}, Machine())
    return folder / "digits.pt"


@pytest.fixture(scope="session")
def digits(digits_file: Path) -> MnistData:
    return load(digits_file, "cpu")


@pytest.fixture
def run_as(tmp_path: Path) -> Callable[..., Run]:
    """Return a `Run` of an arm of an experiment on one CPU thread."""

    def make(experiment: str, arm: str = "meta", budget_seconds: float | None = None, threads: int = 1) -> Run:
        return Run(f"mnist_{experiment}", arm, "cpu", threads, tmp_path / "checkpoint.pt", "a test", budget_seconds)

    return make
