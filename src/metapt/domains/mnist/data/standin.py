"""Random data of MNIST's shapes, for `metapt estimate` where MNIST is not there."""

from __future__ import annotations

from pathlib import Path

import torch

from metapt.domains.mnist.data import CLASSES, SIDE
from metapt.domains.mnist.data.prepare import save
from metapt.engine.jobs import RawData
from metapt.machine import Machine
from metapt.sections import JobSettings

IMAGES = {"train": 60_000, "test": 10_000}


def raw_data(settings: JobSettings) -> RawData:
    """Return what `run` stands for."""
    return RawData(11.6e6, seconds=1.5)


def run(settings: JobSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Write the prepared file `data`."""
    tensors = {}
    for split, count in IMAGES.items():
        tensors[f"{split}_images"] = torch.randint(256, (count, SIDE, SIDE), dtype=torch.uint8)
        tensors[f"{split}_labels"] = torch.arange(count) % CLASSES
    save(tensors, outputs["data"])
