"""Write MNIST's raw files without a download, from scikit-learn's digits (UCI's optdigits, 1,797 images of 8 x 8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from metapt.domains.mnist.data.idx import write_idx
from metapt.domains.mnist.data.sources import FILES, SIDE, TRAIN_IMAGES
from metapt.errors import ConfigError
from metapt.machine import Machine

TRAIN = TRAIN_IMAGES["digits"]
_LEVELS = 16  # grey values of the small images: 0..16
_TENTHS = 10


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Write the raw files of the source that the config names. Raises ConfigError if the source is not `digits`."""
    if config["source"] != "digits":
        raise ConfigError(f"mnist.source {config['source']!r} can't be generated; legal here: 'digits'.")
    write_digits(outputs)


def write_digits(outputs: dict[str, Path]) -> None:
    """Write 1,300 training and 497 test digits as MNIST's IDX files, by the names in `FILES`; always the same bytes.

    The collection is ordered by writer. It is shuffled before the split, so that both parts have one distribution.
    """
    digits = load_digits()
    order = np.random.RandomState(0).permutation(
        len(digits.target)
    )  # RandomState: NumPy promises that its stream never changes
    images = enlarge(torch.from_numpy(digits.images[order]))
    labels = torch.from_numpy(digits.target[order]).to(torch.uint8)
    write_idx(outputs[FILES["train_images"]], images[:TRAIN])
    write_idx(outputs[FILES["train_labels"]], labels[:TRAIN])
    write_idx(outputs[FILES["test_images"]], images[TRAIN:])
    write_idx(outputs[FILES["test_labels"]], labels[TRAIN:])


def enlarge(images: Tensor) -> Tensor:
    """Scale digits [N, 8, 8] of 0..16 by 2.5, centred: uint8 [N, 28, 28], 20 x 20 pixels in a margin of 4, as in MNIST.

    Pixel i lies at i * 0.4 - 1.9 on the small grid. Integer arithmetic (weights in tenths) rounds alike on every
    machine.
    """
    small = images.long()
    position = 4 * torch.arange(SIDE) - 19
    weight = (_TENTHS - (position[:, None] - _TENTHS * torch.arange(small.shape[-1])).abs()).clamp(min=0)
    total = weight @ small @ weight.T * 255
    scale = _TENTHS**2 * _LEVELS
    return ((total + scale // 2) // scale).to(torch.uint8)
