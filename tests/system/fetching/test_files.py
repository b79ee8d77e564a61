"""A file is fetched whole from the first place that has it, or not at all; then a sentence names each failure."""

from __future__ import annotations

import asyncio
import base64
import errno
import gzip
import io
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from metapt.engine.config import validate
from metapt.engine.execute import execute
from metapt.engine.jobs import Job
from metapt.engine.plan import SOURCES
from metapt.errors import ConfigError, DataError, MachineError
from metapt.fetching import Download, Source, place_of, run
from metapt.files import locked
from metapt.machine import Machine

from ...shared_files import SHARED_DATA, shared
from .serving import (
    CONTENT,
    HTML,
    NAME,
    PATH,
    SIZE,
    Answer,
    Handler,
    Server,
    assert_whole,
    closed_port,
    endless,
    get,
    hang_after,
    in_turn,
    pour,
    ranged,
    redirect,
    source,
    status,
    trickle,
    unsized,
    whole,
    write,
    wrong_range,
)

ENTRIES = yaml.safe_load(SOURCES.read_text(encoding="utf-8"))
HEAD = f"HTTP/1.0 200 OK\r\nContent-Length: {SIZE}\r\n\r\n".encode()


# What a server may do.


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([whole()], [None]),
        ([redirect(PATH), whole()], [None, None]),
        ([unsized(CONTENT)], [None]),
        ([ranged(stop=1000), ranged(stop=5000), ranged()], [None, 1000, 5000]),
        ([hang_after(2000), ranged()], [None, 2000]),
        ([unsized(CONTENT[:3000]), ranged()], [None, 3000]),
        ([ranged(stop=1000), whole()], [None, 1000]),
        ([ranged(stop=1000), wrong_range, whole()], [None, 1000, None]),
        ([ranged(stop=1000), status(416), whole()], [None, 1000, None]),
        ([status(503), hang_after(0), whole()], [None, None, None]),
    ],
)
def test_the_file_comes(server: Server, target: Path, answers: list[Answer], asked: list[int | None]) -> None:
    server.answers[PATH] = in_turn(*answers)
    get(target, source(f"{server.url}/data/"))
    assert_whole(target)
    assert server.requests == [(PATH, start and f"bytes={start}-") for start in asked]


@pytest.mark.parametrize(
    ("part", "asked"),
    [
        (CONTENT[:3000], ["bytes=3000-"]),
        (b"?" * 1000, ["bytes=1000-", None]),
        (b"?" * SIZE, [None]),
        (b"?" * (SIZE + 1), [None]),
    ],
)
def test_a_part_of_an_earlier_run(server: Server, target: Path, part: bytes, asked: list[str | None]) -> None:
    """It is gone on with; where that gives another file, or it is too long, the file is fetched from the start."""
    write(target.parent, {f"{NAME}.part": part})
    server.answers[PATH] = ranged()
    get(target, source(f"{server.url}/data"))
    assert_whole(target)
    assert [start for _, start in server.requests] == asked


@pytest.mark.parametrize("answer", [whole(HTML), unsized(HTML), whole(CONTENT + b"more"), status(404)])
def test_a_part_survives_an_answer_that_is_something_else(server: Server, target: Path, answer: Answer) -> None:
    write(target.parent, {f"{NAME}.part": CONTENT[:1000]})
    server.answers |= {PATH: answer, "/second/train%20images.gz": ranged()}
    get(target, source(f"{server.url}/data", f"{server.url}/second"))
    assert_whole(target)
    assert server.requests == [(PATH, "bytes=1000-"), ("/second/train%20images.gz", "bytes=1000-")]


def test_two_jobs_that_fetch_one_file_take_turns(server: Server, target: Path) -> None:
    def slow(handler: Handler) -> None:
        handler.reply(200, b"", Content_Length=str(SIZE))
        pour(handler, (CONTENT[start : start + SIZE // 20] for start in range(0, SIZE, SIZE // 20)), 0.02)

    server.answers[PATH] = slow
    jobs = [threading.Thread(target=get, args=(target, source(f"{server.url}/data"))) for _ in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert_whole(target)
    assert server.requests == [(PATH, None)], "the second one finds the file"


def test_ctrl_c_ends_the_wait_for_another_job(target: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = (threading.Timer(wait, os.kill, (os.getpid(), signal.SIGINT)) for wait in (1, 9))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs behind a shell ignores it
    with locked(target):
        first.start()
        second.start()
        with pytest.raises(KeyboardInterrupt):
            get(target, source("http://127.0.0.1"))
        assert second.is_alive(), "the first one is enough"
        second.cancel()
        signal.signal(signal.SIGINT, before)
        assert [path.name for path in target.parent.iterdir()] == [f".{NAME}.lock"], "the lock is another one's"
    assert f"{target} is being fetched by another process" in caplog.text


OVERLONG = f"overlong: more than {SIZE} bytes"
NO_NETWORK = "no network or no such host: "


@pytest.mark.parametrize(
    ("error", "answer", "message", "left", "count"),
    [
        (DataError, whole(CONTENT[: SIZE // 2]), r"cut or altered: its SHA-256 is [0-9a-f]{12}…", [], 1),
        (DataError, ranged(stop=SIZE // 2), f"cut: got {SIZE // 2} of {SIZE} bytes", [SIZE // 2], 3),
        (DataError, unsized(CONTENT[:10]), "cut or altered: its SHA-256 is", [10], 3),
        (DataError, whole(CONTENT[::-1]), "cut or altered: its SHA-256 is", [], 1),
        (DataError, whole(CONTENT + b"more"), OVERLONG, [], 1),
        (DataError, unsized(CONTENT + b"more"), OVERLONG, [], 1),
        (DataError, endless(), OVERLONG, [], 1),
        (DataError, lambda handler: handler.reply(200, CONTENT, Content_Length=str(1 << 60)), OVERLONG, [], 1),
        (DataError, whole(HTML), "an HTML page", [], 1),
        (DataError, status(404), "HTTP 404 Not Found", [], 1),
        (DataError, status(403), "HTTP 403 Forbidden", [], 1),
        (DataError, redirect(PATH), "too many redirections", [], 10),
        (MachineError, status(503), "HTTP 503 Service Unavailable", [], 3),
        *((MachineError, redirect(to), NO_NETWORK, [], 3) for to in ("http://a..b/file", "ftp://host/x", "data:,x")),
        (MachineError, redirect("file:///etc/passwd"), NO_NETWORK, [], 3),
    ],
)
def test_wrong_answers(
    server: Server, target: Path, error: type[Exception], answer: Answer, message: str, left: list[int], count: int
) -> None:
    server.answers[PATH] = answer
    with pytest.raises(error, match=message) as raised:
        get(target, source(f"{server.url}/data"))
    assert str(raised.value).startswith(f"{NAME} could not be fetched: {server.url}{PATH} (")
    assert str(raised.value).endswith(f"data.mirrors in the config, or put the file at {target} by hand.")
    assert not target.exists()
    assert [path.stat().st_size for path in target.parent.glob("*")] == left
    assert len(server.requests) == count


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("error", "answer", "message"),
    [
        (DataError, trickle(HEAD, CONTENT), "too slow: "),  # it would take hours
        (MachineError, trickle(b"", HEAD * 10), "no answer within 0.5 s"),
        (MachineError, hang_after(0), "no answer within 0.5 s"),
    ],
)
def test_slow_answers(server: Server, target: Path, error: type[Exception], answer: Answer, message: str) -> None:
    server.answers[PATH] = answer
    with pytest.raises(error, match=message):
        get(target, source(f"{server.url}/data"))
    assert not target.exists()
    assert len(server.requests) == 3


def test_endless_answers_are_not_read_to_their_end(server: Server, target: Path) -> None:
    """Neither files, also behind a part, nor refusals and redirections."""
    write(target.parent, {f"{NAME}.part": CONTENT[:1000]})
    server.answers[PATH] = in_turn(endless(code=206, Content_Range="bytes 1000-*/*"), endless(CONTENT))
    server.answers["/second/train%20images.gz"] = endless(code=404)
    server.answers["/third/train%20images.gz"] = endless(code=302, Location="/new")
    server.answers["/new"] = whole()
    get(target, source(*(f"{server.url}/{folder}" for folder in ("data", "second", "third"))))
    assert_whole(target)
    assert [start for _, start in server.requests] == ["bytes=1000-", None, None, None, None]
    end = time.monotonic() + 10  # the server's side ends a little later
    while server.broken < 4:
        assert time.monotonic() < end
        time.sleep(0.01)


def asked_for_password(inner: Answer) -> Answer:
    """Answer requests of the user "me" with the password "se/cret" only."""
    pair = base64.b64encode(b"me:se/cret").decode()
    return lambda handler: (inner if handler.headers["Authorization"] == f"Basic {pair}" else status(401))(handler)


def with_password(server: Server) -> str:
    return server.url.replace("://", "://me:se%2Fcret@")


def test_a_password_in_an_address_works(server: Server, target: Path) -> None:
    server.answers[PATH] = asked_for_password(redirect("/new"))
    server.answers["/new"] = asked_for_password(in_turn(ranged(stop=1000), ranged()))
    with pytest.raises(DataError, match="HTTP 401"):
        get(target, source(f"{server.url}/data"))
    get(target, source(f"{with_password(server)}/data"))
    assert_whole(target)


def test_a_password_is_not_told_to_another_server(server: Server, target: Path) -> None:
    seen: list[str | None] = []

    def answer(handler: Handler) -> None:
        seen.append(handler.headers["Authorization"])
        whole()(handler)

    with Server() as other:
        threading.Thread(target=other.serve_forever, args=(0.01,), daemon=True).start()
        other.answers["/new"] = answer
        server.answers[PATH] = redirect(f"{other.url}/new")
        get(target, source(f"{with_password(server)}/data"))
        other.shutdown()
    assert_whole(target)
    assert seen == [None]


def test_a_password_is_never_printed(server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mirrors = [with_password(server), "https://me:se%2Fcret@127.0.0.1:1/x"]
    outputs, record, log = {"file": str(tmp_path / NAME)}, str(tmp_path / "run.json"), str(tmp_path / "log.txt")
    config = {"source": source(), "mirrors": mirrors}
    assert execute(Job("download", NAME, "fetching", config, outputs=outputs, record=record, log=log)) == 1
    printed = capfd.readouterr()
    told = printed.out + printed.err + Path(log).read_text() + Path(record).read_text()
    assert "could not be fetched: http://***@127.0.0.1" in told
    assert "cret" not in told
    for illegal in (mirrors[0], ["https://me:se%2Fcret@[::1"]):
        with pytest.raises(ConfigError) as error:
            validate({"data": {"mirrors": illegal}})
        assert "cret" not in str(error.value)


def test_a_proxy_is_asked_instead_of_the_server(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", server.url)
    server.answers[f"http://publisher.invalid{PATH}"] = whole()
    get(target, source("http://publisher.invalid/data"))
    assert_whole(target)


@pytest.mark.parametrize("proxy", [False, True])
def test_no_network(target: Path, monkeypatch: pytest.MonkeyPatch, proxy: bool) -> None:
    """Each host is waited for once, whatever the number of its places."""
    asked: list[Any] = []
    plain = asyncio.BaseEventLoop.create_connection
    counted: Callable[..., Any] = lambda *words, **named: (asked.append(words), plain(*words, **named))[1]  # noqa: E731
    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", counted)
    url = f"http://127.0.0.1:{closed_port()}"
    if proxy:
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("all_proxy", url.replace("http", "socks5"))
    with pytest.raises(MachineError, match=r"\(no network or no such host: Connect call failed .*\)\. Name a"):
        get(target, source(url), url)
    assert len(asked) == 3


def test_full_disk(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers[PATH] = whole()
    plain = Path.open

    def full(path: Path, mode: str = "r", *arguments: Any) -> Any:
        opened = plain(path, mode, *arguments)
        if path.name.endswith(".part"):
            opened.close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(MachineError, match=r"because the disk is full or a quota is used up: it needs 512\.0 kB"):
        get(target, source(f"{server.url}/data"))
    assert not any(target.parent.glob("*"))


# Places, and what is known of a file.


def test_a_present_file_is_left_alone_unless_it_is_wrong(
    server: Server, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(target.parent, {NAME: CONTENT})
    before = target.stat().st_mtime_ns
    get(target, source())
    assert target.stat().st_mtime_ns == before
    write(target.parent, {NAME: CONTENT[:-1]})
    with pytest.raises(DataError, match=rf"fetched: {target} \(cut or altered: its SHA-256"):
        get(target, source())
    server.answers[PATH] = whole()
    get(target, source(f"{server.url}/data"))
    assert_whole(target)
    assert f"{target} is there, but cut or altered: its SHA-256" in caplog.text


@pytest.mark.parametrize("inner", ["", "things"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_mirror_folder(server: Server, target: Path, tmp_path: Path, inner: str, scheme: str) -> None:
    write(tmp_path / "a mirror" / inner, {NAME: CONTENT})
    mirror = str(tmp_path / "a mirror")
    get(target, source(f"{server.url}/data"), f"file://{mirror.replace(' ', '%20')}" if scheme else mirror)
    assert_whole(target)
    assert server.requests == []


def test_places_in_their_order() -> None:
    own = "https://publisher/a.gz"
    entry = Source.model_validate(source("https://publisher/data", own=(own,)))
    places = entry.places(NAME, [place_of("/one"), place_of("http://two/")])
    folders = [Path("/one/things") / NAME, Path("/one") / NAME]
    assert places == [*folders, "http://two/things/train%20images.gz", "http://two/train%20images.gz", own]


def test_each_place_is_named(server: Server, target: Path, tmp_path: Path) -> None:
    write(tmp_path, {NAME: b""})
    (tmp_path / "things").mkdir()
    os.mkfifo(tmp_path / "things" / NAME)  # a pipe is no file, and would be waited for
    with pytest.raises(DataError) as raised:
        get(target, source(f"{server.url}/data", f"http://127.0.0.1:{closed_port()}"), str(tmp_path))
    for part in (
        f"{tmp_path / NAME} (cut or altered",
        f"{tmp_path / 'things' / NAME} (no such file)",
        f"{server.url}{PATH} (HTTP 404 Not Found)",
        "(no network or no such host: ",
    ):
        assert part in str(raised.value)
    with pytest.raises(DataError, match="no place is known"):
        get(target, source())


@pytest.mark.parametrize(
    "address",
    [
        *("ftp://host/x", "s3://bucket", "file://host/data", "data://text", "http://[::1/x", "http://a..b/x", ""),
        *("http://host:port/x", "http://a b/x", "http://a%b/", "http://host/\n"),
    ],
)
def test_illegal_addresses(address: str) -> None:
    for urls, mirrors in (((), [address]), ((address,), [])):
        with pytest.raises(ValidationError, match="legal are a folder"):
            Download.model_validate({"source": source(*urls), "mirrors": mirrors})


@pytest.mark.parametrize(
    "change",
    [
        *({"sha256": "abc"}, {"at_most": 0}, {"at_most": None}, {"sha256": None}, {"container": "gzip"}),
        *({"sha256": None, "container": "tar"}, {"other": 1}),
    ],
)
def test_illegal_entry(change: dict[str, object]) -> None:
    entry = source()
    entry["files"][NAME].update(change)
    with pytest.raises(ValidationError):
        Download.model_validate({"source": entry})


@pytest.mark.parametrize("key", ENTRIES)
def test_sources_yaml_describes_every_file(key: str) -> None:
    entry = Source.model_validate(ENTRIES[key])
    assert entry.name == key
    assert set(ENTRIES[key]) - set(Source.model_fields) <= {"licence", "description", "citation", "homepage"}
    assert all(entry.places(name, []) for name in (*entry.files, *([entry.listed.sums] if entry.listed else [])))


# Files without published sums.


def zipped(content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a folder/data", content)
    return stream.getvalue()


NOISE = random.Random(0).randbytes(20_000)
CONTAINERS = {"gzip": gzip.compress(NOISE), "zip": zipped(NOISE)}


def container_source(kind: str, *urls: str) -> dict[str, Any]:
    return {**source(*urls), "files": {NAME: {"container": kind, "at_most": 30_000}}}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_container_is_verified_by_its_own_sums(
    server: Server, target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Also where its length is not known, after a part of another file, and after a cut file in a mirror."""
    content = CONTAINERS[kind]
    server.answers[PATH] = in_turn(unsized(content[:3000]), ranged(content))
    write(tmp_path / "cut", {NAME: content[:-100]})
    get(target, container_source(kind, f"{server.url}/data"), str(tmp_path / "cut"))
    assert target.read_bytes() == content
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith(f"{tmp_path / 'cut' / NAME}: ")
    assert [asked for _, asked in server.requests] == [None, "bytes=3000-"]
    target.unlink()
    write(target.parent, {f"{NAME}.part": content[:100] + b"?" * 1000})
    get(target, container_source(kind, f"{server.url}/data"))
    assert target.read_bytes() == content


@pytest.mark.parametrize("answer", [whole, unsized])
@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("gzip", HTML, "an HTML page"),
        ("gzip", b"", "cut: it has no content"),
        ("gzip", b"protein1 protein2", "cut or altered: Not a gzipped file"),
        ("zip", CONTAINERS["gzip"], "cut or altered: File is not a zip file"),
        ("gzip", CONTAINERS["gzip"][:-5], "cut or altered: Compressed file ended"),
        ("zip", CONTAINERS["zip"][:-50], "cut or altered: File is not a zip file"),
        ("gzip", CONTAINERS["gzip"][:-8] + bytes(8), "cut or altered: CRC check failed"),
        ("zip", CONTAINERS["zip"].replace(NOISE[100:110], bytes(10)), "altered: the checksum (CRC-32) of a folder/"),
        ("gzip", (CONTAINERS["gzip"] * 2)[:30_001], "overlong: more than 30000 bytes"),
    ],
)
def test_wrong_containers(server: Server, target: Path, answer: Any, kind: str, content: bytes, message: str) -> None:
    server.answers[PATH] = answer(content)
    with pytest.raises(DataError, match=re.escape(message)):
        get(target, container_source(kind, f"{server.url}/data"))
    assert not target.exists()
    assert not any(target.parent.glob("*")) or answer is unsized


# Real files.


@pytest.mark.real_data
def test_real_mirror(tmp_path: Path) -> None:
    shared("mnist")
    outputs = {name: tmp_path / name for name in ENTRIES["mnist"]["files"]}
    entry = {**ENTRIES["mnist"], "urls": []}
    run(Download.model_validate({"source": entry, "mirrors": [str(SHARED_DATA)]}), {}, outputs, Machine())
    assert sorted(tmp_path.iterdir()) == sorted(outputs.values())


@pytest.mark.real_data
def test_real_ptbxl_mirror(tmp_path: Path) -> None:
    """Fetch one block of the records, and the tables, verified by the mirror's list of sums."""
    shared("ptbxl")
    folder = tmp_path / "mirror/ptbxl-1.0.3"
    command = [sys.executable, SHARED_DATA / "ptbxl/restore.py", folder, "--blocks", "21000"]
    subprocess.run(command, check=True, capture_output=True)
    entry = {**ENTRIES["ptbxl-1.0.3"], "urls": []}
    entry["listed"] = {**entry["listed"], "records": "records100/21000/"}
    outputs = {name: tmp_path / "raw" / name for name in ("ptbxl_database.csv", "scp_statements.csv", "records.json")}
    settings = Download.model_validate({"source": entry, "mirrors": [str(tmp_path / "mirror")]})
    run(settings, {}, outputs, Machine())
    assert len(json.loads((tmp_path / "raw/records.json").read_text())["records"]) == len(list(folder.rglob("*.dat")))
