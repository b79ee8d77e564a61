"""Many small files that a published list of SHA-256 sums describes: fetched in parallel."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from metapt.fetching.source import RECORDS, Listed
from metapt.fetching.verify import HTML, Wrong
from metapt.files import atomic_path, explained

log = logging.getLogger(__name__)

_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")
_KINDS = (".dat", ".hea")


def fetch_listed(listed: Listed, version: str, outputs: dict[str, Path], content: Callable[[Path, str, Wrong], bytes]) -> None:
    """Get what `outputs` name, and beside it the list of sums.

    Args:
        listed: the files.
        version: for `records.json`.
        outputs: path for each file of `listed.files` that is wanted, and for `records.json` where the records are.
        content: (where it belongs, name, what is wrong with a content) -> the right content of a name, in any thread.

    Raises:
        MachineError: the disk is full, or a folder can't be written; and what `content` raises.
    """
    path = next(iter(outputs.values())).parent / listed.sums
    sums = _sums(path, listed, content)
    wanted = {name: path for name, path in outputs.items() if name != RECORDS}
    if RECORDS in outputs:
        outputs[RECORDS].unlink(missing_ok=True)
        wanted |= {name: outputs[RECORDS].parent / name for name in sums if name not in listed.files}

    def get(name: str) -> bytes:
        return content(wanted[name], name, lambda got: _altered(got, sums[name]))

    fetch_all({name: sums[name] for name in wanted}, wanted, get, listed.threads)
    if RECORDS in outputs:
        records = sorted(name.removesuffix(".dat") for name in sums if name.endswith(".dat"))
        with atomic_path(outputs[RECORDS]) as temporary:
            temporary.write_text(json.dumps({"version": version, "records": records}, indent=0) + "\n", encoding="utf-8")


def _sums(path: Path, listed: Listed, content: Callable[[Path, str, Wrong], bytes]) -> dict[str, str]:
    """The sums of the listed files and records, from the list at `path`, which is fetched if need be."""
    if path.is_file():
        if (wrong := _wrong_list(path.read_bytes(), listed)) is None:
            return _wanted(path.read_bytes(), listed)
        log.warning("%s is there, but %s; it is fetched again", path, wrong)
    got = content(path, listed.sums, lambda got: _wrong_list(got, listed))
    with atomic_path(path, needs=len(got)) as temporary:
        temporary.write_bytes(got)
    return _wanted(got, listed)


def _wanted(content: bytes, listed: Listed) -> dict[str, str]:
    sums = read_sums(content)
    return {
        name: sums[name] for name in sums if name in listed.files or (name.startswith(listed.records) and name.endswith(_KINDS))
    }


def _wrong_list(content: bytes, listed: Listed) -> str | None:
    if HTML.match(content):
        return "an HTML page (of a log-in, or of an error) instead of the list"
    try:
        sums = _wanted(content, listed)
    except ValueError as error:
        return f"no list of SHA-256 sums: {error}"
    if unsafe := [name for name in sums if not safe_name(name)]:
        return f"the name {unsafe[0]!r} in it is not one within the folder"
    if missing := set(listed.files).difference(sums):
        return f"it does not list {', '.join(sorted(missing))}"
    signals, headers = ({name.removesuffix(kind) for name in sums if name.endswith(kind)} for kind in _KINDS)
    if not signals:
        return f"it lists no {listed.records}"
    if signals != headers:
        return f"it lists only one of {' and '.join(min(signals ^ headers) + kind for kind in _KINDS)}"
    return None


def _altered(content: bytes, digest: str) -> str | None:
    if (got := hashlib.sha256(content).hexdigest()) == digest:
        return None
    if HTML.match(content):
        return "an HTML page (of a log-in, or of an error) instead of the file"
    return f"cut or altered: {len(content)} bytes, whose checksum (SHA-256) is {got[:12]}… instead of {digest[:12]}…"


def read_sums(content: bytes) -> dict[str, str]:
    """The list that `sha256sum` writes: name -> SHA-256 in hexadecimal.

    Raises:
        ValueError: it is no such list; says why, for people.
    """
    sums: dict[str, str] = {}
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError("not a text in UTF-8") from error
    for number, line in enumerate(lines, start=1):
        if (match := _LINE.fullmatch(line)) is None:
            raise ValueError(f"its line {number} is not a SHA-256 and a name")
        digest, name = match.groups()
        if sums.setdefault(name, digest) != digest:
            raise ValueError(f"it has two sums of {name}")
    return sums


def safe_name(name: str) -> bool:
    """Whether a name stays within the folder that it is relative to.

    >>> safe_name("records100/00000/00001_lr.dat"), safe_name("../secret"), safe_name("/etc/passwd")
    (True, False, False)
    """
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name and "\\" not in name and name.isprintable()


def fetch_all(sums: Mapping[str, str], paths: Mapping[str, Path], get: Callable[[str], bytes], threads: int) -> None:
    """Get the files that are not there yet, each written whole or not at all.

    They are not forced onto the disk one by one: after a crash of the machine the next run finds a short file by its sum.

    Args:
        sums: name -> SHA-256.
        paths: name -> where it belongs; for all names of `sums`.
        get: gives the verified content of a name, in any of the threads; what it raises ends the work.
        threads: how many files are fetched at once.

    Raises:
        MachineError: the disk is full, or a folder can't be written.
    """

    def fetch(name: str) -> None:
        path = paths[name]
        if not _is_there(path, sums[name]):
            _write(path, get(name))

    for folder in {path.parent for path in paths.values()}:
        with explained(folder, folder):
            folder.mkdir(parents=True, exist_ok=True)
    pool = ThreadPoolExecutor(threads)
    try:
        for _ in tqdm(pool.map(fetch, sums), total=len(sums), desc="files", unit="", disable=None):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def _is_there(path: Path, digest: str) -> bool:
    try:
        right = hashlib.sha256(path.read_bytes()).hexdigest() == digest
    except OSError:
        return False
    if not right:
        log.warning("%s is there, but cut or altered; it is fetched again", path)
    return right


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        with explained(path, part, needs=len(content)):
            part.write_bytes(content)
            part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
