"""The stage that fetches the files of a public source, which is an entry of `sources.yaml`.

Files come from folders and servers, none of which is trusted: each file is bounded in size and time, and verified.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import logging
import os
import re
import secrets
import time
import zipfile
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from io import BufferedRandom, BufferedReader, BytesIO
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeAlias
from urllib.parse import quote, unquote, urlsplit

import httpx
from pydantic import BaseModel, Field, HttpUrl, PlainValidator, TypeAdapter, model_validator
from tqdm import tqdm

import metapt
from metapt.errors import DataError, MachineError
from metapt.files import atomic_path, causes, explained, locked, move_into_place, reading
from metapt.machine import Machine
from metapt.sections import JobSettings

log = logging.getLogger(__name__)

TIMEOUT = 30.0  # seconds without a byte, and for the whole head of an answer
PAUSES = (1.0, 2.0, 4.0)  # seconds before each further request, where a server gave no answer or only a part
RATE = 100.0  # least bytes per second after the first `TIMEOUT` seconds

_AT_ONCE = 8  # small files that are fetched at the same time
_HTML = re.compile(rb"\s*(<!doctype html|<html)", re.IGNORECASE)
_PART, _TRY_LATER = 206, {408, 425, 429, 500, 502, 503, 504}


class _Failure(Exception):
    """A place did not give a file; the message is a part of a sentence about all places."""


class _Absent(_Failure):
    """The place does not have the file, or refuses it."""


class _NoAnswer(_Failure):
    """The place could not be reached, or is out of order."""


class _Cut(_Failure):
    """Only a part arrived; another attempt may bring the rest."""


def place_of(text: str) -> Path | str:
    """Return the folder or http(s) address that a text names.

    Raises ValueError if the text is illegal; the message does not repeat it.
    """
    scheme, separator, rest = text.partition("://")
    with suppress(ValueError, RuntimeError):  # RuntimeError: the user has no home
        if text.strip() and text.isprintable() and not separator:
            return Path(text).expanduser()
        if scheme.lower() == "file" and rest.startswith("/"):
            return Path(unquote(rest))
        if scheme.lower() in ("http", "https") and text.isprintable():
            url = TypeAdapter(HttpUrl).validate_python(text)
            (url.host or "").encode("idna")  # raises for empty labels, as in a..b
            return str(url)
    raise ValueError("legal are a folder, file:///folder, http://host/… and https://host/…")


_Place: TypeAlias = Path | str  # a local file or folder, or an http(s) address
_Places: TypeAlias = tuple[Annotated[_Place, PlainValidator(place_of)], ...]
_Opened: TypeAlias = BufferedReader | BufferedRandom | BytesIO


class SourceFile(BaseModel, extra="forbid", frozen=True):
    """What a file is verified by, and the publisher's addresses."""

    at_most: Annotated[int, Field(gt=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    container: Literal["gzip", "zip"] | None = None
    urls: _Places = ()

    @model_validator(mode="after")
    def _is_verified(self) -> SourceFile:
        if (self.container is None) == (self.sha256 is None):
            raise ValueError("needed is either sha256 or a container")
        return self

    def check(self, opened: _Opened) -> None:
        """Check the sum of an open file, or those in it. Raises _Failure."""
        try:
            if self.container == "zip" and (bad := zipfile.ZipFile(opened).testzip()) is not None:
                raise _Failure(f"altered: the checksum (CRC-32) of {bad} in it is another")
            if self.container == "gzip":
                with gzip.open(opened) as content:
                    if not sum(map(len, iter(partial(content.read, 1 << 20), b""))):
                        raise _Failure("cut: it has no content")
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise _Failure(f"cut or altered: {error}") from error
        if self.sha256 is not None and (got := hashlib.file_digest(opened, "sha256").hexdigest()) != self.sha256:
            raise _Failure(f"cut or altered: its SHA-256 is {got[:12]}… instead of {self.sha256[:12]}…")


class Listed(BaseModel, extra="forbid", frozen=True):
    """Many small files of a source, and the list of their sums."""

    at_most: ClassVar[int] = 1 << 26  # bytes of the list, and of each file

    sums: str
    files: tuple[str, ...] = ()
    records: str

    def check(self, opened: _Opened) -> dict[str, str]:
        """Return name -> SHA-256 of the files and records, from a list as `sha256sum` makes it. Raises _Failure."""
        text = opened.read().decode("utf-8-sig", "replace")
        found = re.findall(r"^([0-9a-f]{64}) [ *](\S.*?)\r?$", text, re.MULTILINE)
        if len(found) != len(text.splitlines()):
            raise _Failure("no list of SHA-256 sums, or cut: it has lines that are not a SHA-256 and a name")
        kinds = (".dat", ".hea")
        stems = {name[:-4] for _, name in found if name.startswith(self.records) and name.endswith(kinds)}
        wanted = {*self.files, *(stem + kind for stem in stems or {self.records} for kind in kinds)}
        sums = {name: digest for digest, name in found if name in wanted}
        if missing := wanted.difference(sums):
            raise _Failure(f"it does not list {min(missing)}")
        if outside := [name for name in sums if ".." in name or "\\" in name or not name.isprintable()]:
            raise _Failure(f"the name {outside[0]!r} in it is not one within the folder")
        return sums


class Source(BaseModel, frozen=True):
    """An entry of sources.yaml, without what is said there for people."""

    name: str
    version: str
    urls: _Places = ()
    files: dict[str, SourceFile] = {}
    listed: Listed | None = None

    def places(self, name: str, mirrors: Sequence[_Place]) -> list[_Place]:
        """Return the possible places of the file `name`: the mirrors' folders of this source, mirrors, the publishers.

        Lists of sums do not show their version, so a mirror must have them in the folder with the source's name.
        """
        folders = [folder for mirror in mirrors for folder in (_within(mirror, self.name), mirror)]
        if self.listed is not None and name == self.listed.sums:
            folders = folders[::2]
        own = self.files[name].urls if name in self.files else ()
        return [_within(folder, name) for folder in (*folders, *(() if own else self.urls))] + list(own)


def _within(folder: _Place, name: str) -> _Place:
    return folder / name if isinstance(folder, Path) else f"{folder.rstrip('/')}/{quote(name)}"


class Download(JobSettings):
    """A source, and mirrors, which are tried first and hold a file directly or in a folder with the source's name."""

    source: Source
    mirrors: _Places = ()


def run(settings: Download, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Fetch the files that `outputs` names; files that are already complete are kept.

    The output `records.json` stands for all records, which are saved to its folder. It is written last, with `version`
    and `records`, their sorted names without suffix. A job declares only this one of the records' files, since
    Snakemake removes the declared outputs of a failed job, and a later job continues with the others.

    Raises DataError if no place has a complete file, and MachineError if none could be reached.
    """
    paths = {path.name: path for path in outputs.values()}
    with ExitStack() as locks:  # taken before the event loop, in which Ctrl-C would not end a wait
        for name in sorted(paths.keys() & settings.source.files.keys()):
            locks.enter_context(locked(paths[name]))  # all continue the same part of it
        asyncio.run(_fetch_all(settings, paths))


async def _fetch_all(settings: Download, paths: dict[str, Path]) -> None:
    source = settings.source
    headers = {"User-Agent": f"metapt/{metapt.__version__}", "Accept-Encoding": "identity"}
    async with httpx.AsyncClient(headers=headers, timeout=TIMEOUT) as client:
        fetcher = _Fetcher(source, settings.mirrors, client)
        for name in [name for name in paths if name in source.files]:
            await fetcher.fetch(name, source.files[name], paths.pop(name))
        if source.listed is not None and paths:
            await fetcher.fetch_listed(source.listed, paths)


@dataclass(frozen=True)
class _Fetcher:
    """Fetch files of a source from the first place that has them complete; `unreachable` maps hosts to errors."""

    source: Source
    mirrors: Sequence[_Place]
    client: httpx.AsyncClient
    unreachable: dict[str, str] = field(default_factory=dict)

    async def fetch_listed(self, listed: Listed, paths: dict[str, Path]) -> None:
        """Fetch the small files in `paths` side by side, and the list of their sums."""
        path = next(iter(paths.values())).parent / listed.sums
        await self.fetch(listed.sums, listed, path, small=True)
        with reading(path) as opened:
            sums = listed.check(opened)
        records = paths.pop("records.json", None)  # which stands for all records
        if records is not None:
            records.unlink(missing_ok=True)
            paths |= {name: records.parent / name for name in sums if name not in listed.files}
        left = iter(tqdm(paths.items(), "files", unit="", disable=None))

        async def work() -> None:
            for name, path in left:
                await self.fetch(name, SourceFile(sha256=sums[name], at_most=listed.at_most), path, small=True)

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
        if records is not None:
            names = sorted(name.removesuffix(".dat") for name in sums if name.endswith(".dat"))
            content = json.dumps({"version": self.source.version, "records": names}, indent=0)
            with atomic_path(records) as temporary:
                temporary.write_text(f"{content}\n", encoding="utf-8")

    async def fetch(self, name: str, file: SourceFile | Listed, path: Path, small: bool = False) -> None:
        """Fetch one file, unless it is already there; raises as `run`.

        A small file is checked in memory and not forced to the disk: a later check shows if it is cut after a crash.
        """
        failures: list[tuple[_Place, _Failure]] = []
        if path.is_file():
            try:
                with reading(path) as opened:
                    file.check(opened)
                return
            except _Failure as failure:
                log.warning("%s is there, but %s; it is fetched again", path, failure)
                failures.append((path, failure))
        for place in self.source.places(name, self.mirrors):
            try:
                await self._patiently(place, file, path, small)
                log.log(logging.DEBUG if small else logging.INFO, "%s: fetched from %s", path, place)
                return
            except _Failure as failure:
                log.log(logging.DEBUG if isinstance(failure, _Absent) else logging.WARNING, "%s: %s", place, failure)
                failures.append((place, failure))
        kinds = {type(failure) for _, failure in failures}
        tried = "; ".join(f"{place} ({failure})" for place, failure in failures) or "no place is known"
        raise (MachineError if _NoAnswer in kinds and kinds <= {_NoAnswer, _Absent} else DataError)(
            f"{path.name} could not be fetched: {tried}. Name a folder or an address that has it under data.mirrors in "
            f"the config, or put the file at {path} by hand."
        )

    async def _patiently(self, place: _Place, file: SourceFile | Listed, path: Path, small: bool) -> None:
        """Fetch a file to `<path>.part` from where an earlier part ends, check it, and move it to `path`.

        The part may come from an earlier run or another place. A small file has no earlier part; its part is a hidden
        file with a random name, since the jobs of one source fetch the same list. Several attempts are made; a host
        that answered none of them is not asked again.
        """
        part = path.with_name(f".{secrets.token_hex(4)}.{path.name}" if small else f"{path.name}.part")
        host = urlsplit(str(place)).netloc
        for pause in (*PAUSES, None):
            if host in self.unreachable:
                raise _NoAnswer(self.unreachable[host])
            begun = part.stat().st_size if part.is_file() else 0
            try:
                start, size, pieces = await self._answer(place, begun if begun < file.at_most else 0)
                async with aclosing(pieces):
                    with explained(path, part, needs=size):
                        await _save(start, size, pieces, file, part, small)
                        part.replace(path) if small else move_into_place(part, path)
                return
            except (_NoAnswer, _Cut) as failure:
                if pause is None:
                    if isinstance(failure, _NoAnswer):
                        self.unreachable[host] = str(failure)
                    raise
                log.info("%s: %s; it is asked again", place, failure)
                await asyncio.sleep(pause)

    async def _answer(self, place: _Place, start: int) -> tuple[int, int | None, AsyncGenerator[bytes, None]]:
        """Request the file at `place` once, and return where its bytes start, its size, if given, and these bytes.

        They start at `start`, or at 0. Raises _Failure if the file is not there, or the server does not answer.
        """
        if isinstance(place, Path):
            if not os.path.isfile(place):
                raise _Absent("no such file")
            return start, place.stat().st_size, _read(place, start)
        try:
            async with asyncio.timeout(TIMEOUT):  # that of httpx applies to each read
                response = await self._ask(place, start)
        except (httpx.TimeoutException, TimeoutError) as error:
            raise _NoAnswer(f"no answer within {TIMEOUT:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # ValueError: a malformed host
            *_, first = causes(error)  # the others say less
            reason = re.sub(r"^.Errno -?[0-9]+. ", "", str(first)) or type(first).__name__
            raise _NoAnswer(f"no network or no such host: {reason}") from error
        start = start if response.status_code == _PART else 0
        length = response.headers.get("Content-Length")
        return start, None if length is None else start + int(length), _receive(response)

    async def _ask(self, url: str, start: int) -> httpx.Response:
        """Return a response with the file, from its first byte on if the server can't continue from `start`."""
        request = self.client.build_request("GET", url, headers={"Range": f"bytes={start}-"} if start else None)
        for _ in range(10):  # httpx itself would read redirections to their end
            response = await self.client.send(request, stream=True)
            code, part = response.status_code, response.headers.get("Content-Range", "")
            if part.startswith(f"bytes {start}-") if code == _PART else response.is_success:
                return response
            await response.aclose()
            if start and code in (_PART, 416):
                return await self._ask(url, 0)
            if response.next_request is None:
                raise (_NoAnswer if code in _TRY_LATER else _Absent)(f"HTTP {code} {response.reason_phrase}".rstrip())
            request = response.next_request
        raise _Absent("too many redirections")


async def _read(path: Path, start: int) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a file; what goes wrong is the place's fault, not that of the file they are written to."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            while piece := file.read(1 << 18):
                yield piece
    except OSError as error:
        raise _Failure(f"can't be read: {error.strerror}") from error


async def _receive(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of the response until the connection ends."""
    began = time.monotonic()
    try:
        async with aclosing(response):
            async for piece in response.aiter_raw():
                yield piece
                got, seconds = response.num_bytes_downloaded, time.monotonic() - began
                if got < RATE * (seconds - TIMEOUT):
                    raise _Cut(f"too slow: {got} bytes in {seconds:.1f} s")
    except httpx.TimeoutException as error:
        raise _NoAnswer(f"no answer within {TIMEOUT:g} s") from error
    except httpx.HTTPError as error:
        log.info("the connection broke: %s", error)


async def _save(
    start: int, size: int | None, pieces: AsyncIterator[bytes], file: SourceFile | Listed, part: Path, small: bool
) -> None:
    """Write the bytes from `start` on to `part`, and check the complete file, whose size is known or not.

    Raises _Failure. What is no answer to the request is refused before anything is written. A wrong file is removed;
    where an earlier part may have been wrong, _Cut says that the file may be fetched again.
    """
    got, piece = start, await anext(pieces, b"")
    if start == 0 and _HTML.match(piece):
        raise _Failure("an HTML page (of a log-in, or of an error) instead of the file")
    overlong = _Failure(f"overlong: more than {file.at_most} bytes")
    if size is not None and size > file.at_most:
        raise overlong
    part.parent.mkdir(parents=True, exist_ok=True)
    with (
        BytesIO() if small else part.open("ab+" if start else "wb+") as out,
        tqdm(total=size, initial=got, desc=part.stem, unit="B", unit_scale=True, disable=small or None) as bar,
    ):
        while piece and got <= file.at_most:
            out.write(piece)
            got += len(piece)
            bar.update(len(piece))
            piece = await anext(pieces, b"")
        if got < (size or 0):
            raise _Cut(f"cut: got {got} of {size} bytes")
        out.seek(0)
        try:
            if got > file.at_most:
                raise overlong
            file.check(out)
        except _Failure as failure:
            may_be_cut = size is None and failure is not overlong
            if not may_be_cut:
                part.unlink(missing_ok=True)
            raise (_Cut if start or may_be_cut else _Failure)(str(failure)) from failure
        if isinstance(out, BytesIO):
            part.write_bytes(out.getvalue())
