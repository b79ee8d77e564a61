"""Train one arm of an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from metapt.registry import domain
from metapt.stages import Machine


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    torch.set_num_threads(machine.threads)
    domain(config["domain"], "train").train(config, inputs, outputs, machine)
