"""The path of a file, and an impatient client."""

from __future__ import annotations

from pathlib import Path

import pytest

from metapt import fetching

from .serving import NAME


@pytest.fixture(autouse=True)
def _quick_and_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAUSES", (0.01, 0.02))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a server only as long as it takes on a busy machine; elsewhere a slow one would fail the test."""
    monkeypatch.setattr(fetching, "TIMEOUT", 0.5)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "raw" / "things" / NAME
