"""The ECGs of PT, FT training and validation, and the statistics that normalise them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from metapt.domains.ecg.data import prepare, simulate
from metapt.domains.ecg.data.dataset import (
    Dataset,
    Split,
    finetune_indices,
    finetune_parts,
    open_dataset,
    patient_folds,
    pretrain_indices,
)
from metapt.domains.ecg.data.prepare import COLUMNS, EcgRecords, load
from metapt.errors import ConfigError
from metapt.machine import Machine
from metapt.training.seeds import generator

RecordsOf = Callable[..., EcgRecords]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return generated ECGs of 30 patients, prepared."""
    folder = tmp_path_factory.mktemp("ecgs")
    raw = {name: folder / name for name in ("ptbxl_database.csv", "scp_statements.csv", "records.json")}
    simulate.write(simulate.generate(30, seed=0), raw)
    prepared = {"signals": folder / "signals.npy", "records": folder / "records.csv"}
    prepare.run({}, raw, prepared, Machine())
    return prepared


def changed(files: dict[str, Path], folder: Path, rows: np.ndarray) -> dict[str, Path]:
    """Return the same files with other signals in some rows."""
    signals = np.array(np.load(files["signals"]))
    signals[rows] += 500
    np.save(folder / "signals.npy", signals)
    return {**files, "signals": folder / "signals.npy"}


def test_training_signals_have_mean_0_and_variance_1_and_leads_innermost(files: dict[str, Path]) -> None:
    dataset = open_dataset(files, 1000, "cpu")
    records = load(**files)
    assert 0 < len(records.test) < len(records.training)
    signals = dataset.signals(records.training)
    assert signals.dtype == torch.float32
    assert signals.is_contiguous()
    assert float(signals.double().mean()) == pytest.approx(0, abs=1e-6)
    assert float(signals.double().std(correction=0)) == pytest.approx(1, rel=1e-6)
    raw = torch.from_numpy(np.array(records.signals))
    expected = (raw.double() - dataset.mean) / dataset.deviation
    some = np.array([7, 2, 11, 2])  # in any order, even twice
    torch.testing.assert_close(dataset.signals(some).double(), expected[some].transpose(1, 2), rtol=1e-5, atol=1e-6)
    assert torch.equal(dataset.labels(some), torch.from_numpy(records.labels[some]))
    assert dataset.raw(some).dtype == torch.int16


def test_test_signals_have_no_part_in_the_normalisation(files: dict[str, Path], tmp_path: Path) -> None:
    dataset, records = open_dataset(files, 1000, "cpu"), load(**files)
    other = open_dataset(changed(files, tmp_path, records.test), 1000, "cpu")
    assert (other.mean, other.deviation) == (dataset.mean, dataset.deviation)
    assert torch.equal(other.signals(records.training), dataset.signals(records.training))
    assert not torch.equal(other.signals(records.test), dataset.signals(records.test))
    trained = open_dataset(changed(files, tmp_path, records.training[:1]), 1000, "cpu")
    assert trained.mean != dataset.mean


def test_signals_of_1024_samples_end_with_zeros(files: dict[str, Path]) -> None:
    some = np.array([0, 3])
    padded = open_dataset(files, 1024, "cpu").signals(some)
    assert padded.shape == (2, 1024, 12)
    assert torch.equal(padded[:, :1000], open_dataset(files, 1000, "cpu").signals(some))
    assert not padded[:, 1000:].any()


@pytest.mark.parametrize(
    ("size", "validation"), [(3, 1), (9, 2), (10, 5), (25, 10), (50, 10), (60, 12), (24, 5), (26, 6)]
)
@pytest.mark.parametrize("split", ["patients", "released"])
def test_ft_sets_are_split_80_20_but_small_ones_halved_and_60_40(
    records_of: RecordsOf, size: int, validation: int, split: Split
) -> None:
    parts = finetune_indices(records_of(80, 4), size, 0, split)
    assert [len(part) for part in parts] == [size - validation, validation]
    assert len(set(np.concatenate(parts))) == size


@pytest.fixture(scope="module")
def many() -> EcgRecords:
    """Return generated ECGs of 300 patients, some of whom have two or three."""
    ecgs = simulate.generate(300, seed=0)
    table = {"patient_id": ecgs.patient_id, "fold": ecgs.fold}
    return EcgRecords(ecgs.signals, table, ecgs.labels.astype(np.float32))


def ft_set(records: EcgRecords, size: int, seed: int) -> np.ndarray:
    """Return the first records of folds 1 to 9 in the PT seed's order."""
    order = torch.randperm(len(records.training), generator=generator("ecg finetune sample", seed))
    return records.training[order[:size].numpy()]


@pytest.mark.parametrize("size", [3, 10, 25, 50, 51, 100, 250, 320])
@pytest.mark.parametrize("seed", range(4))
def test_no_patient_is_in_ft_training_and_validation_both(many: EcgRecords, size: int, seed: int) -> None:
    train, validation = finetune_indices(many, size, seed, "patients")
    assert not set(many.patients[train]) & set(many.patients[validation])
    assert (len(train), len(validation)) == finetune_parts(size)
    assert sorted([*train, *validation]) == sorted(ft_set(many, size, seed)), (
        "who is in the FT set does not depend on the split"
    )


def test_the_test_would_see_patients_in_both(many: EcgRecords) -> None:
    assert many.patients[many.training].tolist() != sorted(set(many.patients[many.training]))
    assert any(
        set(many.patients[train]) & set(many.patients[validation])
        for train, validation in (finetune_indices(many, 250, seed, "released") for seed in range(4))
    )


def test_where_each_patient_has_one_ecg_the_last_of_the_ft_set_are_for_validation(records_of: RecordsOf) -> None:
    records = records_of(80, 4)
    alone = EcgRecords(records.signals, records.table | {"patient_id": np.arange(80)}, records.labels)
    chosen = ft_set(alone, 50, 1)
    train, validation = finetune_indices(alone, 50, 1, "patients")
    assert train.tolist() == chosen[:40].tolist()
    assert validation.tolist() == chosen[40:].tolist()


def test_validation_is_smaller_where_no_patient_fits_and_the_ft_set_is_not(records_of: RecordsOf) -> None:
    """Nine of eleven places are taken by patients with three ECGs each."""
    records = records_of(60, 4)
    index = np.arange(60)
    thirds = records.table | {"patient_id": index // 30 * 10 + index % 10}
    by_three = EcgRecords(records.signals, thirds, records.labels)
    assert finetune_parts(54) == (43, 11)
    assert [len(part) for part in finetune_indices(by_three, 54, 0, "patients")] == [45, 9]
    one = EcgRecords(records.signals, records.table | {"patient_id": 0 * index}, records.labels)
    with pytest.raises(
        ConfigError, match="the 25 ECGs of the FT set of PT seed 3 have no patient with 10 ECGs or fewer"
    ):
        finetune_indices(one, 25, 3, "patients")


@pytest.mark.parametrize("size", [10, 25, 50, 57, 100, 250])
@pytest.mark.parametrize("seed", [0, 1, 2])
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
    for patient in set(patients):
        assert len(set(fold[patients == patient])) == 1
    sizes = np.bincount(fold, minlength=folds)
    assert sizes.max() - sizes.min() <= 1


def test_folds_of_patients_with_one_ecg_each_take_turns() -> None:
    assert patient_folds(np.array([5, 3, 9, 1, 7]), 2).tolist() == [0, 1, 0, 1, 0]
    assert patient_folds(np.array([5, 3, 3, 1, 7]), 2).tolist() == [1, 0, 0, 1, 0]
    with pytest.raises(ConfigError, match="4 ECGs of 2 patients can't be dealt out to 3 folds; take more ECGs"):
        patient_folds(np.array([1, 1, 2, 2]), 3)


def test_only_folds_1_to_9_are_learned_from(records_of: RecordsOf) -> None:
    records = records_of(80, 4)
    folds = records.table["fold"]
    assert set(folds) == set(range(1, 11))
    for indices in (pretrain_indices(records, None), *finetune_indices(records, 72, 0, "patients")):
        assert folds[indices].max() <= 9
    assert sorted(pretrain_indices(records, None)) == records.training.tolist()
    assert sorted(np.concatenate(finetune_indices(records, 72, 3, "patients"))) == records.training.tolist()


def test_pt_seeds_have_ft_sets_of_their_own_which_grow_with_the_size(records_of: RecordsOf) -> None:
    records = records_of(80, 4)
    smaller: set[int] = set()
    for size in (10, 25, 50):
        chosen = np.concatenate(finetune_indices(records, size, 1, "patients"))
        assert smaller < set(chosen)
        smaller = set(chosen)
        assert np.array_equal(chosen, np.concatenate(finetune_indices(records, size, 1, "patients")))
        assert set(chosen) != set(np.concatenate(finetune_indices(records, size, 2, "patients")))


def test_pt_sets_are_the_same_in_every_run_and_nested(records_of: RecordsOf) -> None:
    records = records_of(80, 4)
    few, more = pretrain_indices(records, 20), pretrain_indices(records, 40)
    assert np.array_equal(few, more[:20])
    assert len(set(more)) == 40
    assert few.tolist() != records.training[:20].tolist()


def test_labels_play_no_part_in_who_is_chosen(records_of: RecordsOf) -> None:
    records = records_of(80, 4)
    other = EcgRecords(records.signals, records.table, 1 - records.labels)
    for split in get_args(Split):
        for part, same in zip(*(finetune_indices(each, 25, 0, split) for each in (records, other)), strict=True):
            assert np.array_equal(part, same)


def test_more_ecgs_than_there_are_are_refused(records_of: RecordsOf) -> None:
    records = records_of(80, 4)
    with pytest.raises(
        ConfigError, match=r"pretrain.signals: 73 ECGs are asked for, but folds 1-9 have 72; lower the number"
    ):
        pretrain_indices(records, 73)
    with pytest.raises(
        ConfigError,
        match=r"meta_sizes or sizes: 100 ECGs are asked for, but folds 1-9 have 72",
    ):
        finetune_indices(records, 100, 0, "patients")
    for size in (1, 2):
        with pytest.raises(ConfigError, match=f"an FT set of {size} ECGs can't be split .* legal: 3 or more"):
            finetune_indices(records, size, 0, "patients")


def test_the_table_is_that_of_prepared_records(files: dict[str, Path], dataset: Dataset) -> None:
    assert tuple(dataset.records.table) == COLUMNS == tuple(load(**files).table)
