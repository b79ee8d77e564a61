"""MNIST's prepared form: one file with four tensors, which are on the device during a run."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from metapt.domains.mnist.data import FILES, read_split
from metapt.files import atomic_path, reading
from metapt.machine import Machine
from metapt.sections import JobSettings


@dataclass(frozen=True, eq=False)
class MnistData:
    """Images float32 [N, 28, 28] in [0, 1], 0 is background; labels int64 [N] in 0..9."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def run(settings: JobSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Write the raw files (by the names in `FILES`) as the prepared file `data`.

    It has uint8 images [N, 28, 28] and int64 labels [N] of each split. Raises DataError as `read_split`.
    """
    tensors: dict[str, Tensor] = {}
    for split in ("train", "test"):
        images, labels = read_split(inputs[FILES[f"{split}_images"]], inputs[FILES[f"{split}_labels"]])
        tensors |= {f"{split}_images": torch.from_numpy(images), f"{split}_labels": torch.from_numpy(labels).long()}
    save(tensors, outputs["data"])


def save(tensors: dict[str, Tensor], path: Path) -> None:
    """Write the prepared file of the tensors by name. Raises MachineError as `atomic_path`."""
    # Torch writes a path's name into the archive, but not an open file's, so that equal data give equal bytes.
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        torch.save(tensors, file)


def load(path: Path, device: torch.device | str) -> MnistData:
    """Read a prepared file onto `device`. Raises DataError if it is missing or can't be read.

    Whether it is what its job left is checked by `execute`.
    """
    with reading(path, "make it with the target that prepares MNIST") as file:
        content = io.BytesIO(file.read())
    tensors = torch.load(content, map_location="cpu", weights_only=True)
    loaded = {name: tensor.to(device) for name, tensor in tensors.items()}
    return MnistData(**{name: each / 255 if each.dtype == torch.uint8 else each for name, each in loaded.items()})
