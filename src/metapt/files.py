"""Atomic writing of files, sentences for files that can't be read or written, and checksums."""

from __future__ import annotations

import csv
import errno
import gzip
import hashlib
import io
import logging
import os
import secrets
import shutil
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from metapt.errors import DataError, MachineError

log = logging.getLogger(__name__)

_FULL = {errno.ENOSPC, errno.EDQUOT}
_NO_ROOM = 4096  # bytes; less than one block

FETCH_AGAIN = "remove it and download it again, or copy a whole one there"
"""What to do about a raw file that is damaged."""


@contextmanager
def atomic_path(path: Path, needs: int | None = None) -> Iterator[Path]:
    """Yield an empty file beside `path`, which replaces it when the block ends without an exception, else is removed.

    Folders are created. `needs`, the size of the whole file in bytes, is for the message when the disk is full. Raises
    MachineError in place of any error of the system in the block, such as a full disk.
    """
    temporary = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    try:
        with explained(path, temporary, needs):
            temporary.parent.mkdir(parents=True, exist_ok=True)
            temporary.open("xb").close()  # mkstemp would make it private, but results are shared
            yield temporary
            move_into_place(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_csv(columns: Mapping[str, Iterable[Any]], path: Path) -> None:
    """Write columns of equal length as a CSV file in UTF-8. Raises MachineError as `atomic_path`."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *zip(*columns.values(), strict=True)])


def regular(path: str, flags: int) -> int:
    """Open a file, as the `opener` of `open`, and refuse a pipe or a device, which could hold up the reader for ever.

    Raises OSError for what is neither a file nor a folder (a folder is refused by `open`).
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", path)
    return descriptor


@contextmanager
def reading(path: Path, missing: str = "download it, or copy it there") -> Iterator[io.BufferedReader]:
    """Yield a regular file, open for reading, and turn the errors in reading it, gzipped or not, into a DataError.

    `missing` says what to do if it is not there.
    """
    try:
        with open(path, "rb", opener=regular) as file:
            yield file
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing: {missing}.") from error
    except gzip.BadGzipFile as error:
        raise DataError(f"{path} is not a whole gzip file ({error}): {FETCH_AGAIN}.") from error
    except EOFError as error:
        raise DataError(f"{path} is cut: the gzip stream ends too early; {FETCH_AGAIN}.") from error
    except zlib.error as error:
        raise DataError(f"{path} is altered: it does not decompress ({error}); {FETCH_AGAIN}.") from error
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror or error}.") from error


@contextmanager
def explained(path: Path, temporary: Path, needs: int | None = None) -> Iterator[None]:
    """Turn the system's errors in writing `temporary`, which is to become `path`, into a MachineError.

    When the disk is full, `temporary` is removed.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        if _is_full(error, temporary.parent):
            raise _full_disk(path, temporary, needs) from error
        cause = next((each for each in causes(error) if isinstance(each, OSError)), None)
        if cause is None:
            raise
        reason = cause.strerror or cause
        other = os.fsdecode(cause.filename or path)
        if Path(other) not in {path, temporary, *temporary.parents}:
            raise MachineError(f"{path} can't be written, because {other} can't be used ({reason}).") from error
        raise MachineError(
            f"{path} can't be written ({reason}): check that the disk works and that this user has the right to write "
            "there, or name another folder in the config."
        ) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process holds the lock of a file, where the file system has locks, and hold it."""
    import fcntl  # which Windows lacks

    lock, held = path.with_name(f".{path.name}.lock"), False
    while not held:
        with explained(path, lock):
            lock.parent.mkdir(parents=True, exist_ok=True)
            try:
                file: io.BufferedIOBase = lock.open("ab")  # over NFS no other one can be locked
            except PermissionError:
                if not lock.exists():
                    raise
                file = lock.open("rb")  # of another user who has left it
        with file:
            with suppress(OSError):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    log.warning("%s is being fetched by another process; this one waits for it", path)
                    fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):  # it was removed by who held it, and there may be another one
                held = os.path.samestat(os.fstat(file.fileno()), lock.stat())
            if held:
                try:
                    yield
                finally:
                    with suppress(OSError):
                        lock.unlink()


def move_into_place(temporary: Path, path: Path) -> None:
    """Sync `temporary` to the disk and rename it to `path`, in the same folder, so that a crash leaves no short file.

    The folder is synced too, so that the new name survives a crash.
    """
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    with suppress(OSError):  # not every file system can sync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, in constant memory. Raises DataError if it can't be read."""
    with reading(path, "make it again") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def readable(size: int) -> str:
    """Return a number of bytes in a form for people.

    >>> readable(512), readable(9_912_422)
    ('512 bytes', '9.9 MB')
    """
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if size >= 1000**power:
            return f"{size / 1000**power:.1f} {unit}"
    return f"{size} bytes"


def _is_full(error: BaseException, folder: Path) -> bool:
    """Return whether a write in `folder` failed for lack of space.

    NumPy and torch may lose the system's error number (torch.save raises a bare RuntimeError), so a disk without a free
    block counts too.
    """
    if any(isinstance(cause, OSError) and cause.errno in _FULL for cause in causes(error)):
        return True
    with suppress(OSError):
        return folder.is_dir() and shutil.disk_usage(folder).free < _NO_ROOM
    return False


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it came from: after a failed write torch raises another one."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _full_disk(path: Path, temporary: Path, needs: int | None) -> MachineError:
    written = temporary.stat().st_size if temporary.exists() else 0
    need = f"more than {readable(written)}" if needs is None else readable(needs)
    folder = next(folder for folder in path.absolute().parents if folder.is_dir())
    # Before the removal, since torch keeps the file open after an error and its space is not free then.
    available = shutil.disk_usage(folder).free + written
    with suppress(OSError):
        temporary.unlink()
    return MachineError(
        f"{path} could not be written, because the disk is full or a quota is used up: it needs {need}, and "
        f"{readable(available)} are available there; make room, or name a folder on another disk in the config."
    )
