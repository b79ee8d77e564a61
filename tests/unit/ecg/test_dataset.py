"""The ECGs of PT, FT training and validation, and the statistics that normalise them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from metapt.domains.ecg.config import Split
from metapt.domains.ecg.data.dataset import finetune_indices, open_dataset, patient_folds, pretrain_indices
from metapt.domains.ecg.data.prepare import EcgRecords, load
from metapt.errors import ConfigError
from metapt.files import write_csv
from metapt.training.seeds import generator

from . import small_ecgs

SPLITS = get_args(Split)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return prepared ECGs of 100 samples."""
    folder, made = tmp_path_factory.mktemp("ecgs"), small_ecgs.records(40, 100)
    np.save(folder / "signals.npy", made.signals)
    write_csv(made.table, folder / "records.csv")
    return {"signals": folder / "signals.npy", "records": folder / "records.csv"}


def of_patients(patients: np.ndarray) -> EcgRecords:
    """Return records of these patients, every tenth of which is in fold 10."""
    count = len(patients)
    table = {"patient_id": patients, "fold": np.arange(count) % 10 + 1}
    return EcgRecords(np.zeros((count, 12, 4), np.int16), table, np.zeros((count, 5), np.float32))


MANY = of_patients(np.random.default_rng(0).permutation(np.r_[0:300, 0:52, 0:8]))
"""Records of 300 patients, some of whom have two or three."""


def ft_set(records: EcgRecords, size: int, seed: int) -> np.ndarray:
    """Return the first records of folds 1 to 9 in the PT seed's order."""
    order = torch.randperm(len(records.training), generator=generator("ecg finetune sample", seed))
    return records.training[order[:size].numpy()]


def test_training_signals_have_mean_0_and_variance_1_and_leads_innermost(
    files: dict[str, Path], tmp_path: Path
) -> None:
    dataset, records = open_dataset(files, 100, "cpu"), load(**files)
    assert 0 < len(records.test) < len(records.training)
    signals = dataset.signals(records.training)
    assert signals.dtype == torch.float32
    assert signals.is_contiguous()
    assert float(signals.double().mean()) == pytest.approx(0, abs=1e-6)
    assert float(signals.double().std(correction=0)) == pytest.approx(1, rel=1e-6)
    some = np.array([7, 2, 11, 2])  # in any order, even twice
    expected = (torch.from_numpy(np.array(records.signals)).double() - dataset.mean) / dataset.deviation
    torch.testing.assert_close(dataset.signals(some).double(), expected[some].transpose(1, 2), rtol=1e-5, atol=1e-6)
    assert torch.equal(dataset.labels(some), torch.from_numpy(records.labels[some]))
    padded = open_dataset(files, 124, "cpu").signals(some)
    assert torch.equal(padded[:, :100], dataset.signals(some))
    assert padded.shape[1] == 124
    assert not padded[:, 100:].any(), "longer signals end with zeros"

    def statistics(changed: np.ndarray) -> tuple[float, float]:
        other = np.array(records.signals)
        other[changed] += 500
        np.save(tmp_path / "signals.npy", other)
        found = open_dataset({**files, "signals": tmp_path / "signals.npy"}, 100, "cpu")
        return found.mean, found.deviation

    assert statistics(records.test) == statistics(records.test[:0]) != statistics(records.training[:1])


@pytest.mark.parametrize(("size", "validation"), [(3, 1), (9, 2), (10, 5), (25, 10), (60, 12), (24, 5), (26, 6)])
@pytest.mark.parametrize("split", SPLITS)
def test_ft_sets_are_split_80_20_but_small_ones_halved_and_60_40(size: int, validation: int, split: Split) -> None:
    parts = finetune_indices(MANY, size, 0, split)
    assert [len(part) for part in parts] == [size - validation, validation]
    assert len(set(np.concatenate(parts))) == size


@pytest.mark.parametrize("size", [3, 10, 25, 51, 250, 320])
def test_no_patient_is_in_ft_training_and_validation_both(size: int) -> None:
    for seed in range(3):
        train, validation = finetune_indices(MANY, size, seed, "patients")
        assert not set(MANY.patients[train]) & set(MANY.patients[validation])
        assert sorted([*train, *validation]) == sorted(ft_set(MANY, size, seed)), "whatever the split"


def test_the_last_patients_of_the_ft_set_that_fit_are_for_validation() -> None:
    records = of_patients(np.arange(80))
    train, validation = finetune_indices(records, 50, 1, "patients")
    assert [*train, *validation] == ft_set(records, 50, 1).tolist()
    assert len(train) == 40
    by_three = of_patients(np.arange(60) // 30 * 10 + np.arange(60) % 10)  # nine of eleven places are taken by patients
    assert [len(part) for part in finetune_indices(by_three, 54, 0, "patients")] == [45, 9]


@pytest.mark.parametrize(("size", "training"), [(10, 5), (25, 15), (57, 45), (250, 200)])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_released_split_is_that_of_the_released_code_to_the_record(size: int, training: int, seed: int) -> None:
    """Records of folds 1 to 9 in the database's order, shuffled by NumPy's generator; training comes first."""
    of_training = np.flatnonzero(MANY.table["fold"] != 10)
    places = np.arange(len(of_training))
    np.random.RandomState(seed).shuffle(places)
    train, validation = finetune_indices(MANY, size, seed, "released")
    assert [*train, *validation] == of_training[places[:size]].tolist()
    assert len(train) == training


@pytest.mark.parametrize("folds", [2, 5, 7])
def test_folds_have_whole_patients_and_are_as_equal_as_can_be(folds: int) -> None:
    patients = MANY.patients[ft_set(MANY, 250, 0)]
    fold = patient_folds(patients, folds)
    assert len(set(zip(patients, fold, strict=True))) == len(set(patients))
    sizes = np.bincount(fold, minlength=folds)
    assert sizes.max() - sizes.min() <= 1
    assert patient_folds(np.array([5, 3, 9, 1, 7]), 2).tolist() == [0, 1, 0, 1, 0], "patients with one ECG take turns"
    assert patient_folds(np.array([5, 3, 3, 1, 7]), 2).tolist() == [1, 0, 0, 1, 0]


@pytest.mark.parametrize("split", SPLITS)
def test_sets_grow_with_their_size_and_pt_seeds_have_ft_sets_of_their_own(split: Split) -> None:
    every = len(MANY.training)
    for indices in (pretrain_indices(MANY, None), np.concatenate(finetune_indices(MANY, every, 3, split))):
        assert sorted(indices) == MANY.training.tolist() == np.flatnonzero(MANY.table["fold"] != 10).tolist()

    def chosen(size: int, seed: int) -> set[int]:
        return set(np.concatenate(finetune_indices(MANY, size, seed, split)))

    for smaller, larger in itertools.pairwise((10, 25, 50)):
        assert chosen(smaller, 1) < chosen(larger, 1)
        assert chosen(larger, 1) != chosen(larger, 2)
    few, more = pretrain_indices(MANY, 20), pretrain_indices(MANY, 40)
    assert np.array_equal(few, more[:20])
    assert len(set(more)) == 40
    assert few.tolist() != MANY.training[:20].tolist()


def test_sets_that_can_not_be_are_refused() -> None:
    records, asked = of_patients(np.arange(80)), "{} ECGs are asked for, but folds 1-9 have 72"
    with pytest.raises(ConfigError, match="pretrain.signals: " + asked.format(73)):
        pretrain_indices(records, 73)
    with pytest.raises(ConfigError, match="4 ECGs of 2 patients can't be dealt out to 3 folds; take more ECGs"):
        patient_folds(np.array([1, 1, 2, 2]), 3)
    for one, size, words in (
        (records, 100, "meta_sizes or sizes: " + asked.format(100)),
        (records, 2, "an FT set of 2 ECGs can't be split .* legal: 3 or more"),
        (of_patients(np.zeros(60, int)), 25, "the 25 ECGs of the FT set of PT seed 3 have no patient with 10 ECGs or"),
    ):
        with pytest.raises(ConfigError, match=words):
            finetune_indices(one, size, 3, "patients")
