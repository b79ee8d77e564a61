"""Download files of public sources: their descriptions, transfer from servers and folders, and verification."""

from __future__ import annotations


class Failure(Exception):
    """A place did not give a file; the message is a part of a sentence about all places."""


class Absent(Failure):
    """The place does not have the file, or refuses it."""


class Cut(Failure):
    """Only a part arrived; another attempt may bring the rest."""


class NoAnswer(Failure):
    """The place could not be reached, or is out of order."""
