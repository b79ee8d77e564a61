"""Errors that a person reads: each message is a sentence or two that say what is wrong, where, what is legal, and what to do."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(?<=://)\S*@")


def redacted(text: str) -> str:
    """Return `text` with the names and passwords in addresses covered: all up to the last @ of a word.

    >>> redacted("https://me:secret@host/folder (HTTP 401)")
    'https://***@host/folder (HTTP 401)'
    """
    return _PASSWORD.sub("***@", text)


class MetaptError(Exception):
    """Base of all errors that end a command with one clear message instead of a traceback. It shows no passwords of addresses."""

    def __str__(self) -> str:
        return redacted(super().__str__())


class ConfigError(MetaptError):
    """A config key is unknown, missing or has an illegal value."""


class DataError(MetaptError):
    """A data file is missing, cut, altered or not what it claims to be."""


class MachineError(MetaptError):
    """The machine can't do what was asked: no GPU, no space, no network."""


class TrainingError(MetaptError):
    """A run can't go on: the numbers have left the range in which it has a meaning."""
