"""Many small files are fetched and verified by a published list of their sums."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from metapt import fetching
from metapt.errors import DataError, MachineError
from metapt.machine import Machine

from .serving import HTML, Answer, Handler, Server, in_turn, redirect, source, status, whole, write

RECORDS = {
    f"records100/00000/0000{number}_lr{kind}": f"{number}{kind}".encode() * 100
    for number in (2, 1, 3)
    for kind in (".dat", ".hea")
}
LISTED = {"table.csv": b"a,b\n1,2\n", **RECORDS}
OTHERS = {"records500/00000/00001_hr.dat": b"", "LICENSE.txt": b""}
SUMS = "SHA256SUMS.txt"


def sums(files: dict[str, bytes]) -> bytes:
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items()).encode()


def listed_source(server: Server | None = None) -> dict[str, Any]:
    urls = [f"{server.url}/data"] if server else []
    return {**source(*urls), "files": {}, "listed": {"sums": SUMS, "files": ["table.csv"], "records": "records100/"}}


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """Return a mirror with the list and the files in the folder of the source's name."""
    write(tmp_path / "mirror" / "things", {SUMS: sums({**LISTED, **OTHERS}), **LISTED})
    return tmp_path / "mirror"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return tmp_path / "raw"


def serve(server: Server, files: dict[str, bytes], listed: bytes = sums(LISTED)) -> None:
    server.answers |= {f"/data/{name}": whole(content) for name, content in {**files, SUMS: listed}.items()}


def get(
    folder: Path, entry: dict[str, Any], *mirrors: Path, names: tuple[str, ...] = ("table.csv", "records.json")
) -> None:
    settings = fetching.Download.model_validate({"source": entry, "mirrors": [str(each) for each in mirrors]})
    fetching.run(settings, {}, {name: folder / name for name in names}, Machine())


def assert_all_listed(folder: Path) -> None:
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found.keys() == {*LISTED, SUMS, "records.json"}
    assert {name: found[name] for name in LISTED} == LISTED
    records = [f"records100/00000/0000{number}_lr" for number in (1, 2, 3)]
    assert json.loads(found["records.json"]) == {"version": "1", "records": records}


@pytest.mark.parametrize("protocol", ["HTTP/1.0", "HTTP/1.1"])
def test_each_file_is_requested_once_over_kept_connections(
    server: Server, raw: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setattr(Handler, "protocol_version", protocol)
    connections = []
    monkeypatch.setattr(Handler, "setup", lambda handler, plain=Handler.setup: (connections.append(1), plain(handler)))
    monkeypatch.setattr(fetching, "_AT_ONCE", 2)
    serve(server, LISTED)
    get(raw, listed_source(server))
    assert_all_listed(raw)
    assert sorted(path for path, _ in server.requests) == sorted(f"/data/{name}" for name in (SUMS, *LISTED))
    assert len(connections) <= 3 or protocol == "HTTP/1.0"


def test_a_server_that_fails_at_first_redirects_and_closes_connections_that_it_said_to_keep(
    server: Server, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "protocol_version", "HTTP/1.1")

    def closing(content: bytes) -> Answer:
        def answer(handler: Handler) -> None:
            whole(content)(handler)
            handler.close_connection = True

        return answer

    for name, content in {SUMS: sums(LISTED), **LISTED}.items():
        server.answers[f"/data/{name}"] = in_turn(status(503), closing(content))
    server.answers |= {"/data/table.csv": redirect("/new"), "/new": whole(LISTED["table.csv"])}
    get(raw, listed_source(server))
    assert_all_listed(raw)


def test_a_server_out_of_order_ends_the_work(server: Server, raw: Path) -> None:
    serve(server, {})
    server.answers |= {f"/data/{name}": status(503) for name in LISTED}
    with pytest.raises(MachineError, match="HTTP 503 Service Unavailable"):
        get(raw, listed_source(server))
    assert len(server.requests) <= 1 + 3 * len(LISTED)


def test_only_a_listed_single_file(raw: Path, mirror: Path) -> None:
    get(raw, listed_source(), mirror, names=("table.csv",))
    assert sorted(path.name for path in raw.iterdir()) == [SUMS, "table.csv"]


@pytest.mark.parametrize("wrong", [b"", HTML, LISTED["table.csv"][:-1], LISTED["table.csv"] + b"3,4\n"])
def test_wrong_listed_file_in_a_mirror_is_passed(
    tmp_path: Path, raw: Path, mirror: Path, caplog: pytest.LogCaptureFixture, wrong: bytes
) -> None:
    bad = write(tmp_path / "bad", {"things/table.csv": wrong})
    get(raw, listed_source(), bad, mirror)
    assert_all_listed(raw)
    assert f"{bad}/things/table.csv: " in caplog.text


def test_listed_files_are_kept_and_wrong_ones_fetched_again(
    server: Server, raw: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also what an interrupted job has fetched; its records.json does not outlive a failure."""
    missing, changed = "records100/00000/00003_lr.hea", "records100/00000/00002_lr.dat"
    write(raw, {"records.json": b"{}"})
    serve(server, {name: content for name, content in LISTED.items() if name != missing})
    with pytest.raises(DataError, match=r"^00003_lr\.hea could not be fetched: .*hea \(HTTP 404 Not Found\)\. Name a"):
        get(raw, listed_source(server))
    assert not (raw / "records.json").exists()
    assert not list(raw.rglob("*.part"))
    write(raw, {name: LISTED[name] for name in LISTED.keys() - {missing, changed}})
    write(raw, {changed: LISTED[changed][:-1], SUMS: b"?"})
    serve(server, LISTED)
    server.requests.clear()
    get(raw, listed_source(server))
    assert_all_listed(raw)
    assert {path for path, _ in server.requests} == {f"/data/{name}" for name in (missing, changed, SUMS)}
    assert f"{raw / changed} is there, but cut or altered" in caplog.text
    assert f"{SUMS} is there, but no list of SHA-256 sums" in caplog.text


def test_a_job_killed_before_a_small_file_has_its_name_leaves_hidden_files_only(
    raw: Path, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            get(raw, listed_source(), mirror)
    assert [path.name[0] for path in raw.rglob("*")] == ["."]
    get(raw, listed_source(), mirror)
    assert {path.name for path in raw.iterdir() if path.name[0] != "."} >= {"records.json", "table.csv"}


def test_jobs_of_one_source_fetch_its_list_at_the_same_time(server: Server, raw: Path) -> None:
    """The second job starts and ends while the first one's list is on its way."""
    content, entry = sums(LISTED), listed_source(server)

    def slow_then_plain(handler: Handler) -> None:
        server.answers[handler.path] = whole(content)
        handler.reply(200, content[:100], Content_Length=str(len(content)))
        handler.wfile.flush()
        get(raw, entry, names=("table.csv",))
        handler.wfile.write(content[100:])

    serve(server, LISTED)
    server.answers[f"/data/{SUMS}"] = slow_then_plain
    get(raw, entry, names=("records.json",))
    assert_all_listed(raw)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HTML, "an HTML page"),
        (b"\xff", "no list of SHA-256 sums"),
        (sums(LISTED)[: len(sums(LISTED)) // 2], "no list of SHA-256 sums, or cut"),
        (sums({}), "it does not list records100/"),
        (sums(RECORDS), "it does not list table.csv"),
        (sums({"table.csv": b""}), "it does not list records100/"),
        (sums({**LISTED, "records100/4.dat": b""}), r"it does not list records100/4\.hea"),
        *(
            (sums({**LISTED, f"{name}.dat": b"", f"{name}.hea": b""}), "the name 'records100/")
            for name in ("records100/../../4", "records100/..\\4", "records100/4\a")
        ),
    ],
)
def test_wrong_lists(server: Server, tmp_path: Path, raw: Path, content: bytes, message: str) -> None:
    serve(server, LISTED, content)
    with pytest.raises(DataError, match=message):
        get(raw, listed_source(server))
    assert not any(raw.glob("*"))
    assert not list(tmp_path.rglob("4.*"))


def test_a_list_is_not_taken_from_a_folder_without_the_source_name(server: Server, tmp_path: Path, raw: Path) -> None:
    """The list may be that of another version; the files may be used."""
    write(tmp_path / "mirror", {SUMS: sums({**LISTED, "table.csv": b"a,b\n"}), **LISTED})
    serve(server, {}, sums(LISTED).replace(b"\n", b"\r\n"))
    get(raw, listed_source(server), tmp_path / "mirror")
    assert_all_listed(raw)
    assert [path for path, _ in server.requests] == [f"/data/{SUMS}"]


def test_full_disk_while_listed_files_come(raw: Path, mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if "00002_lr.dat" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(MachineError, match=r"00002_lr\.dat could not be written, because the disk is full"):
        get(raw, listed_source(), mirror)
    assert not list(raw.rglob("*00002_lr.dat*"))
    assert not (raw / "records.json").exists()
