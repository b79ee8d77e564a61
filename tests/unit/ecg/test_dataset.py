"""The ECGs of PT, FT training and validation, and the statistics that normalise them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from metapt.domains.ecg.data import prepare, simulate
from metapt.domains.ecg.data.dataset import (
    Split,
    finetune_indices,
    finetune_parts,
    open_dataset,
    patient_folds,
    pretrain_indices,
)
from metapt.domains.ecg.data.prepare import EcgRecords, load
from metapt.errors import ConfigError
from metapt.machine import Machine
from metapt.sections import JobSettings
from metapt.training.seeds import generator


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return generated ECGs of 30 patients, prepared."""
    folder = tmp_path_factory.mktemp("ecgs")
    raw = {name: folder / name for name in ("ptbxl_database.csv", "scp_statements.csv", "records.json")}
    simulate.write(simulate.generate(30, seed=0), raw)
    prepared = {"signals": folder / "signals.npy", "records": folder / "records.csv"}
    prepare.run(JobSettings(), raw, prepared, Machine())
    return prepared


@pytest.fixture(scope="module")
def many() -> EcgRecords:
    """Return generated ECGs of 300 patients, some of whom have two or three."""
    ecgs = simulate.generate(300, seed=0)
    table = {"patient_id": ecgs.patient_id, "fold": ecgs.fold}
    return EcgRecords(ecgs.signals, table, ecgs.labels.astype(np.float32))


def of_patients(patients: np.ndarray) -> EcgRecords:
    """Return records of these patients, every tenth of which is in fold 10."""
    count = len(patients)
    table = {"patient_id": patients, "fold": np.arange(count) % 10 + 1}
    return EcgRecords(np.zeros((count, 12, 4), np.int16), table, np.zeros((count, 5), np.float32))


def ft_set(records: EcgRecords, size: int, seed: int) -> np.ndarray:
    """Return the first records of folds 1 to 9 in the PT seed's order."""
    order = torch.randperm(len(records.training), generator=generator("ecg finetune sample", seed))
    return records.training[order[:size].numpy()]


def test_training_signals_have_mean_0_and_variance_1_and_leads_innermost(files: dict[str, Path]) -> None:
    dataset, records = open_dataset(files, 1000, "cpu"), load(**files)
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
    padded = open_dataset(files, 1024, "cpu").signals(some)
    assert torch.equal(padded[:, :1000], dataset.signals(some))
    assert padded.shape[1] == 1024
    assert not padded[:, 1000:].any(), "longer signals end with zeros"


def test_test_signals_have_no_part_in_the_normalisation(files: dict[str, Path], tmp_path: Path) -> None:
    records = load(**files)

    def statistics(changed: np.ndarray) -> tuple[float, float]:
        signals = np.array(records.signals)
        signals[changed] += 500
        np.save(tmp_path / "signals.npy", signals)
        found = open_dataset({**files, "signals": tmp_path / "signals.npy"}, 1000, "cpu")
        return found.mean, found.deviation

    assert statistics(records.test) == statistics(records.test[:0]) != statistics(records.training[:1])


@pytest.mark.parametrize(
    ("size", "validation"), [(3, 1), (9, 2), (10, 5), (25, 10), (50, 10), (60, 12), (24, 5), (26, 6)]
)
@pytest.mark.parametrize("split", get_args(Split))
def test_ft_sets_are_split_80_20_but_small_ones_halved_and_60_40(
    many: EcgRecords, size: int, validation: int, split: Split
) -> None:
    parts = finetune_indices(many, size, 0, split)
    assert [len(part) for part in parts] == [size - validation, validation] == list(finetune_parts(size))
    assert len(set(np.concatenate(parts))) == size


@pytest.mark.parametrize("size", [3, 10, 25, 51, 250, 320])
@pytest.mark.parametrize("seed", range(3))
def test_no_patient_is_in_ft_training_and_validation_both(many: EcgRecords, size: int, seed: int) -> None:
    train, validation = finetune_indices(many, size, seed, "patients")
    assert not set(many.patients[train]) & set(many.patients[validation])
    assert sorted([*train, *validation]) == sorted(ft_set(many, size, seed)), "whatever the split"


def test_where_each_patient_has_one_ecg_the_last_of_the_ft_set_are_for_validation() -> None:
    records = of_patients(np.arange(80))
    train, validation = finetune_indices(records, 50, 1, "patients")
    assert [*train, *validation] == ft_set(records, 50, 1).tolist()
    assert len(train) == 40


def test_validation_is_smaller_where_no_patient_fits_and_the_ft_set_is_not() -> None:
    """Nine of eleven places are taken by patients with three ECGs each."""
    index = np.arange(60)
    assert finetune_parts(54) == (43, 11)
    by_three = of_patients(index // 30 * 10 + index % 10)
    assert [len(part) for part in finetune_indices(by_three, 54, 0, "patients")] == [45, 9]


@pytest.mark.parametrize("size", [10, 25, 57, 250])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_released_split_is_that_of_the_released_code_to_the_record(many: EcgRecords, size: int, seed: int) -> None:
    """Records of folds 1 to 9 in the database's order, shuffled by NumPy's generator; training comes first."""
    of_training = [index for index, fold in enumerate(many.table["fold"]) if fold != 10]
    places = np.arange(len(of_training))
    np.random.RandomState(seed).shuffle(places)
    training = {10: 5, 25: 15}.get(size, int(0.8 * size))
    train, validation = finetune_indices(many, size, seed, "released")
    assert train.tolist() == [of_training[place] for place in places[:training]]
    assert validation.tolist() == [of_training[place] for place in places[training:size]]


@pytest.mark.parametrize("folds", [2, 5, 7])
def test_folds_have_whole_patients_and_are_as_equal_as_can_be(many: EcgRecords, folds: int) -> None:
    patients = many.patients[ft_set(many, 250, 0)]
    fold = patient_folds(patients, folds)
    assert len(set(zip(patients, fold, strict=True))) == len(set(patients))
    sizes = np.bincount(fold, minlength=folds)
    assert sizes.max() - sizes.min() <= 1
    assert patient_folds(np.array([5, 3, 9, 1, 7]), 2).tolist() == [0, 1, 0, 1, 0], "patients with one ECG take turns"
    assert patient_folds(np.array([5, 3, 3, 1, 7]), 2).tolist() == [1, 0, 0, 1, 0]


def test_only_folds_1_to_9_are_learned_from(many: EcgRecords) -> None:
    every = len(many.training)
    for indices in (pretrain_indices(many, None), np.concatenate(finetune_indices(many, every, 3, "patients"))):
        assert sorted(indices) == np.flatnonzero(many.table["fold"] != 10).tolist()


@pytest.mark.parametrize("split", get_args(Split))
def test_sets_grow_with_their_size_and_pt_seeds_have_ft_sets_of_their_own(many: EcgRecords, split: Split) -> None:
    labels = EcgRecords(many.signals, many.table, 1 - many.labels)

    def chosen(size: int, seed: int, records: EcgRecords = many) -> set[int]:
        return set(np.concatenate(finetune_indices(records, size, seed, split)))

    for smaller, larger in itertools.pairwise((10, 25, 50)):
        assert chosen(smaller, 1) < chosen(larger, 1)
        assert chosen(larger, 1) == chosen(larger, 1, labels) != chosen(larger, 2), "labels play no part"
    few, more = pretrain_indices(many, 20), pretrain_indices(many, 40)
    assert np.array_equal(few, more[:20])
    assert len(set(more)) == 40
    assert few.tolist() != many.training[:20].tolist()


def test_sets_that_can_not_be_are_refused() -> None:
    records = of_patients(np.arange(80))
    asked = "{} ECGs are asked for, but folds 1-9 have 72"
    with pytest.raises(ConfigError, match="pretrain.signals: " + asked.format(73)):
        pretrain_indices(records, 73)
    for size, words in (
        (100, "meta_sizes or sizes: " + asked.format(100)),
        (2, "an FT set of 2 ECGs can't be split .* legal: 3 or more"),
    ):
        with pytest.raises(ConfigError, match=words):
            finetune_indices(records, size, 0, "patients")
    with pytest.raises(ConfigError, match="the 25 ECGs of the FT set of PT seed 3 have no patient with 10 ECGs or few"):
        finetune_indices(of_patients(np.zeros(60, int)), 25, 3, "patients")
    with pytest.raises(ConfigError, match="4 ECGs of 2 patients can't be dealt out to 3 folds; take more ECGs"):
        patient_folds(np.array([1, 1, 2, 2]), 3)
