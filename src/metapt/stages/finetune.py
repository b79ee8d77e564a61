"""Fine-tune what the PT runs of one arm have left, and test it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from metapt.registry import domain
from metapt.stages import Machine


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    torch.set_num_threads(machine.threads)
    domain(config["domain"], "finetune").finetune(config, inputs, outputs, machine)
