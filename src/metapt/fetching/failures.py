"""Why a place did not give a file; messages go into the sentence that `places` makes when no place did."""

from __future__ import annotations


class Failure(Exception):
    """Why a place did not give a file."""


class Absent(Failure):
    """It is not there."""


class WrongFile(Failure):
    """Something else is there."""


class Cut(WrongFile):
    """Only a part came, and another attempt may bring the rest."""


class OutOfRange(Cut):
    """The server does not go on from where a part ends."""


class NoAnswer(Failure):
    """The place could not be reached, or is out of order."""
