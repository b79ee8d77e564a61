"""Write MNIST's raw files without a download, from scikit-learn's digits (UCI's optdigits, 1,797 images of 8 x 8)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metapt.domains.mnist.data import FILES, SIDE, TRAIN_IMAGES, write_idx
from metapt.machine import Machine
from metapt.sections import SimulateSettings

TRAIN = TRAIN_IMAGES["digits"]
_LEVELS = 16  # grey values of the small images: 0..16
_TENTHS = 10


def run(settings: SimulateSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Write 1,300 training and 497 test digits as MNIST's IDX files, by the names in `FILES`; always the same bytes.

    The collection is ordered by writer. It is shuffled before the split, so that both parts have one distribution.
    """
    digits = _digits()
    # RandomState: NumPy promises that its stream never changes.
    digits = digits[np.random.RandomState(0).permutation(len(digits))]
    images, labels = enlarge(digits[:, :-1].reshape(-1, 8, 8)), digits[:, -1].astype(np.uint8)
    for split, part in {"train": slice(TRAIN), "test": slice(TRAIN, None)}.items():
        write_idx(outputs[FILES[f"{split}_images"]], images[part])
        write_idx(outputs[FILES[f"{split}_labels"]], labels[part])


def _digits() -> NDArray[np.int64]:
    """Return scikit-learn's digits [1797, 65]: 64 pixels and the label. They are those of `load_digits`."""
    spec = find_spec("sklearn")
    assert spec is not None, "a requirement of metapt"
    assert spec.origin is not None
    # From the file, since the import of sklearn.datasets takes longer than all the rest of the job.
    return np.loadtxt(Path(spec.origin).parent / "datasets/data/digits.csv.gz", delimiter=",").astype(np.int64)


def enlarge(images: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Scale digits [N, 8, 8] of 0..16 by 2.5, centred: uint8 [N, 28, 28], 20 x 20 pixels in a margin of 4, as in MNIST.

    Pixel i lies at i * 0.4 - 1.9 on the small grid. Integer arithmetic (weights in tenths) rounds alike on every
    machine.
    """
    position = 4 * np.arange(SIDE) - 19
    weight = (_TENTHS - np.abs(position[:, None] - _TENTHS * np.arange(images.shape[-1]))).clip(min=0)
    total: NDArray[np.int64] = weight @ images @ weight.T * 255
    scale = _TENTHS**2 * _LEVELS
    return ((total + scale // 2) // scale).astype(np.uint8)
