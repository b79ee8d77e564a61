"""Files of public sources: what they are, how they come whole from servers and folders, and why a place gave none."""

from __future__ import annotations


class Failure(Exception):
    """Why a place did not give a file; messages go into one sentence about all places."""


class Absent(Failure):
    """It is not there."""


class Cut(Failure):
    """Only a part came, and another attempt may bring the rest."""


class NoAnswer(Failure):
    """The place could not be reached, or is out of order."""
