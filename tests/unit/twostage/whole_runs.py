"""What tests of whole PT runs share: comparison to the bit, and the end of a process."""

from __future__ import annotations

import torch

from metapt.hypergrad import Params


def equal(first: Params, second: Params) -> bool:
    """Return whether both have the same names and the same bits."""
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


class Stopped(Exception):
    """The end of a process."""
