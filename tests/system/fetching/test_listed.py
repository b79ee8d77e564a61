"""Many small files are fetched and verified by a published list of their sums."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from metapt.errors import DataError, MachineError
from metapt.fetching import Download, run
from metapt.machine import Machine

from .serving import HTML, Answer, Handler, Server, in_turn, source, status, whole, write

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
    listed = {"sums": "SHA256SUMS.txt", "files": ["table.csv"], "records": "records100/"}
    return {**source(*urls), "files": {}, "listed": listed}


def mirror(folder: Path) -> Path:
    """Return a mirror with the list and the files in the folder of the source's name."""
    write(folder / "things", {"SHA256SUMS.txt": sums({**LISTED, **OTHERS}), **LISTED})
    return folder


def serve(server: Server, files: dict[str, bytes]) -> None:
    server.answers |= {
        f"/data/{name}": whole(content) for name, content in {"SHA256SUMS.txt": sums(LISTED), **files}.items()
    }


def get_listed(
    folder: Path, entry: dict[str, Any], *mirrors: Path | str, names: tuple[str, ...] = ("table.csv", "records.json")
) -> None:
    run(
        Download.model_validate({"source": entry, "mirrors": [str(each) for each in mirrors]}),
        {},
        {name: folder / name for name in names},
        Machine(),
    )


def assert_all_listed(folder: Path) -> None:
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        *LISTED,
        "SHA256SUMS.txt",
        "records.json",
    }
    assert {name: (folder / name).read_bytes() for name in LISTED} == LISTED
    records = [f"records100/00000/0000{number}_lr" for number in (1, 2, 3)]
    assert json.loads((folder / "records.json").read_text()) == {"version": "1", "records": records}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("protocol", ["HTTP/1.0", "HTTP/1.1"])
def test_listed_files_from_a_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """Each is requested once, over connections that are kept where the server keeps them."""
    monkeypatch.setattr(Handler, "protocol_version", protocol)
    connections = []
    monkeypatch.setattr(Handler, "setup", lambda handler, plain=Handler.setup: (connections.append(1), plain(handler)))
    monkeypatch.setattr("metapt.fetching._AT_ONCE", 2)
    serve(server, LISTED)
    get_listed(tmp_path, listed_source(f"{server.url}/data/"))
    assert_all_listed(tmp_path)
    assert sorted(path for path, _ in server.requests) == sorted(
        f"/data/{name}" for name in ("SHA256SUMS.txt", *LISTED)
    )
    assert len(connections) <= 3 or protocol == "HTTP/1.0"


def test_listed_files_of_a_server_that_is_odd(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails at first, redirects, and closes connections that it said to keep."""
    monkeypatch.setattr(Handler, "protocol_version", "HTTP/1.1")

    def closing(content: bytes) -> Answer:
        def answer(handler: Handler) -> None:
            whole(content)(handler)
            handler.close_connection = True

        return answer

    serve(server, LISTED)
    for name, content in {"SHA256SUMS.txt": sums(LISTED), **LISTED}.items():
        server.answers[f"/data/{name}"] = in_turn(status(503), closing(content))
    server.answers["/data/table.csv"] = lambda handler: handler.reply(302, b"", Location="/new", Content_Length="0")
    server.answers["/new"] = whole(LISTED["table.csv"])
    get_listed(tmp_path, listed_source(f"{server.url}/data"))
    assert_all_listed(tmp_path)


def test_a_server_out_of_order_ends_the_work(server: Server, tmp_path: Path) -> None:
    serve(server, LISTED)
    server.answers |= {f"/data/{name}": status(503) for name in LISTED}
    with pytest.raises(MachineError, match="HTTP 503 Service Unavailable"):
        get_listed(tmp_path, listed_source(f"{server.url}/data"))
    assert len(server.requests) <= 1 + 3 * len(LISTED)


def test_only_a_listed_single_file(tmp_path: Path) -> None:
    get_listed(tmp_path / "raw", listed_source(), mirror(tmp_path / "mirror"), names=("table.csv",))
    assert sorted(path.name for path in (tmp_path / "raw").iterdir()) == ["SHA256SUMS.txt", "table.csv"]


@pytest.mark.parametrize("wrong", [b"", HTML, LISTED["table.csv"][:-1], LISTED["table.csv"] + b"3,4\n"])
def test_wrong_listed_file_in_a_mirror_is_passed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: bytes
) -> None:
    bad = write(tmp_path / "bad", {"things/table.csv": wrong})
    get_listed(tmp_path / "raw", listed_source(), bad, mirror(tmp_path / "mirror"))
    assert_all_listed(tmp_path / "raw")
    assert f"{bad}/things/table.csv: " in caplog.text


def test_listed_files_are_kept_and_wrong_ones_fetched_again(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also what an interrupted job has fetched; its records.json does not outlive a failure."""
    missing, changed = "records100/00000/00003_lr.hea", "records100/00000/00002_lr.dat"
    write(tmp_path, {"records.json": b"{}"})
    serve(server, {name: content for name, content in LISTED.items() if name != missing})
    with pytest.raises(DataError, match=r"^00003_lr\.hea could not be fetched: .*hea \(HTTP 404 Not Found\)\. Name a"):
        get_listed(tmp_path, listed_source(f"{server.url}/data"))
    assert not (tmp_path / "records.json").exists()
    assert not list(tmp_path.rglob("*.part"))
    for name in LISTED.keys() - {missing, changed}:
        write(tmp_path, {name: LISTED[name]})
    write(tmp_path, {changed: LISTED[changed][:-1], "SHA256SUMS.txt": b"?"})
    serve(server, LISTED)
    server.requests.clear()
    get_listed(tmp_path, listed_source(f"{server.url}/data"))
    assert_all_listed(tmp_path)
    assert {path for path, _ in server.requests} == {f"/data/{name}" for name in (missing, changed, "SHA256SUMS.txt")}
    assert f"{tmp_path / changed} is there, but cut or altered" in caplog.text
    assert "SHA256SUMS.txt is there, but no list of SHA-256 sums" in caplog.text


def test_a_job_killed_before_a_small_file_has_its_name_leaves_hidden_files_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path, target: Path) -> None:
        raise KeyboardInterrupt

    source, folder = mirror(tmp_path / "mirror"), tmp_path / "raw"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            get_listed(folder, listed_source(), source)
    assert [path.name[0] for path in folder.rglob("*")] == ["."]
    get_listed(folder, listed_source(), source)
    assert {path.name for path in folder.iterdir() if path.name[0] != "."} >= {"records.json", "table.csv"}


def test_jobs_of_one_source_fetch_its_list_at_the_same_time(server: Server, tmp_path: Path) -> None:
    """The second job starts and ends while the first one's list is on its way."""
    serve(server, LISTED)
    plain = server.answers["/data/SHA256SUMS.txt"]
    entry = listed_source(f"{server.url}/data")

    def slow_then_plain(handler: Handler) -> None:
        server.answers[handler.path] = plain
        content = sums(LISTED)
        handler.reply(200, content[:100], Content_Length=str(len(content)))
        handler.wfile.flush()
        get_listed(tmp_path, entry, names=("table.csv",))
        handler.wfile.write(content[100:])

    server.answers["/data/SHA256SUMS.txt"] = slow_then_plain
    get_listed(tmp_path, entry, names=("records.json",))
    assert_all_listed(tmp_path)


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
def test_wrong_lists(server: Server, tmp_path: Path, content: bytes, message: str) -> None:
    serve(server, LISTED)
    server.answers["/data/SHA256SUMS.txt"] = whole(content)
    with pytest.raises(DataError, match=message):
        get_listed(tmp_path / "raw", listed_source(f"{server.url}/data"))
    assert not any((tmp_path / "raw").glob("*"))
    assert not list(tmp_path.rglob("4.*"))


def test_a_list_is_not_taken_from_a_folder_without_the_source_name(server: Server, tmp_path: Path) -> None:
    """The list may be that of another version; the files may be used."""
    another_version = sums({**LISTED, "table.csv": b"a,b\n"})
    write(tmp_path / "mirror", {"SHA256SUMS.txt": another_version, **LISTED})
    server.answers["/data/SHA256SUMS.txt"] = whole(sums(LISTED).replace(b"\n", b"\r\n"))
    get_listed(tmp_path / "raw", listed_source(f"{server.url}/data"), tmp_path / "mirror")
    assert_all_listed(tmp_path / "raw")
    assert [path for path, _ in server.requests] == ["/data/SHA256SUMS.txt"]


def test_full_disk_while_listed_files_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if "00002_lr.dat" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(path, content)

    mirror(tmp_path / "mirror")
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(MachineError, match=r"00002_lr\.dat could not be written, because the disk is full"):
        get_listed(tmp_path / "raw", listed_source(), tmp_path / "mirror")
    assert not list((tmp_path / "raw").rglob("*00002_lr.dat*"))
    assert not (tmp_path / "raw/records.json").exists()
