"""The record of a job, `run.json`: it holds the SHA-256 of each input and output, and its own.

A record is in the folder of its job's outputs and is called `run.json`, or `{something}.run.json` where several jobs
share a folder. The record of a file is found by the file's name, so a folder can be moved.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from metapt.errors import DataError, redacted
from metapt.files import atomic_path, reading, sha256

_OWN = "sha256_of_record"


class Producer(NamedTuple):
    """The record that has a file among its outputs, and the file's SHA-256 in it (None if the job broke off)."""

    record: Path
    sha256: str | None


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record with its own sum and without the passwords in addresses. Raises MachineError as `atomic_path`."""
    record = json.loads(redacted(json.dumps(record)))
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(record | {_OWN: _sum(record)}, indent=2) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """Return a record.

    Raises DataError if it is missing, truncated, altered, or from a version of metapt that kept no sums.
    """
    record = _parsed(path)
    check_own_sum(record, path)
    return record


def check_own_sum(record: dict[str, Any], path: Path) -> None:
    """Check that a record from `path` is what its job wrote. Raises DataError if it is not."""
    if _OWN not in record:
        raise DataError(
            f"{path} holds no SHA-256, as the record of a run does: remove it, so that the run is made again."
        )
    if record[_OWN] != _sum({key: value for key, value in record.items() if key != _OWN}):
        raise DataError(f"{path} has been altered since its job wrote it: remove it, so that the run is made again.")


def producer(path: Path) -> Producer | None:
    """Return the record beside a file that has it among its outputs, or None.

    Records from versions of metapt that kept no sums are ignored. Raises DataError if no valid record has the file, and
    another record beside it is truncated or altered.
    """
    wrong: DataError | None = None
    own = "run.json", f"{path.name}.run.json"  # before others, among which may be copies of former ones
    for each in sorted(path.parent.glob("*run.json"), key=lambda each: (each.name not in own, each)):
        if each.name.startswith("."):  # unfinished, of a job that was killed
            continue
        try:
            record = _parsed(each)
            if _OWN not in record:
                continue
            check_own_sum(record, each)
        except DataError as error:
            wrong = error
            continue
        for name, output in record["outputs"].items():
            if Path(output).name == path.name:
                return Producer(each, record["sha256"]["outputs"].get(name))
    if wrong is not None:
        raise DataError(f"whether {path} is what its job left can't be told: {wrong}") from wrong
    return None


def checked(path: Path) -> str | None:
    """Return the SHA-256 of a file, computed now and compared with its producer's record; None if there is no record.

    Raises DataError if the file is not what its producer left, or its job has not finished, and as `read`.
    """
    if _is_record(path):
        return str(read(path)[_OWN])
    found = producer(path)
    if found is None:
        return None
    if found.sha256 is None:
        raise DataError(
            f"{path} is of a job that has not come to its end, as {found.record} says: remove both and run it again."
        )
    if (actual := sha256(path)) != found.sha256:
        raise DataError(
            f"{path} is not what its job left: its SHA-256 is {actual[:12]}…, and {found.sha256[:12]}… in "
            f"{found.record}. It has been cut or altered since; remove it, so that it is made again."
        )
    return actual


def known_by(path: Path) -> str:
    """Return the SHA-256 by which records know a file as it is now; that of a record is the one that it holds."""
    return str(read(path)[_OWN]) if _is_record(path) else sha256(path)


def content(path: Path) -> str:
    """Return the SHA-256 of a file: as recorded by its producer, else computed."""
    return _recorded(path) or sha256(path)


def stale(path: Path, config: dict[str, Any], code: str | None, inputs: dict[str, str]) -> str | None:
    """Return in words why a job has to run again although there is a record of it; None if it need not.

    The checkpoint's path and the mirrors in the config are ignored. Inputs without a record can't be compared.
    """
    if not path.exists():
        return "there is no record of it"
    try:
        record = read(path)
    except DataError as error:
        return str(error)
    if record.get("state") != "done":
        return "it has not come to its end"
    if _settings(record["config"]) != _settings(json.loads(redacted(json.dumps(config)))):
        return "its settings have changed"
    if record["code"] != code:
        return "its code has changed"
    sums = record["sha256"]["inputs"]
    if sums.keys() != inputs.keys() or any(_differs(Path(file), sums[name]) for name, file in inputs.items()):
        return "its inputs have changed"
    return None


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in ("checkpoint", "mirrors")}


def _recorded(path: Path) -> str | None:
    """Return the SHA-256 of a file from its record, None if it has none. Raises DataError as `read` and `producer`."""
    if _is_record(path):
        return str(read(path)[_OWN])
    found = producer(path)
    return None if found is None else found.sha256


def _differs(path: Path, known: str) -> bool:
    """Return whether a file's record has another SHA-256; without a valid record it can't be compared."""
    try:
        return _recorded(path) not in (None, known)
    except DataError:
        return False


def _parsed(path: Path) -> dict[str, Any]:
    try:
        with reading(path, "make the run again") as file:
            return dict(json.loads(file.read().decode()))
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is not the record of a run ({error}): remove it, so that the run is made again."
        ) from error


def _is_record(path: Path) -> bool:
    return path.name == "run.json" or path.name.endswith(".run.json")


def _sum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
