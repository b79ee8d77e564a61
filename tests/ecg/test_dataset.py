"""Who learns from which ECGs, and what they are normalised by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from metapt.ecg import simulate
from metapt.ecg.dataset import Dataset, finetune_indices, open_dataset, pretrain_indices
from metapt.ecg.prepare import COLUMNS, EcgRecords, load, prepare
from metapt.errors import ConfigError

RecordsOf = Callable[..., EcgRecords]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Generated ECGs of 30 patients, prepared."""
    folder = tmp_path_factory.mktemp("ecgs")
    raw = {name: folder / name for name in ("ptbxl_database.csv", "scp_statements.csv", "records.json")}
    simulate.write(simulate.generate(30, seed=0), raw)
    prepared = {"signals": folder / "signals.npy", "records": folder / "records.csv"}
    prepare(raw, prepared)
    return prepared


def changed(files: dict[str, Path], folder: Path, rows: np.ndarray) -> dict[str, Path]:
    """The same files with other signals in some rows."""
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


@pytest.mark.parametrize(("size", "validation"), [(3, 1), (9, 2), (10, 5), (25, 10), (50, 10), (60, 12), (24, 5), (26, 5)])
def test_ft_sets_are_split_80_20_but_small_ones_halved_and_60_40(records_of: RecordsOf, size: int, validation: int) -> None:
    parts = finetune_indices(records_of(80, 4), size, seed=0)
    assert [len(part) for part in parts] == [size - validation, validation]
    assert len(set(np.concatenate(parts))) == size


def test_only_folds_1_to_9_are_learned_from(records_of: RecordsOf) -> None:
    records = records_of(80, 4)
    folds = records.table["fold"].to_numpy()
    assert set(folds) == set(range(1, 11))
    for indices in (pretrain_indices(records, None), *finetune_indices(records, 72, 0)):
        assert folds[indices].max() <= 9
    assert sorted(pretrain_indices(records, None)) == records.training.tolist()
    assert sorted(np.concatenate(finetune_indices(records, 72, 3))) == records.training.tolist()


def test_pt_seeds_have_ft_sets_of_their_own_which_grow_with_the_size(records_of: RecordsOf) -> None:
    records = records_of(80, 4)
    order = np.concatenate(finetune_indices(records, 72, 1))
    for size in (10, 25, 50):
        chosen = np.concatenate(finetune_indices(records, size, 1))
        assert np.array_equal(chosen, order[:size])
        assert np.array_equal(chosen, np.concatenate(finetune_indices(records, size, 1)))
        assert set(chosen) != set(np.concatenate(finetune_indices(records, size, 2)))


def test_pt_sets_are_the_same_in_every_run_and_nested(records_of: RecordsOf) -> None:
    records = records_of(80, 4)
    few, more = pretrain_indices(records, 20), pretrain_indices(records, 40)
    assert np.array_equal(few, more[:20])
    assert len(set(more)) == 40
    assert few.tolist() != records.training[:20].tolist()


def test_labels_play_no_part_in_who_is_chosen(records_of: RecordsOf) -> None:
    records = records_of(80, 4)
    other = EcgRecords(records.signals, records.table, 1 - records.labels)
    assert np.array_equal(np.concatenate(finetune_indices(records, 25, 0)), np.concatenate(finetune_indices(other, 25, 0)))


def test_more_ecgs_than_there_are_are_refused(records_of: RecordsOf) -> None:
    records = records_of(80, 4)
    with pytest.raises(ConfigError, match=r"pretrain.signals: 73 ECGs are asked for, but folds 1-9 have 72; lower the number"):
        pretrain_indices(records, 73)
    with pytest.raises(ConfigError, match=r"finetune sizes and meta sizes: 100 ECGs are asked for, but folds 1-9 have 72"):
        finetune_indices(records, 100, 0)
    for size in (1, 2):
        with pytest.raises(ConfigError, match=f"an FT set of {size} ECGs can't be split .* legal: 3 or more"):
            finetune_indices(records, size, 0)


def test_the_table_is_that_of_prepared_records(files: dict[str, Path], dataset: Dataset) -> None:
    assert tuple(dataset.records.table.columns) == COLUMNS == tuple(load(**files).table.columns)
