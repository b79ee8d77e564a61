"""The path of a file, and an impatient client."""

from __future__ import annotations

import ssl
from functools import cache
from pathlib import Path

import pytest

from metapt import fetching

from .serving import NAME

certificates = cache(ssl.create_default_context)  # no server needs them, and they take most of a client's time


@pytest.fixture(autouse=True)
def _quick_and_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAUSES", (0.01, 0.02))
    monkeypatch.setattr(ssl, "create_default_context", certificates)
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a server only as long as it takes on a busy machine; elsewhere a slow one would fail the test."""
    monkeypatch.setattr(fetching, "TIMEOUT", 0.5)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "raw" / "things" / NAME
