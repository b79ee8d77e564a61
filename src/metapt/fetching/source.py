"""Entries of `sources.yaml`, which documents the fields, and the places of their files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import quote, unquote

from pydantic import BaseModel, Field, HttpUrl, PlainValidator, TypeAdapter, model_validator

SOURCES = Path(__file__).with_name("sources.yaml")
RECORDS = "records.json"
"""The output that stands for all records: the source's version and their names, written when all are there."""


@lru_cache
def place_of(text: str) -> Path | str:
    """Return the folder or http(s) address that a text names.

    Raises ValueError if the text is illegal; the message does not repeat it.
    """
    scheme, separator, rest = text.partition("://")
    try:
        if text.strip() and text.isprintable() and not separator:
            return Path(text).expanduser()
        if scheme.lower() == "file" and rest.startswith(("/", "localhost/")):
            return Path(unquote(rest.removeprefix("localhost")))
        if scheme.lower() in ("http", "https") and text.isprintable():
            url = TypeAdapter(HttpUrl).validate_python(text)
            (url.host or "").encode("idna")  # raises for empty labels, as in a..b
            return str(url)
    except (ValueError, RuntimeError):  # RuntimeError: the user has no home
        pass
    raise ValueError("legal are a folder, file:///folder, http://host/… and https://host/…")


Place = Annotated[Path | str, PlainValidator(place_of)]  # a local file or folder, or an http(s) address


class SourceFile(BaseModel, extra="forbid", frozen=True):
    """The size, sums and format by which a file is verified, and the publisher's addresses."""

    size: Annotated[int, Field(ge=0)] | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    md5: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = None
    container: Literal["gzip", "zip"] | None = None
    at_most: Annotated[int, Field(gt=0)] | None = None
    urls: tuple[Place, ...] = ()

    @model_validator(mode="after")
    def _is_known(self) -> SourceFile:
        if (self.size is None) == (self.at_most is None) or bool(self.container) == bool(self.sha256 or self.md5):
            raise ValueError("needed are a size or at_most, and sha256, md5 or both, or a container instead of these")
        return self

    @property
    def limit(self) -> int:
        """Return the maximal size in bytes."""
        return self.at_most or self.size or 0


class Listed(BaseModel, extra="forbid", frozen=True):
    """Many small files of a source, and the list of their sums, which is verified by the names in it."""

    size: ClassVar[None] = None
    container: ClassVar[None] = None
    limit: ClassVar[int] = 1 << 26  # maximal bytes of the list, and of each file

    sums: str
    files: tuple[str, ...] = ()
    records: str
    threads: Annotated[int, Field(ge=1, le=32)] = 8


class Source(BaseModel, extra="forbid", frozen=True):
    """An entry of sources.yaml."""

    name: str
    version: str
    licence: str
    description: str
    citation: str
    homepage: str = ""
    urls: tuple[Place, ...] = ()
    files: dict[str, SourceFile] = {}
    listed: Listed | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all files."""
        return (*self.files, *((*self.listed.files, RECORDS) if self.listed else ()))

    def places(self, name: str, mirrors: list[Place]) -> list[Place]:
        """Return the possible places of the file `name`: mirrors, their folders with the source's name, the publishers.

        Lists of sums do not show their version, so a mirror must have them in the folder with the source's name.
        """
        folders = [folder for mirror in mirrors for folder in (mirror, _within(mirror, self.name))]
        if self.listed is not None and name == self.listed.sums:
            folders = folders[1::2]
        own = self.files[name].urls if name in self.files else ()
        return [_within(folder, name) for folder in (*folders, *(() if own else self.urls))] + list(own)


def _within(folder: Place, name: str) -> Place:
    return folder / name if isinstance(folder, Path) else f"{folder.rstrip('/')}/{quote(name)}"
