"""A mirror that misbehaves costs a sentence; another place, or the same one later, gives the right files."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metapt import fetching
from metapt.errors import MetaptError
from metapt.machine import Machine

from .server import FAULTS, Answer, Server, never_ends, resets_halfway, well
from .test_kill import DOWNLOADED, source


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "TIMEOUT", 0.7)
    monkeypatch.setattr(fetching, "PAUSES", (0.01,))
    monkeypatch.setenv("no_proxy", "*")


def get(entry: dict[str, Any], folder: Path, *mirrors: str) -> None:
    settings = fetching.Download.model_validate({"source": entry, "mirrors": mirrors})
    fetching.run(settings, {}, {name: folder / name for name in DOWNLOADED}, Machine())


def check(server: Server, folder: Path, all_there: bool) -> None:
    """What is there under its final name is right, and, if they should be, all files are."""
    found = {path.name: path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".part")}
    for name, path in found.items():
        assert name == "records.json" or path.read_bytes() == server.files[name], name
    if all_there:
        assert set(found) == {*server.files, "records.json"}
        assert not list(folder.rglob("*.part"))
    else:
        assert "records.json" not in found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_sentence_and_then_the_right_files(
    fault: Answer, server: Server, tmp_path: Path, note: Callable[..., None]
) -> None:
    entry = source(server)
    server.answer = fault
    with pytest.raises(MetaptError) as caught:
        get(entry, tmp_path)
    sentence = str(caught.value)
    assert sentence.startswith("large0 could not be fetched: ")
    assert "Name a folder or an address that has it under data.mirrors in the config" in sentence
    check(server, tmp_path, all_there=False)
    server.answer = well
    get(entry, tmp_path)
    check(server, tmp_path, all_there=True)
    why = sentence.partition("(")[2].partition("). Name")[0]
    note(f"a mirror that {fault.__name__.replace('_', ' ')}", 1, f"“{why}”; the next run has all files whole")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_good_place_after_a_bad_one(fault: Answer, server: Server, tmp_path: Path) -> None:
    entry = source(server)
    bad = Server()
    bad.files, bad.answer = server.files, fault
    threading.Thread(target=bad.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        get(entry, tmp_path, bad.url)
    finally:
        bad.shutdown()
        bad.server_close()
    check(server, tmp_path, all_there=True)


def test_a_file_that_never_ends(server: Server, tmp_path: Path, note: Callable[..., None]) -> None:
    """Where no size is published, it is cut off at a bound."""
    entry = source(server)
    server.files["large0"] = gzip.compress(server.files["large0"])
    entry["files"]["large0"] = {"container": "gzip", "at_most": 400_000}
    server.answer = never_ends
    with pytest.raises(
        MetaptError, match=r"large0 could not be fetched: .* \(overlong: more than 400000 bytes\)"
    ) as caught:
        get(entry, tmp_path)
    assert not list(tmp_path.iterdir())
    server.answer = well
    get(entry, tmp_path)
    check(server, tmp_path, all_there=True)
    why = str(caught.value).partition("(")[2].partition("). Name")[0]
    note("a mirror that never ends", 1, f"“{why}”; the next run has all files whole")


def test_small_files_that_break_halfway(server: Server, tmp_path: Path) -> None:
    """The large files come well, the records never do."""
    entry = source(server)
    server.answer = lambda handler, content: (well if len(content) > 100_000 else resets_halfway)(handler, content)
    with pytest.raises(MetaptError, match=r"SHA256SUMS.txt could not be fetched: "):
        get(entry, tmp_path)
    check(server, tmp_path, all_there=False)
    server.answer = well
    get(entry, tmp_path)
    check(server, tmp_path, all_there=True)
