"""A file comes from one place, a folder or a server: resumed, cut off beyond its size, verified, and moved into place whole."""

from __future__ import annotations

import http.client
import shutil
from pathlib import Path

from tqdm import tqdm

from metapt.fetching import web
from metapt.fetching.failures import Absent, Cut, OutOfRange, WrongFile
from metapt.fetching.source import SourceFile
from metapt.fetching.verify import HEAD, Wrong, fault, is_cut, wrong_size, wrong_start
from metapt.files import atomic_path, explained, move_into_place

_CHUNK = 1 << 18


def copy(place: Path, file: SourceFile, path: Path) -> None:
    """Copy a file that lies at `place` to `path`.

    Raises:
        Failure: it is not there, or not whole.
        MachineError: the disk is full, or the folder can't be written.
    """
    if not place.is_file():
        raise Absent("no such file")
    try:
        if (wrong := fault(place, file)) is not None:
            raise WrongFile(wrong)
        with atomic_path(path, needs=file.size) as temporary:
            shutil.copyfile(place, temporary)
            if (wrong := fault(temporary, file)) is not None:
                raise WrongFile(wrong)
    except OSError as error:
        raise WrongFile(f"can't be read: {error.strerror}") from error


def download(url: str, file: SourceFile, path: Path, unreachable: dict[str, str]) -> None:
    """Download in a few attempts, each of which goes on where the last one stopped.

    Args:
        url: the file's address.
        file: how it is known to be whole.
        path: where it belongs; what has come of it lies at `<path>.part`.
        unreachable: as in `web.patiently`.

    Raises:
        Failure: the server does not give it, or not whole.
        MachineError: the disk is full, or the folder can't be written.
    """
    web.patiently(url, unreachable, lambda: _attempt(url, file, path))


def read(place: Path | str, wrong: Wrong, unreachable: dict[str, str]) -> bytes:
    """The content of a small file from a folder or a server, which nothing is `wrong` with.

    Raises:
        Failure: it is not there, or something is wrong with it.
    """

    def attempt() -> bytes:
        content = _local(place) if isinstance(place, Path) else web.read_small(place)
        if (said := wrong(content)) is not None:
            raise Cut(said)
        return content

    return attempt() if isinstance(place, Path) else web.patiently(place, unreachable, attempt)


def _local(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Absent("no such file") from error
    except OSError as error:
        raise WrongFile(f"can't be read: {error.strerror}") from error


def _attempt(url: str, file: SourceFile, path: Path) -> None:
    """Download to `<path>.part`, from where a part that an earlier attempt left ends, verify, and move into place.

    A part may come from an earlier run or another place. So it is given up only for an answer that looks like the file, and when
    the whole made from it is wrong, the file is asked for once more from its start.
    """
    part = path.with_name(f"{path.name}.part")
    start = part.stat().st_size if part.is_file() else 0
    if not start < file.limit:
        start = 0
    with explained(path, part, needs=file.size):
        part.parent.mkdir(parents=True, exist_ok=True)
        with _ask(url, start, part) as response:
            if response.status != http.client.PARTIAL_CONTENT:
                start = 0
            elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                part.unlink(missing_ok=True)
                raise Cut(f"answers with another part than from byte {start} to the end")
            claimed = None if response.length is None else start + response.length
            if claimed is not None and not file.fits(claimed):
                raise WrongFile(wrong_size(claimed, web.read(response, HEAD), file.limit))
            size = claimed if file.size is None else file.size
            _save(response, part, start, file, size)
        if (wrong := fault(part, file)) is not None:
            if size is None and is_cut(wrong):
                raise Cut(wrong)  # the server has not said how long the whole is
            part.unlink()
            raise Cut(wrong) if start else WrongFile(wrong)
        move_into_place(part, path)


def _ask(url: str, start: int, part: Path) -> http.client.HTTPResponse:
    try:
        return web.ask(url, start)
    except OutOfRange:
        part.unlink()
        raise


def _save(response: http.client.HTTPResponse, part: Path, start: int, file: SourceFile, size: int | None) -> None:
    """Write what comes after byte `start`, and at most one byte more than the file can have; `size`: of the whole, if known.

    Before the first bytes are known to be a container's, an earlier part stays as it is.
    """
    got = start
    pace = web.Pace()
    chunk = web.read(response, min(HEAD, file.limit + 1 - got))
    if not start and file.container is not None and (wrong := wrong_start(chunk, file.container)) is not None:
        raise (Cut if is_cut(wrong) else WrongFile)(wrong)
    with (
        part.open("ab" if start else "wb") as out,
        tqdm(total=size, initial=start, desc=part.stem, unit="B", unit_scale=True, disable=None) as bar,
    ):
        while chunk:
            out.write(chunk)
            got += len(chunk)
            bar.update(len(chunk))
            pace.check(len(chunk))
            chunk = web.read(response, min(_CHUNK, file.limit + 1 - got))
    if size is not None and got < size:
        raise Cut(f"cut: got {got} of {size} bytes")
