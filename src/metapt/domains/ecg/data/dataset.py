"""ECGs on the device, and who learns from which of them (appendix "Further dataset details")."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.ecg.data.prepare import EcgRecords, load, statistics
from metapt.errors import ConfigError
from metapt.training.seeds import generator

TRAINING_SHARE = 0.8
_SMALL_SHARES = {10: 0.5, 25: 0.6}
"""Share of training at FT sets of these sizes, where a fifth would be too little for validation."""

Split = Literal["patients", "released"]
"""How an FT set is split into training and validation; see `finetune_indices`."""


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
        return (
            F.pad(signals, (0, 0, 0, self.samples - signals.shape[1])) if signals.shape[1] < self.samples else signals
        )

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


def finetune_parts(size: int) -> tuple[int, int]:
    """Training and validation ECGs of an FT set: 80/20; of 25 ECGs 60/40, of 10 one half each (appendix "Further details")."""
    training = int(size * _SMALL_SHARES.get(size, TRAINING_SHARE))
    return training, size - training


def finetune_indices(records: EcgRecords, size: int, seed: int, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Training and validation ECGs of the FT set, the first `size` of folds 1-9 as shuffled by the PT seed, see `finetune_parts`.

    With the split "patients" no patient is in both: from the end of the FT set on, each patient whose ECGs all fit into what
    validation still lacks goes there, and the others are training. So `size` is exact, and validation has fewer ECGs than its
    part only where no patient fits. With "released" the ECGs are those of the released code, which splits them by record.

    Raises:
        ConfigError: there are fewer, or too few (or of too few patients) to have both parts.
    """
    if size < 3:
        raise ConfigError(f"an FT set of {size} ECGs can't be split into training and validation; legal: 3 or more.")
    training, validation = finetune_parts(size)
    key = "finetune sizes and meta sizes"
    if split == "released":
        chosen = _first(records, key, size, np.random.RandomState(seed).permutation(len(records.training)))
        return chosen[:training], chosen[training:]
    chosen = _shuffled(records, key, size, "ecg finetune sample", seed)
    held_out = _whole_patients(records.patients[chosen], validation)
    if not held_out.any():
        raise ConfigError(
            f"the {size} ECGs of the FT set of PT seed {seed} have no patient with {validation} ECGs or fewer, to validate on; "
            "take more."
        )
    return chosen[~held_out], chosen[held_out]


def patient_folds(patients: np.ndarray, folds: int) -> np.ndarray:
    """The fold, 0 to `folds` - 1, of each ECG of these patients [n]: all ECGs of a patient in one, folds as equal as that allows.

    Patients with most ECGs come first, else in the order given; each goes to the smallest fold so far.

    Raises:
        ConfigError: there are fewer patients than folds.
    """
    counts = Counter(patients.tolist())
    if len(counts) < folds:
        raise ConfigError(
            f"{len(patients)} ECGs of {len(counts)} patients can't be dealt out to {folds} folds; take more ECGs."
        )
    sizes, fold = [0] * folds, {}
    for patient, count in counts.most_common():
        fold[patient] = sizes.index(min(sizes))
        sizes[fold[patient]] += count
    return np.array([fold[patient] for patient in patients.tolist()])


def _whole_patients(patients: np.ndarray, most: int) -> np.ndarray:
    """Which ECGs of these patients [n] are of those that fill `most` places, filled from the end."""
    held_out = np.zeros(len(patients), bool)
    for patient in dict.fromkeys(patients[::-1].tolist()):
        of_patient = patients == patient
        if held_out.sum() + of_patient.sum() <= most:
            held_out |= of_patient
    return held_out


def _shuffled(records: EcgRecords, key: str, count: int, *name: str | int) -> np.ndarray:
    return _first(records, key, count, torch.randperm(len(records.training), generator=generator(*name)).numpy())


def _first(records: EcgRecords, key: str, count: int, order: np.ndarray) -> np.ndarray:
    """The first `count` records of folds 1 to 9 in this order."""
    if count > len(records.training):
        raise ConfigError(
            f"{key}: {count} ECGs are asked for, but folds 1-9 have {len(records.training)}; lower the number."
        )
    chosen: np.ndarray = np.asarray(records.training)[order[:count]]
    return chosen
