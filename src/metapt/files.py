"""Atomic writing of files, sentences for raw files that can't be read, and checksums."""

from __future__ import annotations

import csv
import errno
import gzip
import hashlib
import os
import secrets
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from metapt.errors import DataError, MachineError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_NO_ROOM = 4096  # bytes; less than one block

FETCH_AGAIN = "remove it and download it again, or copy a whole one there"
"""What to do about a raw file that is damaged."""


@contextmanager
def atomic_path(path: Path, needs: int | None = None) -> Iterator[Path]:
    """Yield an empty file beside `path`, which replaces it when the block ends without an exception, else is removed.

    Folders are created. `needs`, the size of the whole file in bytes, is for the message when the disk is full. Raises
    MachineError if the disk is full, or the folder can't be written.
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


@contextmanager
def reading_raw(path: Path) -> Iterator[None]:
    """Turn the errors in reading a raw file, gzipped or not, into a DataError."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing: download it, or copy it there.") from error
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

    When the disk is full, `temporary` is removed. Errors of other files are not changed.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        if _is_full(error, temporary.parent):
            raise _full_disk(path, temporary, needs) from error
        if (
            isinstance(error, OSError)
            and error.filename
            and Path(str(error.filename)) in {temporary, *temporary.parents}
        ):
            raise MachineError(
                f"{path} can't be written ({error.strerror}): give this user the right to write there, "
                "or name another folder in the config."
            ) from error
        raise


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
    """Return the SHA-256 of a file in hexadecimal, in constant memory."""
    with path.open("rb") as file:
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
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return True
        cause = cause.__cause__ or cause.__context__
    return folder.is_dir() and shutil.disk_usage(folder).free < _NO_ROOM


def _full_disk(path: Path, temporary: Path, needs: int | None) -> MachineError:
    written = temporary.stat().st_size if temporary.exists() else 0
    need = f"more than {readable(written)}" if needs is None else readable(needs)
    folder = next(folder for folder in path.absolute().parents if folder.is_dir())
    # Before the removal, since torch keeps the file open after an error and its space is not free then.
    available = shutil.disk_usage(folder).free + written
    temporary.unlink(missing_ok=True)
    return MachineError(
        f"{path} could not be written, because the disk is full or a quota is used up: it needs {need}, and "
        f"{readable(available)} are available there; make room, or name a folder on another disk "
        "in the config."
    )
