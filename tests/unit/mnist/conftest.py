"""Generated digits, prepared once, and a run for the studies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from metapt.domains.mnist.arms import Run
from metapt.domains.mnist.data.prepare import MnistData, load
from metapt.training.checkpoint import Checkpoint

from ...contract.domain_cases import CASES


@pytest.fixture(scope="session")
def digits_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the prepared digits."""
    return CASES["mnist"].prepare(tmp_path_factory.mktemp("digits"))["data"]


@pytest.fixture(scope="session")
def digits(digits_file: Path) -> MnistData:
    return load(digits_file, "cpu")


@pytest.fixture
def run_as(tmp_path: Path) -> Callable[..., Run]:
    """Return a `Run` of an arm of an experiment on one CPU thread."""

    def make(experiment: str, arm: str = "meta", budget_seconds: float | None = None, threads: int = 1) -> Run:
        def resumable(part: str) -> Checkpoint:
            return Checkpoint(tmp_path / f"checkpoint{part}.pt", "a test")

        return Run(f"mnist_{experiment}", arm, "cpu", threads, resumable, budget_seconds)

    return make
