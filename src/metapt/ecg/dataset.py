"""ECGs on the device, and who learns from which of them (appendix "Further dataset details")."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.ecg.prepare import EcgRecords, load, statistics
from metapt.errors import ConfigError
from metapt.training.seeds import generator

VALIDATION_SHARE = 0.2
_SMALL_SHARES = {10: 0.5, 25: 0.4}
"""Share of validation at FT sets of these sizes, where a fifth would be too little."""


@dataclass(frozen=True)
class Dataset:
    """Prepared ECGs, normalised by the training folds' mean and standard deviation.

    Attributes:
        records: all of them, on the disk.
        mean, deviation: over all signals of folds 1-9, leads and times, microvolts.
        samples: length of a signal; zeros are added where it is more than a record's.
        device: of what is returned.
    """

    records: EcgRecords
    mean: float
    deviation: float
    samples: int
    device: str

    def raw(self, indices: np.ndarray) -> Tensor:
        """Signals [n, samples of a record, leads] as they are stored, int16 microvolts, on the device."""
        # In order of their places on the disk, and transposed here, once: leads innermost is what convolutions want.
        order = np.argsort(indices)
        chosen = np.empty((len(indices), self.records.signals.shape[2], self.records.signals.shape[1]), np.int16)
        chosen[order] = self.records.signals[indices[order]].transpose(0, 2, 1)
        return torch.from_numpy(chosen).to(self.device)

    def normalise(self, raw: Tensor) -> Tensor:
        """[n, samples, leads] in float32, zero mean and unit variance over the training folds."""
        signals = raw.float().sub_(self.mean).div_(self.deviation)
        return F.pad(signals, (0, 0, 0, self.samples - signals.shape[1])) if signals.shape[1] < self.samples else signals

    def signals(self, indices: np.ndarray) -> Tensor:
        """Normalised signals [n, samples, leads]."""
        return self.normalise(self.raw(indices))

    def labels(self, indices: np.ndarray) -> Tensor:
        """[n, 5] of 0 and 1, float32."""
        return torch.from_numpy(np.asarray(self.records.labels, np.float32)[indices]).to(self.device)


def open_dataset(inputs: dict[str, Path], samples: int, device: str) -> Dataset:
    """The prepared files `signals` and `records`."""
    records = load(inputs["signals"], inputs["records"])
    mean, deviation = statistics(records)
    return Dataset(records, mean, deviation, samples, device)


def pretrain_indices(records: EcgRecords, count: int | None) -> np.ndarray:
    """ECGs that are pre-trained on, without labels: all of folds 1-9, or `count` of them, the same in every run.

    Raises:
        ConfigError: there are fewer.
    """
    return _shuffled(records, "pretrain.signals", count or len(records.training), "ecg pretrain signals")


def finetune_indices(records: EcgRecords, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and validation ECGs of the FT set: the first `size` of folds 1-9 as shuffled by the PT seed, split 80/20.

    Sets of 25 are split 60/40, of 10 halved (appendix "Further details for Meta-Parameterized PT").

    Raises:
        ConfigError: there are fewer, or too few to have both parts.
    """
    chosen = _shuffled(records, "finetune sizes and meta sizes", size, "ecg finetune sample", seed)
    validation = round(size * _SMALL_SHARES.get(size, VALIDATION_SHARE))
    if not 0 < validation < size:
        raise ConfigError(f"an FT set of {size} ECGs can't be split into training and validation; legal: 3 or more.")
    return chosen[: size - validation], chosen[size - validation :]


def _shuffled(records: EcgRecords, key: str, count: int, *name: str | int) -> np.ndarray:
    if count > len(records.training):
        raise ConfigError(f"{key}: {count} ECGs are asked for, but folds 1-9 have {len(records.training)}; lower the number.")
    order = torch.randperm(len(records.training), generator=generator(*name)).numpy()
    chosen: np.ndarray = np.asarray(records.training)[order[:count]]
    return chosen
