"""Random data of MNIST's shapes, for `metapt estimate` where MNIST is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from metapt.domains.mnist.data import CLASSES, SIDE
from metapt.domains.mnist.data.prepare import save
from metapt.machine import Machine

IMAGES = {"train": 60_000, "test": 10_000}


def size(config: dict[str, Any]) -> dict[str, float]:
    """Return bytes of the raw files, CPU seconds of their preparation, and the share of them that is made here."""
    return {"raw_bytes": 11.6e6, "prepare_seconds": 1.5, "share": 1.0}


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Write the prepared file `data`."""
    tensors = {}
    for split, count in IMAGES.items():
        tensors[f"{split}_images"] = torch.randint(256, (count, SIDE, SIDE), dtype=torch.uint8)
        tensors[f"{split}_labels"] = torch.arange(count) % CLASSES
    save(tensors, outputs["data"])
