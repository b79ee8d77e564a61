"""A file comes whole from the first place that has it, or one sentence says what each place did."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import logging
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from metapt.errors import ConfigError, DataError, MachineError
from metapt.stages import Machine, download
from metapt.stages.download import Patience, run

ROOT = Path(__file__).parents[2]
SHARED_DATA = Path(os.environ.get("METAPT_SHARED_DATA", ROOT / "../shared/data"))

NAME = "train images.gz"
CONTENT = bytes(range(256)) * 2000
HTML = b"<!DOCTYPE html><title>Please log in</title>"

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers as the test's `Server.answers` say, by path."""

    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("Range")))
        self.server.answers.get(self.path, status(404))(self)

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def reply(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    @property
    def start(self) -> int:
        return int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


def status(code: int) -> Answer:
    return lambda handler: handler.reply(code, b"", Content_Length="0")


def whole(content: bytes = CONTENT) -> Answer:
    """The whole content, whatever part was asked for."""
    return lambda handler: handler.reply(200, content, Content_Length=str(len(content)))


def unsized(content: bytes) -> Answer:
    """The content without its length, ended by closing the connection."""
    return lambda handler: handler.reply(200, content)


def ranged(content: bytes = CONTENT, stop: int | None = None) -> Answer:
    """What Range asks for; the connection ends early, at byte `stop`, where given."""

    def answer(handler: Handler) -> None:
        start = handler.start
        range_of = f"bytes {start}-{len(content) - 1}/{len(content)}"
        handler.reply(
            206 if start else 200, content[start:stop], Content_Length=str(len(content) - start), Content_Range=range_of
        )

    return answer


def wrong_range(handler: Handler) -> None:
    handler.reply(206, CONTENT, Content_Length=str(len(CONTENT)), Content_Range=f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}")


def in_turn(*answers: Answer) -> Answer:
    remaining = list(answers)
    return lambda handler: (remaining.pop(0) if len(remaining) > 1 else remaining[0])(handler)


def hang(handler: Handler) -> None:
    time.sleep(1.5)


def hang_after(size: int) -> Answer:
    def answer(handler: Handler) -> None:
        handler.reply(200, CONTENT[:size], Content_Length=str(len(CONTENT)))
        time.sleep(1.5)

    return answer


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
    monkeypatch.setattr(download, "PATIENCE", Patience(timeout=0.3, attempts=3, pause=0.01))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "raw" / "things" / NAME


def source(*urls: str, content: bytes = CONTENT, own: tuple[str, ...] = ()) -> dict[str, Any]:
    file = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "md5": hashlib.md5(content).hexdigest()}
    return {
        "name": "things",
        "version": "1",
        "licence": "none",
        "description": "for tests",
        "citation": "none",
        "urls": list(urls),
        "files": {NAME: {**file, "urls": list(own)}},
    }


def get(target: Path, entry: dict[str, Any], *mirrors: str) -> None:
    run({"source": entry, "mirrors": list(mirrors)}, {}, {NAME: target}, Machine())


def assert_whole(target: Path) -> None:
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


PATH = "/data/train%20images.gz"


def test_good_file(server: Server, target: Path) -> None:
    server.answers[PATH] = whole()
    get(target, source(f"{server.url}/data/"))
    assert_whole(target)
    assert server.requests == [(PATH, None)]


def test_own_address_of_a_file(server: Server, target: Path) -> None:
    server.answers["/elsewhere/a.gz"] = whole()
    get(target, source(f"{server.url}/data", own=(f"{server.url}/elsewhere/a.gz",)))
    assert_whole(target)


def test_redirection(server: Server, target: Path) -> None:
    server.answers[PATH] = lambda handler: handler.reply(302, b"", Location="/new", Content_Length="0")
    server.answers["/new"] = whole()
    get(target, source(f"{server.url}/data"))
    assert_whole(target)


def test_no_redirection_to_ftp(server: Server, target: Path) -> None:
    server.answers[PATH] = lambda handler: handler.reply(302, b"", Location="ftp://127.0.0.1/file", Content_Length="0")
    with pytest.raises(MachineError, match="unknown url type: ftp"):
        get(target, source(f"{server.url}/data"))


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


def test_cut_connection_is_resumed(server: Server, target: Path) -> None:
    server.answers[PATH] = in_turn(ranged(stop=1000), ranged(stop=5000), ranged())
    get(target, source(f"{server.url}/data"))
    assert_whole(target)
    assert [asked for _, asked in server.requests] == [None, "bytes=1000-", "bytes=5000-"]


def test_a_later_run_goes_on(server: Server, target: Path) -> None:
    server.answers[PATH] = ranged(stop=3000)
    with pytest.raises(DataError, match=f"cut: got 3000 of {len(CONTENT)} bytes"):
        get(target, source(f"{server.url}/data"))
    assert not target.exists()
    server.answers[PATH] = ranged()
    get(target, source(f"{server.url}/data"))
    assert_whole(target)
    assert server.requests[-1] == (PATH, "bytes=3000-")


def test_standstill_is_resumed(server: Server, target: Path) -> None:
    server.answers[PATH] = in_turn(hang_after(2000), ranged())
    get(target, source(f"{server.url}/data"))
    assert_whole(target)
    assert server.requests[-1] == (PATH, "bytes=2000-")


@pytest.mark.parametrize("second", [whole(), wrong_range, status(416)])
def test_server_that_can_not_resume(server: Server, target: Path, second: Answer) -> None:
    server.answers[PATH] = in_turn(ranged(stop=1000), second, whole())
    get(target, source(f"{server.url}/data"))
    assert_whole(target)


def test_a_wrong_part_is_given_up(server: Server, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.with_name(f"{NAME}.part").write_bytes(b"?" * 1000)
    server.answers[PATH] = ranged()
    get(target, source(f"{server.url}/data"))
    assert_whole(target)
    assert [asked for _, asked in server.requests] == ["bytes=1000-", None]


def test_a_part_as_long_as_the_file_is_not_taken_for_it(server: Server, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.with_name(f"{NAME}.part").write_bytes(b"?" * len(CONTENT))
    server.answers[PATH] = ranged()
    get(target, source(f"{server.url}/data"))
    assert_whole(target)


def test_a_part_survives_an_answer_that_is_something_else(server: Server, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.with_name(f"{NAME}.part").write_bytes(CONTENT[:1000])
    server.answers[PATH] = whole(HTML)
    server.answers["/second/train%20images.gz"] = ranged()
    get(target, source(f"{server.url}/data", f"{server.url}/second"))
    assert_whole(target)
    assert server.requests == [(PATH, "bytes=1000-"), ("/second/train%20images.gz", "bytes=1000-")]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (whole(CONTENT[: len(CONTENT) // 2]), f"cut: got {len(CONTENT) // 2} of {len(CONTENT)} bytes"),
        (ranged(stop=len(CONTENT) // 2), f"cut: got {len(CONTENT) // 2} of {len(CONTENT)} bytes"),
        (unsized(CONTENT[:10]), f"cut: got 10 of {len(CONTENT)} bytes"),
        (whole(CONTENT + b"more"), f"overlong: more than {len(CONTENT)} bytes"),
        (unsized(CONTENT + b"more"), f"overlong: more than {len(CONTENT)} bytes"),
        (whole(CONTENT[::-1]), r"altered: its checksum \(SHA-256\) is"),
        (whole(HTML), "an HTML page"),
        (status(404), "HTTP 404 Not Found"),
        (status(403), "HTTP 403 Forbidden"),
    ],
)
def test_wrong_answers(server: Server, target: Path, answer: Answer, message: str) -> None:
    server.answers[PATH] = answer
    with pytest.raises(DataError, match=message) as raised:
        get(target, source(f"{server.url}/data"))
    assert str(raised.value).startswith(f"{NAME} could not be had: {server.url}{PATH} (")
    assert str(raised.value).endswith(f"data.mirrors in the config, or put the file at {target} by hand.")
    assert not target.exists()


def test_endless_answer_is_not_read_to_its_end(server: Server, target: Path) -> None:
    def endless(handler: Handler) -> None:
        handler.reply(200, b"")
        try:
            while True:
                handler.wfile.write(bytes(1 << 16))
        except OSError:
            pass

    server.answers[PATH] = endless
    with pytest.raises(DataError, match="overlong"):
        get(target, source(f"{server.url}/data"))
    assert not any(target.parent.iterdir())


@pytest.mark.parametrize(("answer", "message"), [(hang, "no answer within 0.3 s"), (status(503), "HTTP 503 Service Unavailable")])
def test_server_out_of_order(server: Server, target: Path, answer: Answer, message: str) -> None:
    server.answers[PATH] = answer
    with pytest.raises(MachineError, match=message):
        get(target, source(f"{server.url}/data"))
    assert len(server.requests) == 3


def test_an_attempt_more_helps(server: Server, target: Path) -> None:
    server.answers[PATH] = in_turn(status(503), hang, whole())
    get(target, source(f"{server.url}/data"))
    assert_whole(target)


def test_no_network(target: Path) -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    with pytest.raises(MachineError, match=r"no network or no such host: Connection refused\)\. Name a folder"):
        get(target, source(url))


def test_a_dead_host_is_waited_for_once(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    calls = []
    attempt = download._attempt

    def counted(address: str, *arguments: Any) -> None:
        calls.append(address)
        attempt(address, *arguments)

    monkeypatch.setattr(download, "_attempt", counted)
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


def test_no_place_is_known(target: Path) -> None:
    with pytest.raises(DataError, match="no place is known"):
        get(target, source())


@pytest.mark.parametrize("address", ["ftp://host/data", "s3://bucket", "file://host/data", "http://", "http://[::1/data"])
def test_illegal_addresses(target: Path, address: str) -> None:
    with pytest.raises(ConfigError, match=r"in data\.mirrors is"):
        get(target, source(), address)
    with pytest.raises(ConfigError, match=r"in sources\.yaml is"):
        get(target, source(address))


def test_unknown_file(target: Path) -> None:
    with pytest.raises(ConfigError, match=f"things has no file 'other'; legal: {NAME}"):
        run({"source": source(), "mirrors": []}, {}, {"other": target.with_name("other")}, Machine())


@pytest.mark.parametrize(
    "change",
    [
        {"md5": "abc"},
        {"size": -1},
        {"size": None},
        {"sha256": None, "md5": None},
        {"container": "gzip"},
        {"size": None, "sha256": None, "md5": None, "container": "tar"},
        {"other": 1},
    ],
)
def test_illegal_entry(target: Path, change: dict[str, object]) -> None:
    entry = source()
    entry["files"][NAME].update(change)
    with pytest.raises(ConfigError, match=r"sources\.yaml has an illegal entry"):
        get(target, entry)


def test_full_disk(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers[PATH] = whole()
    plain_open = Path.open

    class Full:
        def __init__(self, path: Path) -> None:
            path.touch()

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None: ...

        def write(self, _: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open_(path: Path, mode: str = "r", *arguments: Any) -> Any:
        return Full(path) if path.name.endswith(".part") else plain_open(path, mode, *arguments)

    monkeypatch.setattr(Path, "open", open_)
    with pytest.raises(MachineError, match=r"because the disk is full or a quota is used up: it needs 512\.0 kB"):
        get(target, source(f"{server.url}/data"))
    assert not any(target.parent.iterdir())


def zipped(content: bytes = CONTENT) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a folder/data", content)
    return stream.getvalue()


NOISE = random.Random(0).randbytes(20_000)
CONTAINERS = {"gzip": gzip.compress(NOISE), "zip": zipped(NOISE)}


def container_source(kind: str, *urls: str) -> dict[str, Any]:
    return {**source(*urls), "files": {NAME: {"container": kind}}}


def assert_container(target: Path, kind: str) -> None:
    assert target.read_bytes() == CONTAINERS[kind]
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("answer", [whole, unsized, ranged])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_file_without_published_sums(server: Server, target: Path, kind: str, answer: Callable[[bytes], Answer]) -> None:
    server.answers[PATH] = answer(CONTAINERS[kind])
    get(target, container_source(kind, f"{server.url}/data"))
    assert_container(target, kind)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_file_without_published_sums_from_a_folder(target: Path, tmp_path: Path, kind: str) -> None:
    write(tmp_path / "mirror", {f"things/{NAME}": CONTAINERS[kind]})
    write(tmp_path / "cut", {f"things/{NAME}": CONTAINERS[kind][:-100]})
    get(target, container_source(kind), str(tmp_path / "cut"), str(tmp_path / "mirror"))
    assert_container(target, kind)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_file_without_published_sums_is_resumed(server: Server, target: Path, kind: str) -> None:
    server.answers[PATH] = ranged(CONTAINERS[kind], stop=3000)
    with pytest.raises(DataError, match=f"cut: got 3000 of {len(CONTAINERS[kind])} bytes"):
        get(target, container_source(kind, f"{server.url}/data"))
    assert not target.exists()
    server.answers[PATH] = ranged(CONTAINERS[kind])
    get(target, container_source(kind, f"{server.url}/data"))
    assert_container(target, kind)
    assert server.requests[-1] == (PATH, "bytes=3000-")


@pytest.mark.parametrize("kind", CONTAINERS)
def test_file_of_unknown_length_is_resumed(server: Server, target: Path, kind: str) -> None:
    server.answers[PATH] = in_turn(unsized(CONTAINERS[kind][:3000]), ranged(CONTAINERS[kind]))
    get(target, container_source(kind, f"{server.url}/data"))
    assert_container(target, kind)
    assert [asked for _, asked in server.requests] == [None, "bytes=3000-"]


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_part_of_another_file_is_given_up(server: Server, target: Path, kind: str) -> None:
    write(target.parent, {f"{NAME}.part": CONTAINERS[kind][:100] + b"?" * 1000})
    server.answers[PATH] = ranged(CONTAINERS[kind])
    get(target, container_source(kind, f"{server.url}/data"))
    assert_container(target, kind)
    assert [asked for _, asked in server.requests] == ["bytes=1100-", None]


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("gzip", HTML, "an HTML page"),
        ("zip", HTML, "an HTML page"),
        ("gzip", b"", "cut: it has 0 bytes"),
        ("gzip", b"protein1 protein2", "no gzip file"),
        ("zip", CONTAINERS["gzip"], "no zip file"),
        ("gzip", CONTAINERS["gzip"][:-5], "cut: it ends too early"),
        ("zip", CONTAINERS["zip"][:-50], "cut: it has no directory"),
        ("gzip", CONTAINERS["gzip"][:-8] + bytes(8), "altered: CRC check failed"),
        ("gzip", CONTAINERS["gzip"][:-4] + bytes(4), "altered: Incorrect length"),
        ("zip", CONTAINERS["zip"].replace(NOISE[100:110], bytes(10)), "altered: the checksum (CRC-32) of a folder/data"),
    ],
)
def test_wrong_file_without_published_sums(server: Server, target: Path, kind: str, content: bytes, message: str) -> None:
    server.answers[PATH] = whole(content)
    with pytest.raises(DataError, match=re.escape(message)):
        get(target, container_source(kind, f"{server.url}/data"))
    assert not any(target.parent.iterdir())


def test_a_part_survives_an_html_page(server: Server, target: Path) -> None:
    write(target.parent, {f"{NAME}.part": CONTAINERS["gzip"][:1000]})
    server.answers[PATH] = unsized(HTML)
    server.answers["/second/train%20images.gz"] = ranged(CONTAINERS["gzip"])
    get(target, container_source("gzip", f"{server.url}/data", f"{server.url}/second"))
    assert_container(target, "gzip")
    assert server.requests == [(PATH, "bytes=1000-"), ("/second/train%20images.gz", "bytes=1000-")]


def test_sources_yaml_describes_every_file() -> None:
    entries = yaml.safe_load((ROOT / "workflow/resources/sources.yaml").read_text(encoding="utf-8"))
    for key, entry in entries.items():
        parsed = download.Source.model_validate(entry)
        assert parsed.name == key
        assert parsed.names
        for name in parsed.names:
            assert download.places(name, parsed, [])


RECORDS = {
    f"records100/00000/0000{number}_lr{kind}": f"{number}{kind}".encode() * 100
    for number in (2, 1, 3)
    for kind in (".dat", ".hea")
}
LISTED = {"table.csv": b"a,b\n1,2\n", **RECORDS}
OTHERS = {"records500/00000/00001_hr.dat": b"", "LICENSE.txt": b""}


def sums(files: dict[str, bytes]) -> bytes:
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items()).encode()


def listed_source(*urls: str) -> dict[str, Any]:
    listed = {"sums": "SHA256SUMS.txt", "files": ["table.csv"], "records": "records100/", "threads": 2}
    return {**source(*urls), "files": {}, "listed": listed}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def mirror(folder: Path) -> Path:
    """A mirror that has the list and the files in the folder of the source's name."""
    write(folder / "things", {"SHA256SUMS.txt": sums({**LISTED, **OTHERS}), **LISTED})
    return folder


def serve(server: Server, files: dict[str, bytes]) -> None:
    server.answers |= {f"/data/{name}": whole(content) for name, content in {"SHA256SUMS.txt": sums(LISTED), **files}.items()}


def get_listed(
    folder: Path, entry: dict[str, Any], *mirrors: Path | str, names: tuple[str, ...] = ("table.csv", "records.json")
) -> None:
    run({"source": entry, "mirrors": [str(each) for each in mirrors]}, {}, {name: folder / name for name in names}, Machine())


def assert_all_listed(folder: Path) -> None:
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        *LISTED,
        "SHA256SUMS.txt",
        "records.json",
    }
    assert {name: (folder / name).read_bytes() for name in LISTED} == LISTED
    records = [f"records100/00000/0000{number}_lr" for number in (1, 2, 3)]
    assert json.loads((folder / "records.json").read_text()) == {"version": "1", "records": records}


def test_listed_files_from_a_folder(tmp_path: Path) -> None:
    get_listed(tmp_path / "raw", listed_source(), mirror(tmp_path / "mirror"))
    assert_all_listed(tmp_path / "raw")


def test_listed_files_from_a_server(server: Server, tmp_path: Path) -> None:
    serve(server, LISTED)
    get_listed(tmp_path, listed_source(f"{server.url}/data/"))
    assert_all_listed(tmp_path)
    assert sorted(path for path, _ in server.requests) == sorted(f"/data/{name}" for name in ("SHA256SUMS.txt", *LISTED))


def test_one_connection_serves_many_listed_files(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "protocol_version", "HTTP/1.1")
    connections = []
    monkeypatch.setattr(Handler, "setup", lambda handler, plain=Handler.setup: (connections.append(1), plain(handler)))
    serve(server, LISTED)
    get_listed(tmp_path, listed_source(f"{server.url}/data"))
    assert_all_listed(tmp_path)
    assert len(connections) <= 3  # that of the list, and of two threads


def test_a_connection_that_ended_is_opened_again(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says that it keeps the connection, and does not."""
    monkeypatch.setattr(Handler, "protocol_version", "HTTP/1.1")

    def closing(content: bytes) -> Answer:
        def answer(handler: Handler) -> None:
            whole(content)(handler)
            handler.close_connection = True

        return answer

    serve(server, LISTED)
    server.answers |= {f"/data/{name}": closing(content) for name, content in LISTED.items()}
    get_listed(tmp_path, listed_source(f"{server.url}/data"))
    assert_all_listed(tmp_path)


def test_listed_files_by_a_redirection(server: Server, tmp_path: Path) -> None:
    serve(server, LISTED)
    server.answers["/data/table.csv"] = lambda handler: handler.reply(302, b"", Location="/new", Content_Length="0")
    server.answers["/new"] = whole(LISTED["table.csv"])
    get_listed(tmp_path, listed_source(f"{server.url}/data"))
    assert_all_listed(tmp_path)


def test_only_a_listed_single_file(tmp_path: Path) -> None:
    get_listed(tmp_path / "raw", listed_source(), mirror(tmp_path / "mirror"), names=("table.csv",))
    assert sorted(path.name for path in (tmp_path / "raw").iterdir()) == ["SHA256SUMS.txt", "table.csv"]


@pytest.mark.parametrize("wrong", [b"", HTML, LISTED["table.csv"][:-1], LISTED["table.csv"] + b"3,4\n"])
def test_wrong_listed_file_in_a_mirror_is_passed(tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: bytes) -> None:
    bad = write(tmp_path / "bad", {"things/table.csv": wrong})
    get_listed(tmp_path / "raw", listed_source(), bad, mirror(tmp_path / "mirror"))
    assert_all_listed(tmp_path / "raw")
    assert f"{bad}/things/table.csv: " in caplog.text


def test_listed_files_are_kept_and_wrong_ones_fetched_again(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve(server, LISTED)
    get_listed(tmp_path, listed_source(f"{server.url}/data"))
    server.requests.clear()
    changed = "records100/00000/00002_lr.dat"
    (tmp_path / changed).write_bytes(LISTED[changed][:-1])
    (tmp_path / "table.csv").unlink()
    get_listed(tmp_path, listed_source(f"{server.url}/data"))
    assert_all_listed(tmp_path)
    assert sorted(path for path, _ in server.requests) == [f"/data/{changed}", "/data/table.csv"]
    assert f"{tmp_path / changed} is there, but cut or altered" in caplog.text


def test_what_an_interrupted_job_fetched_is_kept(server: Server, tmp_path: Path) -> None:
    missing = "records100/00000/00003_lr.hea"
    serve(server, {name: content for name, content in LISTED.items() if name != missing})
    with pytest.raises(
        DataError, match=r"^00003_lr\.hea could not be had: .*/00003_lr\.hea \(HTTP 404 Not Found\)\. Name a folder"
    ):
        get_listed(tmp_path, listed_source(f"{server.url}/data"))
    assert not (tmp_path / "records.json").exists()
    assert not list(tmp_path.rglob("*.part"))
    server.requests.clear()
    serve(server, LISTED)
    get_listed(tmp_path, listed_source(f"{server.url}/data"))
    assert_all_listed(tmp_path)
    assert [path for path, _ in server.requests] == [f"/data/{missing}"]


def test_records_json_of_an_earlier_run_does_not_outlive_a_failure(tmp_path: Path) -> None:
    get_listed(tmp_path / "raw", listed_source(), mirror(tmp_path / "mirror"))
    (tmp_path / "raw/records100/00000/00001_lr.dat").unlink()
    with pytest.raises(DataError, match=r"00001_lr\.dat could not be had: no place is known"):
        get_listed(tmp_path / "raw", listed_source())
    assert not (tmp_path / "raw/records.json").exists()


def test_a_server_that_fails_at_first_gives_the_listed_files(server: Server, tmp_path: Path) -> None:
    serve(server, LISTED)
    for name, content in {"SHA256SUMS.txt": sums(LISTED), **LISTED}.items():
        server.answers[f"/data/{name}"] = in_turn(status(503), ranged(content, stop=3), whole(content))
    get_listed(tmp_path, listed_source(f"{server.url}/data"))
    assert_all_listed(tmp_path)


def test_a_server_out_of_order_ends_the_work(server: Server, tmp_path: Path) -> None:
    serve(server, LISTED)
    server.answers |= {f"/data/{name}": status(503) for name in LISTED}
    with pytest.raises(MachineError, match="HTTP 503 Service Unavailable"):
        get_listed(tmp_path, listed_source(f"{server.url}/data"))
    assert len(server.requests) <= 1 + 2 * 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HTML, "an HTML page"),
        (b"\xff", "no list of SHA-256 sums: not a text in UTF-8"),
        (sums(LISTED)[: len(sums(LISTED)) // 2], "no list of SHA-256 sums: its line 4 is not a SHA-256 and a name"),
        (sums({}), "it does not list table.csv"),
        (sums({"table.csv": b""}), "it lists no records100/"),
        (sums(LISTED) + sums({"table.csv": b"!"}), "it has two sums of table.csv"),
        (sums({**LISTED, "records100/4.dat": b""}), r"it lists only one of records100/4\.dat and records100/4\.hea"),
        (
            sums({**LISTED, "records100/../../4.dat": b"", "records100/../../4.hea": b""}),
            r"the name 'records100/\.\./\.\./4\.dat'",
        ),
    ],
)
def test_wrong_lists(server: Server, tmp_path: Path, content: bytes, message: str) -> None:
    serve(server, LISTED)
    server.answers["/data/SHA256SUMS.txt"] = whole(content)
    with pytest.raises(DataError, match=message):
        get_listed(tmp_path / "raw", listed_source(f"{server.url}/data"))
    assert not (tmp_path / "raw").exists()


def test_a_list_is_not_taken_from_a_folder_without_the_source_name(server: Server, tmp_path: Path) -> None:
    """It may be another version's; the files may be there."""
    write(tmp_path / "mirror", {"SHA256SUMS.txt": b"of another version", **LISTED})
    server.answers["/data/SHA256SUMS.txt"] = whole(sums(LISTED))
    get_listed(tmp_path / "raw", listed_source(f"{server.url}/data"), tmp_path / "mirror")
    assert_all_listed(tmp_path / "raw")
    assert [path for path, _ in server.requests] == ["/data/SHA256SUMS.txt"]


def test_a_wrong_list_that_is_there_is_fetched_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "raw", {"SHA256SUMS.txt": b"?"})
    get_listed(tmp_path / "raw", listed_source(), mirror(tmp_path / "mirror"))
    assert_all_listed(tmp_path / "raw")
    assert "SHA256SUMS.txt is there, but no list of SHA-256 sums" in caplog.text


def test_full_disk_while_listed_files_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.name != "00002_lr.dat.part":
            return plain(path, content)
        plain(path, content[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    mirror(tmp_path / "mirror")
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(MachineError, match=r"00002_lr\.dat could not be written, because the disk is full"):
        get_listed(tmp_path / "raw", listed_source(), tmp_path / "mirror")
    assert not list((tmp_path / "raw").rglob("*00002_lr.dat*"))
    assert not (tmp_path / "raw/records.json").exists()


@pytest.mark.real_data
def test_real_mirror(tmp_path: Path) -> None:
    if not (SHARED_DATA / "mnist").is_dir():
        pytest.skip(f"{SHARED_DATA / 'mnist'} is not there (METAPT_SHARED_DATA names another folder)")
    entry = yaml.safe_load((ROOT / "workflow/resources/sources.yaml").read_text(encoding="utf-8"))["mnist"]
    outputs = {name: tmp_path / name for name in entry["files"]}
    run({"source": {**entry, "urls": []}, "mirrors": [str(SHARED_DATA)]}, {}, outputs, Machine())
    assert sorted(tmp_path.iterdir()) == sorted(outputs.values())


@pytest.mark.real_data
def test_real_ptbxl_mirror(tmp_path: Path) -> None:
    """One block of the records, and the tables, all by the mirror's own list of sums."""
    if not (SHARED_DATA / "ptbxl").is_dir():
        pytest.skip(f"{SHARED_DATA / 'ptbxl'} is not there (METAPT_SHARED_DATA names another folder)")
    folder = tmp_path / "mirror/ptbxl-1.0.3"
    command = [sys.executable, SHARED_DATA / "ptbxl/restore.py", folder, "--blocks", "21000"]
    subprocess.run(command, check=True, capture_output=True)
    entry = yaml.safe_load((ROOT / "workflow/resources/sources.yaml").read_text(encoding="utf-8"))["ptbxl-1.0.3"]
    source = {**entry, "urls": [], "listed": {**entry["listed"], "records": "records100/21000/"}}
    get_listed(tmp_path / "raw", source, tmp_path / "mirror", names=("ptbxl_database.csv", "scp_statements.csv", "records.json"))
    assert len(json.loads((tmp_path / "raw/records.json").read_text())["records"]) == len(list(folder.rglob("*.dat")))
