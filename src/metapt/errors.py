"""Errors for people: each message says in a sentence or two what is wrong, where, what is legal and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

_PASSWORD = re.compile(r"(?<=://)\S*@")


def redacted(text: str) -> str:
    """Return `text` with names and passwords in addresses hidden: everything up to the last @ of a word.

    >>> redacted("https://me:secret@host/folder (HTTP 401)")
    'https://***@host/folder (HTTP 401)'
    """
    return _PASSWORD.sub("***@", text)


class MetaptError(Exception):
    """Base of the errors that end a command with one message instead of a traceback. Passwords are hidden."""

    def __str__(self) -> str:
        return redacted(super().__str__())


class ConfigError(MetaptError):
    """A config key is unknown, missing or has an illegal value, or an argument or a checkpoint does not suit a run."""


class DataError(MetaptError):
    """A data file is missing, truncated, altered or of another kind."""


class MachineError(MetaptError):
    """The machine can't do what was asked: it has no GPU, no space or no network."""


class TrainingError(MetaptError):
    """A run can't continue, because its numbers have left their valid range."""


class MissingPackage(MetaptError):
    """A package is not installed that only the extra `workflow` brings."""


@contextmanager
def with_extra(what: str) -> Iterator[None]:
    """Turn the error of an import that fails, other than of metapt itself, into MissingPackage.

    Args:
        what: what imports, for the message.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "metapt").split(".")[0]
        if package == "metapt":
            raise
        raise MissingPackage(
            f"{what} needs the package {package!r}, which is not installed: pip install 'metapt[workflow]'"
        ) from error
