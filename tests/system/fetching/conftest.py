"""An impatient client, and the path of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from metapt import fetching

from .serving import NAME


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "TIMEOUT", 0.7)
    monkeypatch.setattr(fetching, "PAUSES", (0.01, 0.02))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def patient(_impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server on a busy machine take its time, where a second request would fail the test."""
    monkeypatch.setattr(fetching, "TIMEOUT", 30.0)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "raw" / "things" / NAME
