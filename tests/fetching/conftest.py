"""A server, and the path of a file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from metapt.fetching import web
from metapt.fetching.web import Patience

from .serving import NAME, Server


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "PATIENCE", Patience(timeout=0.3, attempts=3, pause=0.01))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def patient(_impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server on a busy machine take its time, where a second request would fail the test."""
    monkeypatch.setattr(web, "PATIENCE", Patience(timeout=30, attempts=3, pause=0.01))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "raw" / "things" / NAME
