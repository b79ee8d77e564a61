"""What is wrong with a file, in words: with its size and sums, or, where none are published, with those in it.

A gzip file has a CRC-32 and the length of what it holds at its end, a zip file the CRC-32 of each member.
"""

from __future__ import annotations

import gzip
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from metapt.fetching.source import Container, SourceFile
from metapt.files import md5, sha256

HEAD = 512
"""Bytes of a file's start that tell what it is."""

HTML = re.compile(rb"\s*(<!doctype html|<html)", re.IGNORECASE)

Wrong = Callable[[bytes], str | None]
"""Says in words what is wrong with a file's content, or None."""

_MAGIC: dict[Container, bytes] = {"gzip": b"\x1f\x8b", "zip": b"PK\x03\x04"}
_CHUNK = 1 << 20
_CUT = "cut"


def fault(path: Path, file: SourceFile) -> str | None:
    """What is wrong with the bytes at `path`, in words, or None if they are the file.

    They are read through to their end, in constant memory, unless their number is wrong.
    """
    size = path.stat().st_size
    if not file.fits(size):
        with path.open("rb") as opened:
            return wrong_size(size, opened.read(HEAD), file.limit)
    if file.container is not None:
        return _wrong_container(path, file.container)
    for kind, expected, digest in (("SHA-256", file.sha256, sha256), ("MD5", file.md5, md5)):
        if expected is not None and (got := digest(path)) != expected:
            return f"altered: its checksum ({kind}) is {got[:12]}… instead of {expected[:12]}…"
    return None


def wrong_size(size: int, head: bytes, limit: int) -> str:
    """What it means that a file which begins with `head` has `size` bytes instead of `limit`, or more than these.

    >>> wrong_size(3, b"...", 5), wrong_size(7, b"...", 5)
    ('cut: got 3 of 5 bytes', 'overlong: more than 5 bytes')
    """
    if HTML.match(head):
        return "an HTML page (of a log-in, or of an error) instead of the file"
    if size < limit:
        return f"{_CUT}: got {size} of {limit} bytes"
    return f"overlong: more than {limit} bytes"


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


def is_cut(wrong: str) -> bool:
    """Whether the rest of the file may mend what `fault` has found.

    >>> is_cut("cut: it ends too early"), is_cut("no gzip file")
    (True, False)
    """
    return wrong.startswith(_CUT)


def _wrong_container(path: Path, container: Container) -> str | None:
    with path.open("rb") as file:
        if (wrong := wrong_start(file.read(HEAD), container)) is not None:
            return wrong
    try:
        if container == "zip":
            return _wrong_zip(path)
        with gzip.open(path, "rb") as file:
            while file.read(_CHUNK):
                pass
    except (gzip.BadGzipFile, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        return f"altered: {error}"
    except EOFError:
        return f"{_CUT}: it ends too early"
    return None


def _wrong_zip(path: Path) -> str | None:
    if not zipfile.is_zipfile(path):
        return f"{_CUT}: it has no directory at its end"
    with zipfile.ZipFile(path) as file:
        bad = file.testzip()
    return None if bad is None else f"altered: the checksum (CRC-32) of {bad} in it is another"
