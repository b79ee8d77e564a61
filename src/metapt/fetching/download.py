"""The stage that fetches the files of a public source: it resumes, verifies, and moves them to their paths."""

from __future__ import annotations

import json
import logging
import secrets
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from tqdm import tqdm

from metapt.errors import ConfigError, DataError, MachineError
from metapt.fetching import Absent, Cut, Failure, NoAnswer
from metapt.fetching.source import RECORDS, Listed, Place, Source, SourceFile, place_of
from metapt.fetching.verify import check_file, check_start, read_sums
from metapt.fetching.web import Answer, Web
from metapt.files import atomic_path, explained, move_into_place, reading

if TYPE_CHECKING:
    from metapt.machine import Machine

log = logging.getLogger(__name__)


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Fetch the files that `outputs` names; files that are already complete are kept.

    Raises ConfigError if an address is illegal, or the source does not have a file. Raises DataError if no place has
    the complete file.

    Args:
        config: `source`: an entry of sources.yaml; `mirrors`: folders, `file://` or `http(s)://` addresses that are
            tried first and hold a file directly or in a folder with the source's name.
        inputs: none.
        outputs: a path per file. `records.json` stands for all records, which are saved to its folder, and is written
            last, with `version` and `records`, their sorted names without suffix. A job declares only this one of the
            records' files, since Snakemake removes the declared outputs of a failed job, and a later job continues with
            the others.
        machine: not used.
    """
    try:
        source = Source.model_validate(config["source"])
        mirrors = [place_of(address) for address in config["mirrors"]]
    except ValidationError as error:
        raise ConfigError(f"sources.yaml has an illegal entry: {error}") from error
    except ValueError as error:
        raise ConfigError(f"an address in data.mirrors is illegal: {error}.") from error
    paths = {path.name: path for path in outputs.values()}
    if unknown := [name for name in paths if name not in source.names]:
        raise ConfigError(f"{source.name} has no file {unknown[0]!r}; legal: {', '.join(source.names)}.")
    with Web() as web:
        for name in source.files:
            if name in paths:
                fetch(source.files[name], paths.pop(name), source.places(name, mirrors), web)
        if source.listed is not None and paths:
            _fetch_listed(source, source.listed, mirrors, paths, web)


def _fetch_listed(source: Source, listed: Listed, mirrors: list[Place], paths: dict[str, Path], web: Web) -> None:
    """Fetch the small files in `paths` in parallel, and the list of their sums."""
    path = next(iter(paths.values())).parent / listed.sums
    fetch(listed, path, source.places(listed.sums, mirrors), web)
    with reading(path) as opened:
        sums = read_sums(opened, listed)
    records = paths.pop(RECORDS, None)
    if records is not None:
        records.unlink(missing_ok=True)
        paths |= {name: records.parent / name for name in sums if name not in listed.files}

    def get(name: str) -> None:
        file = SourceFile(sha256=sums[name], at_most=listed.limit)
        fetch(file, paths[name], source.places(name, mirrors), web, many=True)

    pool = ThreadPoolExecutor(listed.threads)
    try:
        for _ in tqdm(pool.map(get, paths), total=len(paths), desc="files", unit="", disable=None):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    if records is not None:
        names = sorted(name.removesuffix(".dat") for name in sums if name.endswith(".dat"))
        content = json.dumps({"version": source.version, "records": names}, indent=0)
        with atomic_path(records) as temporary:
            temporary.write_text(f"{content}\n", encoding="utf-8")


def fetch(file: SourceFile | Listed, path: Path, places: list[Place], web: Web, many: bool = False) -> None:
    """Fetch one file from the first place that has it complete, unless it is already there; raises as `run`.

    With `many`, the file is small. It is checked in memory and not forced to the disk, since its sum shows if it is cut
    after a crash. A list of sums is checked in memory, too; several jobs may fetch it at once.
    """
    failures: list[tuple[Place, Failure]] = []
    if path.is_file():
        try:
            with reading(path) as opened:
                check_file(opened, file)
            return
        except Failure as failure:
            log.warning("%s is there, but %s; it is fetched again", path, failure)
            failures.append((path, failure))
    for place in places:
        try:
            web.patiently(lambda place: _attempt(place, file, path, web, many), place)
            log.log(logging.DEBUG if many else logging.INFO, "%s: fetched from %s", path, place)
            return
        except Failure as failure:
            log.log(logging.DEBUG if isinstance(failure, Absent) else logging.WARNING, "%s: %s", place, failure)
            failures.append((place, failure))
    kinds = {type(failure) for _, failure in failures}
    tried = "; ".join(f"{place} ({failure})" for place, failure in failures) or "no place is known"
    raise (MachineError if NoAnswer in kinds and kinds <= {NoAnswer, Absent} else DataError)(
        f"{path.name} could not be fetched: {tried}. Name a folder or an address that has it under data.mirrors in the "
        f"config, or put the file at {path} by hand."
    )


def _attempt(place: Place, file: SourceFile | Listed, path: Path, web: Web, many: bool) -> None:
    """Fetch the file to `<path>.part` from where an earlier part ends, check it, and move it to `path`.

    A part may come from an earlier run or another place. It is discarded only for an answer that looks like the file.
    If the completed file is wrong, it is fetched once more from the start. Files that are checked in memory have no
    earlier part, and the part of a list has a name of its own, since the jobs of one source fetch the same list.
    """
    in_memory = many or isinstance(file, Listed)
    own = f".{secrets.token_hex(4)}" if isinstance(file, Listed) else ""
    part = path.with_name(f"{path.name}{own}.part")
    begun = part.stat().st_size if not in_memory and part.is_file() else 0
    with web.open(place, begun if begun < file.limit else 0) as answer, explained(path, part, needs=file.size):
        if (wrong := _save(answer, file, part, in_memory)) is None:
            part.replace(path) if many else move_into_place(part, path)
            return
        part.unlink(missing_ok=True)
        if not answer.start:
            raise wrong
    _attempt(place, file, path, web, many)


def _save(answer: Answer, file: SourceFile | Listed, part: Path, in_memory: bool) -> Failure | None:
    """Write an answer to `part`, and return what is wrong with the complete file, or None.

    Raises Failure if the answer is refused before it is written. Raises Cut if the answer ended early.
    """
    got, size = answer.start, answer.size if file.size is None else file.size
    chunk = next(answer.chunks, b"")
    check_start(chunk[:512] if got == 0 else None, answer.size, file)
    part.parent.mkdir(parents=True, exist_ok=True)
    with (
        BytesIO() if in_memory else part.open("ab+" if got else "wb+") as out,
        tqdm(total=size, initial=got, desc=part.stem, unit="B", unit_scale=True, disable=in_memory or None) as bar,
    ):
        while chunk := chunk[: file.limit + 1 - got]:  # one more byte shows that the file is too long
            out.write(chunk)
            got += len(chunk)
            bar.update(len(chunk))
            chunk = next(answer.chunks, b"")
        if size is not None and got < size:
            raise Cut(f"cut: got {got} of {size} bytes")
        out.seek(0)
        try:
            check_file(out, file)
        except Failure as failure:
            if size is None and isinstance(failure, Cut):  # the place has not given the size
                raise
            return Failure(str(failure))
        if isinstance(out, BytesIO):
            part.write_bytes(out.getvalue())
    return None
