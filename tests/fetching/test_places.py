"""A file is fetched from the first place that has it, or one sentence names the failure of each place."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from metapt.errors import ConfigError, DataError, MachineError
from metapt.fetching import download
from metapt.fetching.source import Source, place_of

from .serving import CONTENT, HTML, NAME, PATH, Server, assert_whole, closed_port, get, source, whole


def test_own_address_of_a_file(server: Server, target: Path) -> None:
    server.answers["/elsewhere/a.gz"] = whole()
    get(target, source(f"{server.url}/data", own=(f"{server.url}/elsewhere/a.gz",)))
    assert_whole(target)


def test_present_file_is_left_alone(server: Server, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT)
    before = target.stat().st_mtime_ns
    get(target, source(f"{server.url}/data"))
    assert target.stat().st_mtime_ns == before
    assert server.requests == []


def test_present_wrong_file_is_replaced(server: Server, target: Path, caplog: pytest.LogCaptureFixture) -> None:
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT[:-1])
    server.answers[PATH] = whole()
    get(target, source(f"{server.url}/data"))
    assert_whole(target)
    assert f"is there, but cut: got {len(CONTENT) - 1} of {len(CONTENT)} bytes" in caplog.text


def test_present_wrong_file_is_named(target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(DataError, match=rf"{target} \(altered: its checksum \(SHA-256\)"):
        get(target, source())


def test_a_dead_host_is_waited_for_once(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    calls = []
    plain = socket.create_connection

    def counted(address: tuple[str, int], *arguments: Any, **words: Any) -> Any:
        calls.append(address)
        return plain(address, *arguments, **words)

    monkeypatch.setattr(socket, "create_connection", counted)
    with pytest.raises(MachineError, match=r"things/train%20images.gz \(no network"):
        get(target, source(url), url)
    assert len(calls) == 3


@pytest.mark.parametrize("inner", ["", "things"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_mirror_folder_comes_first(server: Server, target: Path, tmp_path: Path, inner: str, scheme: str) -> None:
    server.answers[PATH] = whole()
    folder = tmp_path / "a mirror" / inner
    folder.mkdir(parents=True)
    (folder / NAME).write_bytes(CONTENT)
    mirror = str(tmp_path / "a mirror")
    get(target, source(f"{server.url}/data"), scheme + (mirror.replace(" ", "%20") if scheme else mirror))
    assert_whole(target)
    assert server.requests == []


def test_mirror_server(server: Server, target: Path) -> None:
    server.answers["/mirror/things/train%20images.gz"] = whole()
    get(target, source(f"{server.url}/data"), f"{server.url}/mirror/")
    assert_whole(target)
    assert [path for path, _ in server.requests] == ["/mirror/train%20images.gz", "/mirror/things/train%20images.gz"]


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[::-1], HTML])
def test_wrong_mirror_is_passed_with_a_warning(
    server: Server, target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    server.answers[PATH] = whole()
    (tmp_path / NAME).write_bytes(content)
    get(target, source(f"{server.url}/data"), str(tmp_path))
    assert_whole(target)
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage().startswith(f"{tmp_path / NAME}: ")


def test_each_place_is_named(server: Server, target: Path, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"")
    with pytest.raises(DataError) as raised:
        get(target, source(f"{server.url}/data", f"http://127.0.0.1:{closed_port()}"), str(tmp_path))
    message = str(raised.value)
    assert f"{tmp_path / NAME} (cut: got 0 of {len(CONTENT)} bytes)" in message
    assert f"{tmp_path / 'things' / NAME} (no such file)" in message
    assert f"{server.url}{PATH} (HTTP 404 Not Found)" in message
    assert "Connection refused" in message


def test_mirrors_come_before_the_own_address_of_a_file() -> None:
    own = "https://publisher/a.gz"
    entry = Source.model_validate(source("https://publisher/data", own=(own,)))
    found = entry.places(NAME, [place_of("/one"), place_of("http://two/")])
    name = "train%20images.gz"
    assert found == [
        Path("/one") / NAME,
        Path("/one/things") / NAME,
        f"http://two/{name}",
        f"http://two/things/{name}",
        own,
    ]


def test_a_file_that_changes_while_it_is_copied_is_refused(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAME).write_bytes(CONTENT)
    monkeypatch.setattr(download, "check_start", lambda *_: (tmp_path / NAME).write_bytes(CONTENT[:-1] + b"!"))
    with pytest.raises(DataError, match=r"altered: its checksum \(SHA-256\)"):
        get(target, source(), str(tmp_path))
    assert list(target.parent.iterdir()) == []


def test_no_place_is_known(target: Path) -> None:
    with pytest.raises(DataError, match="no place is known"):
        get(target, source())


@pytest.mark.parametrize(
    "address",
    [
        "ftp://host/x",
        "sftp://host/x",
        "s3://bucket",
        "file://host/data",
        "data://text",
        "jar:file://x",
        "http://[::1/x",
    ],
)
def test_illegal_addresses(target: Path, address: str) -> None:
    with pytest.raises(ConfigError, match=r"in data\.mirrors is"):
        get(target, source(), address)
    with pytest.raises(ConfigError, match=r"sources\.yaml has an illegal entry: [^$]*legal are a folder"):
        get(target, source(address))
