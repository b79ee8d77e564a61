"""Atomic writing of files, and the sentences of its errors."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from metapt.errors import DataError, MachineError
from metapt.files import atomic_path, readable, sha256


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


def test_the_file_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "table.csv.gz"
    with atomic_path(path) as temporary:
        assert temporary.parent == path.parent
        assert temporary.suffixes[-2:] == path.suffixes
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


def test_the_file_has_the_rights_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with atomic_path(tmp_path / "atomic"):
        pass
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


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


def _save(path: Path, write: Callable[[Path], object], needs: int | None = None) -> None:
    with atomic_path(path, needs) as temporary:
        write(temporary)


def _half_and(exception: BaseException) -> Callable[[Path], None]:
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
    ("write", "reason"),
    [
        (_half_and(OSError(errno.EIO, os.strerror(errno.EIO))), "Input/output error"),
        (_half_and(OSError("458752 written")), "458752 written"),
        (lambda path: torch.save(torch.zeros(1000), Broken()), "Input/output error"),
        (lambda path: path.with_name("absent").replace(path), "No such file or directory"),
    ],
    ids=["nameless", "without number", "torch", "renaming"],
)
def test_any_error_of_the_system_says_which_file_and_why(
    tmp_path: Path, write: Callable[[Path], None], reason: str
) -> None:
    with pytest.raises(MachineError, match=f"{tmp_path}/file can't be written.*{reason}"):
        _save(tmp_path / "file", write)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_read_has_no_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="/file is missing: make it again"):
        sha256(tmp_path / "file")
    (tmp_path / "file").touch()
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: os.pread(-1, 1, 0))
    with pytest.raises(DataError, match="/file can't be read: Bad file descriptor"):
        sha256(tmp_path / "file")


def _bytes(path: Path) -> None:
    path.write_bytes(bytes(1_000_000))


def _array(path: Path) -> None:
    np.save(path, np.zeros(1_000_000))


def _tensor(path: Path) -> None:
    torch.save(torch.zeros(1_000_000), path)


def _tensor_to_open_file(path: Path) -> None:
    with path.open("wb") as file:
        torch.save(torch.zeros(1_000_000), file)


@pytest.mark.parametrize("write", [_bytes, _array, _tensor, _tensor_to_open_file])
def test_full_disk(tiny_disk: Path, write: Callable[[Path], None]) -> None:
    with pytest.raises(MachineError) as raised:
        _save(tiny_disk / "big.npy", write)
    assert str(raised.value).startswith(f"{tiny_disk / 'big.npy'} could not be written, because the disk is full")
    assert re.search(r"it needs more than \S+ kB, and 65.5 kB are available there; make room", str(raised.value))
    assert list(tiny_disk.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_by_its_error_number(tmp_path: Path, number: int) -> None:
    with pytest.raises(MachineError, match=r"it needs 9\.9 MB, and .* are available there"):
        _save(tmp_path / "file", _half_and(OSError(number, os.strerror(number))), needs=9_912_422)
    assert list(tmp_path.iterdir()) == []


def test_read_only_folder(tmp_path: Path) -> None:
    _mount(tmp_path, "ro")
    try:
        with pytest.raises(
            MachineError, match=r"new/file can't be written \(Read-only file system\): check that the disk works"
        ):
            _save(tmp_path / "new" / "file", _bytes)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(MachineError, match=r"taken/file can't be written \("):
        _save(tmp_path / "taken" / "file", _bytes)


def test_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(MachineError, match=r"file can't be written \(Is a directory\)"):
        _save(tmp_path / "file", _bytes)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_an_error_about_another_file_names_both(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"/file can't be written, because .*/absent can't be used \(No such file"):
        _save(tmp_path / "file", lambda _: (tmp_path / "absent").read_text())
    assert list(tmp_path.iterdir()) == []


def test_the_sum_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc" * 100_000)
    assert sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (10**16, "10000.0 TB")]
)
def test_readable(size: int, words: str) -> None:
    assert readable(size) == words
