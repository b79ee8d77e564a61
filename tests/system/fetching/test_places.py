"""A file is fetched from the first place that has it, and verified; or one sentence names the failure of each place."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import random
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from metapt.engine.plan import SOURCES
from metapt.errors import DataError
from metapt.fetching import Download, Source, place_of, run
from metapt.machine import Machine

from ...shared_files import SHARED_DATA, shared
from .serving import (
    CONTENT,
    HTML,
    NAME,
    PATH,
    Server,
    assert_whole,
    closed_port,
    get,
    in_turn,
    ranged,
    source,
    unsized,
    whole,
    write,
)

ENTRIES = yaml.safe_load(SOURCES.read_text(encoding="utf-8"))


def test_present_file_is_left_alone(target: Path) -> None:
    write(target.parent, {NAME: CONTENT})
    before = target.stat().st_mtime_ns
    get(target, source())
    assert target.stat().st_mtime_ns == before


def test_present_wrong_file_is_replaced_or_named(
    server: Server, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    mirror = tmp_path / "a mirror"
    write(mirror / inner, {NAME: CONTENT})
    get(target, source(f"{server.url}/data"), scheme + (str(mirror).replace(" ", "%20") if scheme else str(mirror)))
    assert_whole(target)
    assert server.requests == []


def test_places_in_their_order() -> None:
    own = "https://publisher/a.gz"
    entry = Source.model_validate(source("https://publisher/data", own=(own,)))
    name = "train%20images.gz"
    assert entry.places(NAME, [place_of("/one"), place_of("http://two/")]) == [
        Path("/one/things") / NAME,
        Path("/one") / NAME,
        f"http://two/things/{name}",
        f"http://two/{name}",
        own,
    ]


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[::-1], HTML])
def test_wrong_mirror_is_passed_with_a_warning(
    server: Server, target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    server.answers[PATH] = whole()
    write(tmp_path, {NAME: content})
    get(target, source(f"{server.url}/data"), str(tmp_path))
    assert_whole(target)
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage().startswith(f"{tmp_path / NAME}: ")


def test_each_place_is_named(server: Server, target: Path, tmp_path: Path) -> None:
    write(tmp_path, {NAME: b""})
    os.mkfifo(tmp_path / "things")
    (tmp_path / "closed").mkdir()
    with pytest.raises(DataError) as raised:
        get(target, source(f"{server.url}/data", f"http://127.0.0.1:{closed_port()}"), str(tmp_path))
    message = str(raised.value)
    assert f"{tmp_path / NAME} (cut or altered" in message
    assert f"{tmp_path / 'things' / NAME} (no such file)" in message
    assert f"{server.url}{PATH} (HTTP 404 Not Found)" in message
    assert "(no network or no such host: " in message
    with pytest.raises(DataError, match="no place is known"):
        get(target, source())


def test_a_pipe_is_no_file(target: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(DataError, match="no such file"):
        get(target, source(), str(tmp_path))


@pytest.mark.parametrize(
    "address",
    [
        *("ftp://host/x", "s3://bucket", "file://host/data", "data://text", "http://[::1/x", "http://a..b/x", ""),
        *("http://host:port/x", "http://a b/x", "http://a%b/", "http://host/\n"),
    ],
)
def test_illegal_addresses(address: str) -> None:
    with pytest.raises(ValueError, match="legal are a folder"):
        place_of(address)
    for urls, mirrors in (((), [address]), ((address,), [])):
        with pytest.raises(ValidationError, match="legal are a folder"):
            Download.model_validate({"source": source(*urls), "mirrors": mirrors})


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": "abc"},
        {"at_most": 0},
        {"at_most": None},
        {"sha256": None},
        {"container": "gzip"},
        {"sha256": None, "container": "tar"},
        {"other": 1},
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
def test_a_container_is_verified_by_its_own_sums(server: Server, target: Path, tmp_path: Path, kind: str) -> None:
    """Also where its length is not known, after a part of another file, and after a cut file in a mirror."""
    content = CONTAINERS[kind]
    server.answers[PATH] = in_turn(unsized(content[:3000]), ranged(content))
    write(tmp_path / "cut", {NAME: content[:-100]})
    get(target, container_source(kind, f"{server.url}/data"), str(tmp_path / "cut"))
    assert target.read_bytes() == content
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
