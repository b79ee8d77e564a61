"""The settings of ECGs of the user's own, the files that are theirs, and what all prepared ECGs have."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from metapt.sections import Section, key

FREQUENCY = 100  # Hz, of prepared ECGs
LABELS = "labels.csv"


def _place(path: str) -> str:
    """Return the path of a folder, with `~` expanded. Raises ValueError for one that rules can't name."""
    if not path.strip() or not path.isprintable() or set("{}*?") & set(path):
        raise ValueError(f"{path!r} is no folder's name (braces, * and ? have a meaning of their own)")
    return os.path.normpath(os.path.expanduser(path))


class EcgFolder(Section):
    """WFDB records of 12 leads in a folder, and their labels.csv. A path alone stands for `path`. Not in the paper."""

    path: Annotated[str, AfterValidator(_place)] = Field(description="the folder")
    seconds: float = key(10.0, "length of an ECG, from the start of its record on", ge=1)
    fit: Literal["cut", "pad", "both", "neither"] = key(
        "cut",
        "longer records lose their end (cut), shorter ones get zeros there (pad), or both; other ones are refused",
    )
    spoilt: float = key(
        0.1, "largest share of a lead that is NaN, or constant for a second or more; NaN is interpolated", ge=0, le=1
    )

    @property
    def samples(self) -> int:
        """Return the length of an ECG in samples."""
        return round(self.seconds * FREQUENCY)


def _section(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


FolderKey = Annotated[EcgFolder | None, BeforeValidator(_section, json_schema_input_type=str | EcgFolder | None)]


class Found(NamedTuple):
    """The records of a folder."""

    records: list[str]  # relative to the folder, without suffix
    digest: str  # 16 digits, of the names, sizes and times of change of their files and of labels.csv


def find(folder: Path) -> Found:
    """Return the records of a folder: what has a header `.hea` in it or in a folder below that is not hidden.

    The files of a record have its name and any suffix, or are named in its header. Raises OSError if one, or
    labels.csv, can't be looked at.
    """
    files, records = [f"{folder}/{LABELS}"], list[str]()
    for place, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(".")]
        headers = {name.removesuffix(".hea") for name in names if name.endswith(".hea") and name[0] != "."}
        own = {name for name in names if os.path.splitext(name)[0] in headers}
        if rest := {*names} - own - {LABELS}:  # only then headers are read, which takes longer
            texts = (Path(place, f"{name}.hea").read_text("ascii", "ignore") for name in headers)
            own |= rest.intersection(word for text in texts for word in text.split())
        files += [f"{place}/{name}" for name in own]
        below = os.path.relpath(place, folder)
        records += [name if below == "." else f"{Path(below).as_posix()}/{name}" for name in headers]
    digest = hashlib.sha256()
    for file in sorted(files):
        state = os.stat(file)
        digest.update(f"{file.removeprefix(str(folder))}\n{state.st_size} {state.st_mtime_ns}\n".encode())
    return Found(sorted(records), digest.hexdigest()[:16])
