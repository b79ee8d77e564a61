"""Stage: fetch the files of a public source from mirrors or from the publisher, resumed, verified, and moved into place whole.

A source has few files, each with its size and sums, or many small ones that a published list of SHA-256 sums describes, or both.
A file without published sums is a gzip or zip file, which is known whole by those in it.
"""

from __future__ import annotations

import http.client
import logging
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from tqdm import tqdm

import metapt
from metapt import containers
from metapt.containers import HEAD, Container, wrong_start
from metapt.errors import ConfigError, DataError, MachineError, MetaptError
from metapt.fetching import HTML, RECORDS, Connections, Listed, Wrong, fetch_listed
from metapt.files import atomic_path, explained, md5, move_into_place, sha256

if TYPE_CHECKING:
    from metapt.stages import Machine

log = logging.getLogger(__name__)

Place = Path | str
"""A local file or folder, or an http(s) address."""

_CHUNK = 1 << 18
_TRY_LATER = {408, 425, 429, 500, 502, 503, 504}
_OUT_OF_RANGE = 416
_SMALL = 1 << 28  # bytes; what is read into memory has fewer

_Got = TypeVar("_Got")


class SourceFile(BaseModel):
    """How a file is known to be whole (size in bytes and sums, or those in it), and its own addresses if no folder holds it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: Annotated[int, Field(ge=0)] | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    md5: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = None
    container: Container | None = None
    urls: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_a_sum(self) -> SourceFile:
        known = [self.size is not None, self.sha256 is not None or self.md5 is not None, self.container is None]
        if not (all(known) or not any(known)):
            raise ValueError("a size with sha256 or md5 is needed, or a container instead of them")
        return self


class Source(BaseModel):
    """An entry of `workflow/resources/sources.yaml`, which says what the fields mean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    version: str
    licence: str
    description: str
    citation: str
    homepage: str = ""
    urls: tuple[str, ...] = ()
    files: dict[str, SourceFile] = {}
    listed: Listed | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All that can be asked for."""
        return (*self.files, *(() if self.listed is None else (*self.listed.files, RECORDS)))


@dataclass(frozen=True)
class Patience:
    """How long a server is waited for: seconds without a byte, attempts, and seconds of pause before the second, then doubled."""

    timeout: float = 30.0
    attempts: int = 4
    pause: float = 1.0


PATIENCE = Patience()


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Fetch files; one that is there already and whole is left alone.

    Args:
        config: `source`: an entry of sources.yaml; `mirrors`: folders, `file://` or `http(s)://` addresses that are tried first,
            and hold a file either directly or in a folder of the source's name.
        inputs: none.
        outputs: paths of the files that are wanted, which have the names that the source gives them. `records.json` stands for
            all records, whose files come to lie in its folder under their published names; it is written last: `version`, and
            `records`, their sorted names without suffix. It is all of them that an output declares, since Snakemake removes the
            declared outputs of a job that failed, and a later one goes on with what is there.
        machine: not used.

    Raises:
        ConfigError: an illegal address, or a file that the source doesn't have.
        DataError: no place has the file whole.
        MachineError: the places that may have it could not be reached, the disk is full, or the folder can't be written.
    """
    try:
        source = Source.model_validate(config["source"])
    except ValidationError as error:
        raise ConfigError(f"sources.yaml has an illegal entry: {error}") from error
    outputs = {path.name: path for path in outputs.values()}
    candidates = {name: places(name, source, config["mirrors"]) for name in outputs}
    unreachable: dict[str, str] = {}
    for name in candidates:
        if name in source.files:
            fetch(source.files[name], outputs[name], candidates[name], unreachable)
    if wanted := {name: outputs[name] for name in candidates if name not in source.files}:
        _fetch_listed(source, wanted, config["mirrors"], unreachable)


def places(name: str, source: Source, mirrors: list[str]) -> list[Place]:
    """Where the file `name` may lie, best first.

    Raises:
        ConfigError: an address that is neither a folder nor http, https or file; a file that the source doesn't have.
    """
    if name not in source.names:
        raise ConfigError(f"{source.name} has no file {name!r}; legal: {', '.join(source.names)}.")
    if name in source.files and (own := source.files[name].urls):
        return [_within(folder, name) for folder in _mirrored(source, mirrors)] + [_place(url, "sources.yaml") for url in own]
    return [_within(folder, name) for folder in _mirrored(source, mirrors) + _published(source)]


def _mirrored(source: Source, mirrors: list[str]) -> list[Place]:
    """Each mirror, followed by the folder of the source's name in it."""
    folders = [_place(mirror, "data.mirrors") for mirror in mirrors]
    return [place for folder in folders for place in (folder, _within(folder, source.name))]


def _published(source: Source) -> list[Place]:
    return [_place(url, "sources.yaml") for url in source.urls]


def fetch(file: SourceFile, path: Path, candidates: list[Place], unreachable: dict[str, str]) -> None:
    """Get one file from the first of `candidates` that has it whole.

    Args:
        file: its size and sums.
        path: where it belongs.
        candidates: of `places`.
        unreachable: host -> what was wrong; grows, so that a dead host is waited for once and not once a file.

    Raises:
        DataError, MachineError: as `run`.
    """
    failures: list[tuple[Place, _Failure]] = []
    if path.is_file():
        if (wrong := fault(path, file)) is None:
            log.info("%s is there already, and whole", path)
            return
        log.warning("%s is there, but %s; it is fetched again", path, wrong)
        failures.append((path, _WrongFile(wrong)))
    for place in candidates:
        try:
            if isinstance(place, Path):
                _copy(place, file, path)
            else:
                _download(place, file, path, unreachable)
        except _Failure as failure:
            log.log(logging.INFO if isinstance(failure, _Absent) else logging.WARNING, "%s: %s", place, failure)
            failures.append((place, failure))
        else:
            log.info("%s: fetched from %s", path, place)
            return
    raise _nowhere(path, failures)


def fault(path: Path, file: SourceFile) -> str | None:
    """What is wrong with the bytes at `path`, in words, or None if they are the file."""
    if file.container is not None:
        return containers.fault(path, file.container)
    if file.size is not None and (size := path.stat().st_size) != file.size:
        with path.open("rb") as opened:
            return _wrong_size(size, opened.read(HEAD), file.size)
    for kind, expected, digest in (("SHA-256", file.sha256, sha256), ("MD5", file.md5, md5)):
        if expected is not None and (got := digest(path)) != expected:
            return f"altered: its checksum ({kind}) is {got[:12]}… instead of {expected[:12]}…"
    return None


def _fetch_listed(source: Source, outputs: dict[str, Path], mirrors: list[str], unreachable: dict[str, str]) -> None:
    assert source.listed is not None
    sums = source.listed.sums
    folders = _mirrored(source, mirrors) + _published(source)
    # Nothing tells one version's list from another's, so that it is only looked for where the folder's name does.
    named = _mirrored(source, mirrors)[1::2] + _published(source)

    def content(path: Path, name: str, wrong: Wrong) -> bytes:
        return _content(path, [_within(folder, name) for folder in (named if name == sums else folders)], wrong, unreachable)

    fetch_listed(source.listed, source.version, outputs, content)


def _content(path: Path, candidates: list[Place], wrong: Wrong, unreachable: dict[str, str]) -> bytes:
    """The content of a small file that belongs to `path`, from the first of `candidates` where nothing is `wrong` with it."""
    failures: list[tuple[Place, _Failure]] = []
    for place in candidates:
        try:
            return _read_small(place, wrong, unreachable)
        except _Failure as failure:
            log.log(logging.DEBUG if isinstance(failure, _Absent) else logging.WARNING, "%s: %s", place, failure)
            failures.append((place, failure))
    raise _nowhere(path, failures)


def _read_small(place: Place, wrong: Wrong, unreachable: dict[str, str]) -> bytes:
    def attempt() -> bytes:
        content = _local(place) if isinstance(place, Path) else _remote(place)
        if (fault := wrong(content)) is not None:
            raise _Cut(fault)
        return content

    return attempt() if isinstance(place, Path) else _patiently(place, unreachable, attempt)


def _local(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _Absent("no such file") from error
    except OSError as error:
        raise _WrongFile(f"can't be read: {error.strerror}") from error


_connections = Connections()


def _remote(url: str) -> bytes:
    """Ask once, over a connection that lasts where there can be one."""
    try:
        answer = _connections.get(_quoted(url), _headers(), PATIENCE.timeout, _SMALL)
        if answer is None or 300 <= answer[0] < 400:
            with _open(url) as response:
                content = response.read(_SMALL)
                if response.length:
                    raise http.client.IncompleteRead(content, response.length)
                return content
    except http.client.IncompleteRead as error:
        raise _Cut(f"cut: got {len(error.partial)} of {len(error.partial) + (error.expected or 0)} bytes") from error
    except (OSError, http.client.HTTPException) as error:
        raise _NoAnswer(_why(error)) from error
    status, reason, content = answer
    if status != http.client.OK:
        raise _refusal(status, reason)
    return content


class _Failure(Exception):
    """Why a place did not give a file."""


class _Absent(_Failure):
    """It is not there."""


class _WrongFile(_Failure):
    """Something else is there."""


class _Cut(_WrongFile):
    """Only a part came, and another attempt may bring the rest."""


class _NoAnswer(_Failure):
    """The place could not be reached, or is out of order."""


def _place(address: str, key: str) -> Place:
    scheme, separator, _ = address.partition("://")
    if not separator:
        return Path(address).expanduser()
    try:
        parts = urlsplit(address)
        if scheme.lower() == "file" and parts.netloc in ("", "localhost"):
            return Path(unquote(parts.path))
        if scheme.lower() in ("http", "https") and parts.hostname:
            return address
    except ValueError as error:
        raise ConfigError(f"{address!r} in {key} is no address: {error}.") from error
    raise ConfigError(f"{address!r} in {key} is illegal: legal are a folder, file:///folder, http://host/… and https://host/….")


def _within(folder: Place, name: str) -> Place:
    return folder / name if isinstance(folder, Path) else f"{folder.rstrip('/')}/{quote(name)}"


def _wrong_size(size: int, head: bytes, expected: int) -> str:
    if HTML.match(head):
        return "an HTML page (of a log-in, or of an error) instead of the file"
    if size < expected:
        return f"cut: got {size} of {expected} bytes"
    return f"overlong: more than {expected} bytes"


def _nowhere(path: Path, failures: list[tuple[Place, _Failure]]) -> MetaptError:
    tried = "; ".join(f"{place} ({failure})" for place, failure in failures) or "no place is known"
    kinds = {type(failure) for _, failure in failures}
    kind = MachineError if _NoAnswer in kinds and kinds <= {_NoAnswer, _Absent} else DataError
    return kind(
        f"{path.name} could not be had: {tried}. Name a folder or an address that has it under data.mirrors in the config, "
        f"or put the file at {path} by hand."
    )


def _copy(place: Path, file: SourceFile, path: Path) -> None:
    if not place.is_file():
        raise _Absent("no such file")
    try:
        if (wrong := fault(place, file)) is not None:
            raise _WrongFile(wrong)
        with atomic_path(path, needs=file.size) as temporary:
            shutil.copyfile(place, temporary)
            if (wrong := fault(temporary, file)) is not None:
                raise _WrongFile(wrong)
    except OSError as error:
        raise _WrongFile(f"can't be read: {error.strerror}") from error


def _download(url: str, file: SourceFile, path: Path, unreachable: dict[str, str]) -> None:
    """Download in a few attempts, each of which goes on where the last one stopped."""
    _patiently(url, unreachable, lambda: _attempt(url, file, path))


def _patiently(url: str, unreachable: dict[str, str], get: Callable[[], _Got]) -> _Got:
    """What `get` returns, in a few attempts; a host that did not answer to all of them is not asked again."""
    host = urlsplit(url).netloc
    if host in unreachable:
        raise _NoAnswer(unreachable[host])
    for attempt in range(1, PATIENCE.attempts + 1):
        try:
            return get()
        except (_NoAnswer, _Cut) as failure:
            if attempt == PATIENCE.attempts:
                if isinstance(failure, _NoAnswer):
                    unreachable[host] = str(failure)
                raise
            log.info("%s: %s; attempt %d of %d", url, failure, attempt, PATIENCE.attempts)
        time.sleep(PATIENCE.pause * 2 ** (attempt - 1))
    raise AssertionError("the last attempt returns or raises")


def _attempt(url: str, file: SourceFile, path: Path) -> None:
    """Download to `<path>.part`, from where a part that an earlier attempt left ends, verify, and move into place.

    A part may come from an earlier run or another place. So it is given up only for an answer that looks like the file, and when
    the whole made from it is wrong, the file is asked for once more from its start.
    """
    part = path.with_name(f"{path.name}.part")
    start = part.stat().st_size if part.is_file() else 0
    if file.size is not None and not start < file.size:
        start = 0
    with explained(path, part, needs=file.size):
        part.parent.mkdir(parents=True, exist_ok=True)
        with _open(url, start, part) as response:
            if response.status != http.client.PARTIAL_CONTENT:
                start = 0
            elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                part.unlink(missing_ok=True)
                raise _Cut(f"answers with another part than from byte {start} to the end")
            size = file.size
            if file.size is None:
                size = None if response.length is None else start + response.length
            elif response.length not in (None, file.size - start):
                raise _WrongFile(_wrong_size(start + (response.length or 0), _read(response, HEAD), file.size))
            _save(response, part, start, size, None if start else file.container)
        if (wrong := fault(part, file)) is not None:
            if size is None and containers.is_cut(wrong):
                raise _Cut(wrong)  # the server has not said how long the whole is
            part.unlink()
            raise _Cut(wrong) if start else _WrongFile(wrong)
        move_into_place(part, path)


def _open(url: str, start: int = 0, part: Path | None = None) -> http.client.HTTPResponse:
    headers = _headers()
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(_quoted(url), headers=headers)
    try:
        response: http.client.HTTPResponse = _opener().open(request, timeout=PATIENCE.timeout)
        return response
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == _OUT_OF_RANGE and part is not None and start:
            part.unlink()
            raise _Cut(f"HTTP {error.code}: does not go on from byte {start}") from error
        raise _refusal(error.code, str(error.reason)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _NoAnswer(_why(error)) from error


def _headers() -> dict[str, str]:
    return {"User-Agent": f"metapt/{metapt.__version__}", "Accept-Encoding": "identity"}


def _quoted(url: str) -> str:
    return quote(url, safe="%/:?#[]@!$&'()*+,;=~")


def _refusal(code: int, reason: str) -> _Failure:
    kind = _NoAnswer if code in _TRY_LATER else _Absent
    return kind(f"HTTP {code} {reason}".rstrip())


def _opener() -> urllib.request.OpenerDirector:
    """The standard one follows redirections to ftp as well."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _save(response: http.client.HTTPResponse, part: Path, start: int, size: int | None, container: Container | None) -> None:
    """Write what comes after byte `start`, and at most one byte more than the file has, if its `size` is known.

    `container`: what the first bytes must be of; before that is known, an earlier part stays as it is.
    """
    got = start
    chunk = _read(response, HEAD if size is None else min(HEAD, size + 1 - got))
    if container is not None and (wrong := wrong_start(chunk, container)) is not None:
        raise (_Cut if containers.is_cut(wrong) else _WrongFile)(wrong)
    with (
        part.open("ab" if start else "wb") as out,
        tqdm(total=size, initial=start, desc=part.stem, unit="B", unit_scale=True, disable=None) as bar,
    ):
        while chunk:
            out.write(chunk)
            got += len(chunk)
            bar.update(len(chunk))
            chunk = _read(response, _CHUNK if size is None else min(_CHUNK, size + 1 - got))
    if size is not None and got < size:
        raise _Cut(f"cut: got {got} of {size} bytes")


def _read(response: http.client.HTTPResponse, size: int) -> bytes:
    """What has come, up to `size` bytes; nothing once the connection has ended or stands still."""
    try:
        return response.read1(size)
    except (OSError, http.client.HTTPException) as error:
        log.info("the connection broke: %s", _why(error))
        return b""


def _why(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"no answer within {PATIENCE.timeout:g} s"
    return f"no network or no such host: {(isinstance(reason, OSError) and reason.strerror) or reason}"
