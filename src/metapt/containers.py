"""Files that carry their own checksums: gzip (CRC-32 and length of what it holds, at its end) and zip (CRC-32 of each member)."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from pathlib import Path
from typing import Literal

from metapt.fetching import HTML

Container = Literal["gzip", "zip"]

HEAD = 512
"""Bytes of a file's start that tell what it is."""

_MAGIC: dict[Container, bytes] = {"gzip": b"\x1f\x8b", "zip": b"PK\x03\x04"}
_CHUNK = 1 << 20
_CUT = "cut"


def wrong_start(head: bytes, container: Container) -> str | None:
    """What is wrong with the first bytes of a file (none where nothing has come), in words, or None.

    >>> wrong_start(b"<html>", "gzip")
    'an HTML page (of a log-in, or of an error) instead of the file'
    """
    if HTML.match(head):
        return "an HTML page (of a log-in, or of an error) instead of the file"
    magic = _MAGIC[container]
    if head[: len(magic)] == magic:
        return None
    return f"{_CUT}: it has {len(head)} bytes" if magic.startswith(head) else f"no {container} file"


def fault(path: Path, container: Container) -> str | None:
    """What is wrong with a file, which is read through to its end in constant memory; in words, or None if it is whole."""
    with path.open("rb") as file:
        if (wrong := wrong_start(file.read(HEAD), container)) is not None:
            return wrong
    try:
        if container == "zip":
            return _read_zip(path)
        with gzip.open(path, "rb") as file:
            while file.read(_CHUNK):
                pass
    except (gzip.BadGzipFile, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        return f"altered: {error}"
    except EOFError:
        return f"{_CUT}: it ends too early"
    return None


def is_cut(wrong: str) -> bool:
    """Whether the rest of the file may mend what `fault` has found.

    >>> is_cut("cut: it ends too early"), is_cut("no gzip file")
    (True, False)
    """
    return wrong.startswith(_CUT)


def _read_zip(path: Path) -> str | None:
    if not zipfile.is_zipfile(path):
        return f"{_CUT}: it has no directory at its end"
    with zipfile.ZipFile(path) as file:
        bad = file.testzip()
    return None if bad is None else f"altered: the checksum (CRC-32) of {bad} in it is another"
