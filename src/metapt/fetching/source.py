"""The entries of `workflow/resources/sources.yaml`, which says what the fields mean."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Container = Literal["gzip", "zip"]

RECORDS = "records.json"
"""The output that stands for all records: a source's version and their names, written once they are all there, in its folder."""


class SourceFile(BaseModel):
    """How a file is known to be whole, and its own addresses if no folder holds it.

    It has a size in bytes and sums, or, where none are published, those in it and a number of bytes that it does not exceed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: Annotated[int, Field(ge=0)] | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    md5: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = None
    container: Container | None = None
    at_most: Annotated[int, Field(gt=0)] | None = None
    urls: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_known(self) -> SourceFile:
        by_sums = [self.size is not None, self.sha256 is not None or self.md5 is not None]
        by_container = [self.container is not None, self.at_most is not None]
        if not ((all(by_sums) and not any(by_container)) or (all(by_container) and not any(by_sums))):
            raise ValueError("a size with sha256 or md5 is needed, or instead of them a container with at_most")
        return self

    @property
    def limit(self) -> int:
        """Bytes; the file has not more."""
        limit = self.at_most if self.size is None else self.size
        assert limit is not None
        return limit

    def fits(self, size: int) -> bool:
        """Whether the file may have so many bytes."""
        return size <= self.limit if self.size is None else size == self.size


class Listed(BaseModel):
    """Many small files of a source."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sums: str
    files: tuple[str, ...] = ()
    records: str
    threads: Annotated[int, Field(ge=1, le=32)] = 8


class Source(BaseModel):
    """An entry."""

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
