"""Where a file may lie, and the first of these places that gives it whole."""

from __future__ import annotations

import logging
from pathlib import Path
from urllib.parse import quote

from metapt.errors import ConfigError, DataError, MachineError, MetaptError
from metapt.fetching import transfer
from metapt.fetching.address import Place, place_of
from metapt.fetching.failures import Absent, Failure, NoAnswer, WrongFile
from metapt.fetching.source import Source, SourceFile
from metapt.fetching.verify import Wrong, fault

log = logging.getLogger(__name__)


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


def listed_places(name: str, source: Source, mirrors: list[str]) -> list[Place]:
    """Where a file that the source's list names, or the list itself, may lie, best first.

    Nothing tells one version's list from another's, so that it is only looked for where the folder's name does.

    Raises:
        ConfigError: as `places`.
    """
    assert source.listed is not None
    mirrored = _mirrored(source, mirrors)
    if name == source.listed.sums:
        mirrored = mirrored[1::2]
    return [_within(folder, name) for folder in mirrored + _published(source)]


def fetch(file: SourceFile, path: Path, candidates: list[Place], unreachable: dict[str, str]) -> None:
    """Get one file from the first of `candidates` that has it whole.

    Args:
        file: how it is known to be whole.
        path: where it belongs.
        candidates: of `places`.
        unreachable: host -> what was wrong; grows, so that a dead host is waited for once and not once a file.

    Raises:
        DataError: no place has the file whole.
        MachineError: the places that may have it could not be reached, the disk is full, or the folder can't be written.
    """
    failures: list[tuple[Place, Failure]] = []
    if path.is_file():
        if (wrong := fault(path, file)) is None:
            log.info("%s is there already, and whole", path)
            return
        log.warning("%s is there, but %s; it is fetched again", path, wrong)
        failures.append((path, WrongFile(wrong)))
    for place in candidates:
        try:
            if isinstance(place, Path):
                transfer.copy(place, file, path)
            else:
                transfer.download(place, file, path, unreachable)
        except Failure as failure:
            log.log(logging.INFO if isinstance(failure, Absent) else logging.WARNING, "%s: %s", place, failure)
            failures.append((place, failure))
        else:
            log.info("%s: fetched from %s", path, place)
            return
    raise _nowhere(path, failures)


def read(path: Path, candidates: list[Place], wrong: Wrong, unreachable: dict[str, str]) -> bytes:
    """The content of a small file that belongs to `path`, from the first of `candidates` where nothing is `wrong` with it.

    `unreachable`, and what is raised, as in `fetch`.
    """
    failures: list[tuple[Place, Failure]] = []
    for place in candidates:
        try:
            return transfer.read(place, wrong, unreachable)
        except Failure as failure:
            log.log(logging.DEBUG if isinstance(failure, Absent) else logging.WARNING, "%s: %s", place, failure)
            failures.append((place, failure))
    raise _nowhere(path, failures)


def _mirrored(source: Source, mirrors: list[str]) -> list[Place]:
    """Each mirror, followed by the folder of the source's name in it."""
    folders = [_place(mirror, "data.mirrors") for mirror in mirrors]
    return [place for folder in folders for place in (folder, _within(folder, source.name))]


def _published(source: Source) -> list[Place]:
    return [_place(url, "sources.yaml") for url in source.urls]


def _place(address: str, key: str) -> Place:
    try:
        return place_of(address)
    except ValueError as error:
        raise ConfigError(f"{address!r} in {key} is illegal: {error}.") from error


def _within(folder: Place, name: str) -> Place:
    return folder / name if isinstance(folder, Path) else f"{folder.rstrip('/')}/{quote(name)}"


def _nowhere(path: Path, failures: list[tuple[Place, Failure]]) -> MetaptError:
    tried = "; ".join(f"{place} ({failure})" for place, failure in failures) or "no place is known"
    kinds = {type(failure) for _, failure in failures}
    kind = MachineError if NoAnswer in kinds and kinds <= {NoAnswer, Absent} else DataError
    return kind(
        f"{path.name} could not be had: {tried}. Name a folder or an address that has it under data.mirrors in the config, "
        f"or put the file at {path} by hand."
    )
