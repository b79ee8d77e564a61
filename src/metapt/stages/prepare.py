"""Stage: turn a domain's raw files into what its runs read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from metapt.registry import domain

if TYPE_CHECKING:
    from metapt.stages import Machine


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Prepare the data.

    Args:
        config: `domain`, and what else its preparation reads.
        inputs: path for each raw file name.
        outputs: path for each prepared file.
        machine: not used.
    """
    domain(config["domain"], "prepare").prepare(inputs, outputs, config)
