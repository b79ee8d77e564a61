"""Verify files by size and sums (published or in the file itself, such as CRC-32), and read lists of sums."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import zipfile
import zlib
from typing import BinaryIO

from metapt.fetching import Cut, Failure
from metapt.fetching.source import Listed, SourceFile

_HTML = re.compile(rb"\s*(<!doctype html|<html)", re.IGNORECASE)
_MAGIC = {"gzip": b"\x1f\x8b", "zip": b"PK\x03\x04", None: b""}
_SUM = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")
_KINDS = (".dat", ".hea")


def check_start(head: bytes | None, size: int | None, file: SourceFile | Listed) -> None:
    """Check the first bytes of a file and its size, where they are known.

    Raises Failure if they are not those of the file.
    """
    magic = _MAGIC[file.container]
    if _HTML.match(head or b""):
        raise Failure("an HTML page (of a log-in, or of an error) instead of the file")
    if size is not None and size > file.limit:
        raise Failure(f"overlong: more than {file.limit} bytes")
    if size is not None and size < (file.size or 0):
        raise Failure(f"cut: got {size} of {file.size} bytes")
    if head is not None and not head.startswith(magic):
        raise Cut(f"cut: it has {len(head)} bytes") if magic.startswith(head) else Failure(f"no {file.container} file")


def check_file(opened: BinaryIO, file: SourceFile | Listed) -> None:
    """Check that an open file has the size and sums of `file`.

    Raises Cut if more bytes may complete it. Raises Failure if it is another file, or altered.
    """
    check_start(opened.read(512), opened.seek(0, os.SEEK_END), file)
    opened.seek(0)
    if isinstance(file, Listed):
        read_sums(opened, file)
        return
    try:
        if file.container == "gzip":
            with gzip.open(opened) as content:
                while content.read(1 << 20):
                    pass
        elif file.container == "zip" and not zipfile.is_zipfile(opened):
            raise Cut("cut: it has no directory at its end")
        elif file.container == "zip" and (bad := zipfile.ZipFile(opened).testzip()) is not None:
            raise Failure(f"altered: the checksum (CRC-32) of {bad} in it is another")
    except (gzip.BadGzipFile, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise Failure(f"altered: {error}") from error
    except EOFError as error:
        raise Cut("cut: it ends too early") from error
    md5 = hashlib.md5(usedforsecurity=False)  # against accidents, not against forgery
    for kind, expected, digest in (("SHA-256", file.sha256, hashlib.sha256()), ("MD5", file.md5, md5)):
        opened.seek(0)
        while expected is not None and (chunk := opened.read(1 << 18)):
            digest.update(chunk)
        if expected is not None and (got := digest.hexdigest()) != expected:
            said = f"altered: its checksum ({kind}) is {got[:12]}… instead of {expected[:12]}…"
            raise Cut(f"cut or {said}") if file.size is None else Failure(said)


def read_sums(opened: BinaryIO, listed: Listed) -> dict[str, str]:
    """Return name -> SHA-256 (hexadecimal) of the listed files and records, from a list in the format of `sha256sum`.

    Raises Failure if it is not such a list.
    """
    try:
        lines = opened.read().decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise Failure("no list of SHA-256 sums: not a text in UTF-8") from error
    sums: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if (match := _SUM.fullmatch(line)) is None:
            raise Failure(f"no list of SHA-256 sums: its line {number} is not a SHA-256 and a name")
        digest, name = match.groups()
        if name in listed.files or (name.startswith(listed.records) and name.endswith(_KINDS)):
            if sums.setdefault(name, digest) != digest:
                raise Failure(f"it has two sums of {name}")
            if os.path.normpath(name) != name or name.startswith(("/", "..")) or "\\" in name or not name.isprintable():
                raise Failure(f"the name {name!r} in it is not one within the folder")
    if missing := set(listed.files).difference(sums):
        raise Failure(f"it does not list {', '.join(sorted(missing))}")
    signals, headers = ({name.removesuffix(kind) for name in sums if name.endswith(kind)} for kind in _KINDS)
    if not signals:
        raise Failure(f"it lists no {listed.records}")
    if signals != headers:
        raise Failure(f"it lists only one of {' and '.join(min(signals ^ headers) + kind for kind in _KINDS)}")
    return sums
