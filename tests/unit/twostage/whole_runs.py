"""What tests of whole PT runs share: comparison to the bit, the end of a process, and runs that keep no state."""

from __future__ import annotations

from typing import Any

import torch

from metapt.hypergrad import Params
from metapt.training.checkpoint import Checkpoint


def equal(first: Params, second: Params) -> bool:
    """Return whether both have the same names and the same bits."""
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


class Stopped(Exception):
    """The end of a process."""


class Unsaved(Checkpoint):
    """A checkpoint that keeps nothing, which takes less time."""

    def save(self, state: dict[str, Any], *processes: Any) -> None:
        pass
