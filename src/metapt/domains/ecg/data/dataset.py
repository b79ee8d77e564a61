"""ECGs on the device, and the ECGs of PT, FT training and validation (appendix "Further dataset details")."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.ecg.config import Split
from metapt.domains.ecg.data.prepare import EcgRecords, load, statistics
from metapt.errors import ConfigError
from metapt.training.seeds import generator

_TRAINING_SHARE = 0.8
_SMALL_SHARES = {10: 0.5, 25: 0.6}
"""Share of training in FT sets of these sizes, where a fifth would be too little for validation."""


class Labelled(NamedTuple):
    """Normalised signals [n, samples, 12], and labels [n, classes] of 0 and 1 in float, on one device."""

    signals: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Dataset:
    """Prepared ECGs, normalised by the training folds' mean and standard deviation."""

    records: EcgRecords  # all ECGs, mapped from the disk
    # mean, deviation: mean and standard deviation over all signals of folds 1-9, leads and times, microvolts
    mean: float
    deviation: float
    samples: int  # length of a signal; longer than a record means zeros at its end
    device: str  # of the tensors that are returned

    def raw(self, indices: np.ndarray) -> Tensor:
        """Return signals [n, samples of a record, leads] as they are stored, int16 microvolts, on the device."""
        # In order of their places on the disk, and transposed here, once: leads innermost is what convolutions want.
        order = np.argsort(indices)
        chosen = np.empty((len(indices), self.records.signals.shape[2], self.records.signals.shape[1]), np.int16)
        chosen[order] = self.records.signals[indices[order]].transpose(0, 2, 1)
        return torch.from_numpy(chosen).to(self.device)

    def normalise(self, raw: Tensor) -> Tensor:
        """Return raw signals as float32 [n, samples, leads], with zero mean and unit variance in the training folds."""
        signals, missing = raw.float().sub_(self.mean).div_(self.deviation), self.samples - raw.shape[1]
        return F.pad(signals, (0, 0, 0, missing)) if missing > 0 else signals

    def signals(self, indices: np.ndarray) -> Tensor:
        """Return normalised signals [n, samples, leads]."""
        return self.normalise(self.raw(indices))

    def labels(self, indices: np.ndarray) -> Tensor:
        """Return labels [n, classes] of 0 and 1, float32."""
        return torch.from_numpy(self.records.labels[indices]).to(self.device)

    def labelled(self, indices: np.ndarray) -> Labelled:
        return Labelled(self.signals(indices), self.labels(indices))


def open_dataset(inputs: dict[str, Path], samples: int, device: str) -> Dataset:
    """Open the prepared files `signals` and `records`; raises as `load` and `statistics`."""
    records = load(inputs["signals"], inputs["records"])
    return Dataset(records, *statistics(records), samples, device)


def pretrain_indices(records: EcgRecords, count: int | None) -> np.ndarray:
    """Return the ECGs for PT: all of folds 1-9, or `count` of them, the same in every run.

    Raises ConfigError if there are fewer.
    """
    return _shuffled(records, "pretrain.signals", count or len(records.training), "ecg pretrain signals")


def finetune_indices(records: EcgRecords, size: int, seed: int, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Return the training and validation ECGs of the FT set of a PT seed.

    They are 80/20; of 25 ECGs 60/40, of 10 ECGs 50/50 (appendix "Further details"). The FT set is the first `size` ECGs
    of folds 1-9, shuffled by the PT seed. With the split "patients" no patient is in both parts: from the end of the
    set on, each patient whose ECGs all fit into the rest of the validation part goes there, and the others are for
    training. So the total is exact, and validation is smaller than its part only if no patient fits. With "released"
    the ECGs are those of the released code, which splits them by record. Raises ConfigError if there are fewer ECGs, or
    too few ECGs or patients for two parts.
    """
    if size < 3:
        raise ConfigError(f"an FT set of {size} ECGs can't be split into training and validation; legal: 3 or more.")
    training = int(size * _SMALL_SHARES.get(size, _TRAINING_SHARE))
    validation = size - training
    key = "finetune_sizes, finetune_size, meta_sizes or sizes"
    if split == "released":
        chosen = _first(records, key, size, np.random.RandomState(seed).permutation(len(records.training)))
        return chosen[:training], chosen[training:]
    chosen = _shuffled(records, key, size, "ecg finetune sample", seed)
    held_out = _whole_patients(records.patients[chosen], validation)
    if not held_out.any():
        raise ConfigError(
            f"the {size} ECGs of the FT set of PT seed {seed} have no patient with {validation} ECGs or fewer, to "
            "validate on; take more."
        )
    return chosen[~held_out], chosen[held_out]


def patient_folds(patients: np.ndarray, folds: int) -> np.ndarray:
    """Return the fold, 0 to `folds` - 1, of each ECG of these patients [n]; all ECGs of a patient are in one fold.

    Patients with most ECGs come first, else in the given order. Each goes to the smallest fold so far. Raises
    ConfigError if there are fewer patients than folds.
    """
    counts = Counter(patients.tolist())
    if len(counts) < folds:
        ecgs = f"{len(patients)} ECGs of {len(counts)} patients"
        raise ConfigError(
            f"{ecgs} can't be dealt out to {folds} folds; take more ECGs, or at most {len(counts)} folds."
        )
    sizes, fold = [0] * folds, {}
    for patient, count in counts.most_common():
        fold[patient] = sizes.index(min(sizes))
        sizes[fold[patient]] += count
    return np.array([fold[patient] for patient in patients.tolist()])


def _whole_patients(patients: np.ndarray, most: int) -> np.ndarray:
    """Return which ECGs of these patients [n] are held out: whole patients from the end, at most `most` ECGs."""
    held_out = np.zeros(len(patients), bool)
    for patient in dict.fromkeys(patients[::-1].tolist()):
        of_patient = patients == patient
        if held_out.sum() + of_patient.sum() <= most:
            held_out |= of_patient
    return held_out


def _shuffled(records: EcgRecords, key: str, count: int, *name: str | int) -> np.ndarray:
    return _first(records, key, count, torch.randperm(len(records.training), generator=generator(*name)).numpy())


def _first(records: EcgRecords, key: str, count: int, order: np.ndarray) -> np.ndarray:
    """Return the first `count` records of folds 1 to 9 in this order."""
    training = records.training
    if count > len(training):
        raise ConfigError(f"{key}: {count} ECGs are asked for, but folds 1-9 have {len(training)}; lower the number.")
    return np.asarray(training[order[:count]])
