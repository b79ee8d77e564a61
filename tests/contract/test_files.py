"""Atomic writing of files, the sentences of its errors, and records, by which changes of files are detected."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metapt.engine import records
from metapt.errors import DataError, MachineError
from metapt.files import atomic_path, locked, readable, sha256

Write = Callable[[Path], Any]


def _mount(folder: Path, options: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    _mount(folder, "size=64k")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # torch keeps a file open after an error


def test_the_file_appears_at_the_end_with_the_rights_of_any_other(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "table.csv.gz"
    with atomic_path(path) as temporary:
        assert temporary.parent == path.parent
        assert temporary.suffixes[-2:] == path.suffixes
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        found = os.fstat(descriptor)
        done.append("the folder" if stat.S_ISDIR(found.st_mode) else f"{found.st_size} bytes")
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        done.append(f"the name {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    with atomic_path(tmp_path / "file") as temporary:
        temporary.write_bytes(b"12345")
    assert done == ["5 bytes", "the name file", "the folder"]


def _save(path: Path, write: Write, needs: int | None = None) -> None:
    with atomic_path(path, needs) as temporary:
        write(temporary)


def _half_and(exception: BaseException) -> Write:
    def write(path: Path) -> None:
        path.write_text("half")
        raise exception

    return write


@pytest.mark.parametrize("exception", [ValueError("wrong"), RuntimeError("odd"), KeyboardInterrupt()])
def test_an_exception_leaves_what_was_there(tmp_path: Path, exception: BaseException) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(type(exception)) as raised:
        _save(path, _half_and(exception))
    assert raised.value is exception
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "before"


class Broken(io.RawIOBase):
    """A file on a disk that fails."""

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(
    ("place", "write", "sentence"),
    [
        ("file", _half_and(OSError(errno.EIO, os.strerror(errno.EIO))), r"can't be written.*Input/output error"),
        ("file", _half_and(OSError("458752 written")), "can't be written.*458752 written"),
        ("file", lambda _: torch.save(torch.zeros(9), Broken()), r"can't be written.*Input/output error"),
        ("file", lambda path: path.with_name("absent").replace(path), "can't be written.*No such file or directory"),
        ("file", lambda _: Path("/absent").read_text(), r"can't be written, because /absent can't be used \(No such"),
        ("a file/file", Path.touch, r"can't be written \("),
        ("folder", Path.touch, r"can't be written \(Is a directory\)"),
        ("file", _half_and(OSError(errno.ENOSPC, "full")), r"it needs 9\.9 MB, and .* are available there"),
        ("file", _half_and(OSError(errno.EDQUOT, "full")), r"it needs 9\.9 MB, and .* are available there"),
    ],
)
def test_any_error_of_the_system_says_which_file_and_why(
    tmp_path: Path, place: str, write: Write, sentence: str
) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(MachineError, match=f"{tmp_path}/{place} .*{sentence}"):
        _save(tmp_path / place, write, needs=9_912_422)
    assert {path.name for path in tmp_path.iterdir()} == {"a file", "folder"}


def _tensor_to_open_file(path: Path) -> None:
    with path.open("wb") as file:
        torch.save(torch.zeros(1_000_000), file)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(bytes(1_000_000)),
        lambda path: np.save(path, np.zeros(1_000_000)),
        lambda path: torch.save(torch.zeros(1_000_000), path),
        _tensor_to_open_file,
    ],
)
def test_full_disk(tiny_disk: Path, write: Write) -> None:
    with pytest.raises(MachineError) as raised:
        _save(tiny_disk / "big.npy", write)
    assert str(raised.value).startswith(f"{tiny_disk / 'big.npy'} could not be written, because the disk is full")
    assert re.search(r"it needs more than \S+ kB, and 65.5 kB are available there; make room", str(raised.value))
    assert list(tiny_disk.iterdir()) == []


def test_read_only_folder(tmp_path: Path) -> None:
    _mount(tmp_path, "ro")
    try:
        with pytest.raises(
            MachineError, match=r"new/file can't be written \(Read-only file system\): check that the disk works"
        ):
            _save(tmp_path / "new" / "file", Path.touch)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_one_at_a_time_holds_the_lock_of_a_file(tmp_path: Path) -> None:
    def hold(_: int) -> None:
        with locked(tmp_path / "file"):
            (tmp_path / "alone").mkdir()
            time.sleep(0.005)
            (tmp_path / "alone").rmdir()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(hold, range(15)))
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_another_user_has_left_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for relative paths, since the folders above it are closed to others
    Path(".file.lock").touch(0o444)
    user = os.geteuid()
    os.chown(tmp_path, user or 65534, -1)
    os.seteuid(user or 65534)  # root may write all files
    try:
        with locked(Path("file")):
            assert os.listdir() == [".file.lock"]
        Path().chmod(0o555)
        with pytest.raises(MachineError, match=r"\(Permission denied\)"), locked(Path("file")):
            pass
    finally:
        os.seteuid(user)
    assert os.listdir() == []


def test_the_sum_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    with pytest.raises(DataError, match="/file is missing: make it again"):
        sha256(path)
    path.write_bytes(b"abc" * 100_000)
    assert sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: os.pread(-1, 1, 0))
    with pytest.raises(DataError, match="/file can't be read: Bad file descriptor"):
        sha256(path)


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (10**16, "10000.0 TB")]
)
def test_readable(size: int, words: str) -> None:
    assert readable(size) == words


# Records


def made(folder: Path, *names: str, record: str = "run.json") -> Path:
    """Write files and the record of a job that has made them, and return the first file."""
    for name in names:
        (folder / name).write_text(f"content of {name}")
    outputs = {f"output {number}": f"elsewhere/{name}" for number, name in enumerate(names)}
    sums = {key: sha256(folder / Path(path).name) for key, path in outputs.items()}
    whole = {"outputs": outputs, "sha256": {"inputs": {}, "outputs": sums}, "wall_time_s": 0.1}
    records.write(folder / record, whole)
    return folder / names[0]


def tried(function: Callable[[Path], Any], path: Path) -> tuple[Any, str]:
    """Return the result of a function on a file, and the sentence of its DataError."""
    try:
        return function(path), ""
    except DataError as error:
        return None, str(error)


def test_a_file_that_is_whole_is_known_by_its_name_wherever_the_folder_lies(tmp_path: Path) -> None:
    path = made(tmp_path, "pretrained.pt", "metrics.csv")
    assert records.checked(path) == records.content(path) == sha256(path)
    assert records.producer(path) == (tmp_path / "run.json", sha256(path))


def test_an_unfinished_record_of_a_killed_job_says_nothing(tmp_path: Path) -> None:
    path = made(tmp_path, "metrics.csv", record=".1a2b3c4d.run.json")
    path.write_text("of the next attempt")
    assert records.producer(path) is None
    assert records.checked(made(tmp_path, "metrics.csv")) == sha256(path)


def test_an_address_with_a_password_is_no_change_of_the_settings(tmp_path: Path) -> None:
    config = {"source": {"urls": ["https://me:secret@host/file"]}}
    done = {"state": "done", "config": config, "code": None, "outputs": {}, "sha256": {"inputs": {}, "outputs": {}}}
    records.write(tmp_path / "run.json", done)
    assert "secret" not in (tmp_path / "run.json").read_text()
    assert records.stale(tmp_path / "run.json", config, None, {}) is None
    other = {"source": {"urls": ["https://me:secret@host/other"]}}
    assert records.stale(tmp_path / "run.json", other, None, {}) == "its settings have changed"


def test_jobs_that_share_a_folder_have_records_of_their_own(tmp_path: Path) -> None:
    table, views = made(tmp_path, "metrics.csv"), made(tmp_path, "views.metrics.csv", record="views.run.json")
    assert records.producer(table) == (tmp_path / "run.json", sha256(table))
    assert records.producer(views) == (tmp_path / "views.run.json", sha256(views))
    (tmp_path / "run.json").write_text("{")
    assert records.checked(views) == sha256(views), "another job's record is none of its business"
    found, error = tried(records.checked, table)
    assert found is None
    assert error.startswith(f"whether {table} is what its job left can't be told: {tmp_path}/run.json is not the")


@pytest.mark.parametrize("own", ["run.json", "metrics.csv.run.json"])
def test_a_copy_of_a_record_beside_it_does_not_count(own: str, tmp_path: Path) -> None:
    path = made(tmp_path, "metrics.csv", record=own)
    records.write(tmp_path / "before.run.json", {"outputs": {"it": path.name}, "sha256": {"outputs": {"it": "0"}}})
    assert records.producer(path) == (tmp_path / own, sha256(path))


def test_every_bit_of_a_small_file_counts(tmp_path: Path) -> None:
    path = made(tmp_path, "metrics.csv")
    content = path.read_bytes()
    for place, byte in enumerate(content):
        flipped = [content[:place] + bytes([byte ^ 1 << bit]) + content[place + 1 :] for bit in range(8)]
        for altered in (*flipped, content[:place]):
            path.write_bytes(altered)
            found, error = tried(records.checked, path)
            assert found is None
            assert error.startswith(f"{path} is not what its job left: ")
            assert f" in {tmp_path}/run.json" in error


def test_a_record_that_is_cut_or_altered_is_said_or_means_the_same(tmp_path: Path) -> None:
    path = made(tmp_path, "metrics.csv")
    record = tmp_path / "run.json"
    content, whole = record.read_bytes(), records.read(record)
    refused = 0
    for place, byte in enumerate(content):
        for altered in (content[:place], content[:place] + bytes([byte ^ 1]) + content[place + 1 :]):
            record.write_bytes(altered)
            found, error = tried(records.read, record)
            assert found == whole or str(record) in error
            refused += bool(error)
            found, error = tried(records.checked, path)
            assert found in (sha256(path), None)
            assert not error or (str(record) in error and str(path) in error)
    assert refused > 1.5 * len(content)


def test_a_record_is_an_input_too(tmp_path: Path) -> None:
    made(tmp_path, "metrics.csv")
    record = tmp_path / "run.json"
    first = records.checked(record)
    assert first is not None
    assert records.content(record) == first
    record.write_text(record.read_text().replace("0.1", "0.2"))
    assert f"{record} has been altered since its job wrote it" in tried(records.checked, record)[1]


@pytest.mark.parametrize("content", [None, '{"outputs": {"a": "metrics.csv"}, "state": "done"}'])
def test_without_a_record_with_sums_nothing_is_known(content: str | None, tmp_path: Path) -> None:
    path = made(tmp_path, "metrics.csv")
    (tmp_path / "run.json").unlink()
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    assert records.checked(path) is None
    assert records.content(path) == sha256(path)
