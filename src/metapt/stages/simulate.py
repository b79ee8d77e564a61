"""Stage: write a domain's raw files from a generator instead of downloading them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from metapt.registry import domain

if TYPE_CHECKING:
    from metapt.stages import Machine


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Write the raw files.

    Args:
        config: `domain`, and `source`: which of its generators.
        inputs: none.
        outputs: path for each raw file name.
        machine: not used.
    """
    domain(config["domain"], "simulate").simulate(config["source"], outputs)
