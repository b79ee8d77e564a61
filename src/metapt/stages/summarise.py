"""Make an experiment's tables, figures and claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metapt.registry import domain
from metapt.stages import Machine


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    domain(config["domain"], "summarise").summarise(config, inputs, outputs)
