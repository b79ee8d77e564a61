"""Prepared ECGs equal the raw ones, and files that are not of the prepared form are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from metapt.domains.ecg.data import prepare
from metapt.domains.ecg.data.prepare import KEYS, EcgRecords, load, statistics
from metapt.domains.ecg.data.simulate import write_record
from metapt.domains.ecg.data.sources import CLASSES
from metapt.errors import DataError
from metapt.machine import Machine
from metapt.sections import JobSettings

Files = dict[str, Path]
FOLDS = [1, 10, 2, 9, 10]
CODES = ["{'NORM': 100.0}", "{'AMI': 0.0, 'LVH': 50.0}", "{}", "{'NDT': 15.0}", "{'IRBBB': 100.0}"]
NAMES = [f"records100/00000/0000{number}_lr" for number in range(1, 6)]
STATEMENTS = ",diagnostic,diagnostic_class\nNORM,1.0,NORM\nAMI,1.0,MI\nNDT,1.0,STTC\nIRBBB,1.0,CD\nLVH,1.0,HYP\n"
SIGNALS = np.random.default_rng(0).integers(-3000, 3000, (5, 12, 1000)).astype(np.int16)


@pytest.fixture
def raw(tmp_path: Path) -> Files:
    """Write five records of five patients."""
    for name, signal in zip(NAMES, SIGNALS, strict=True):
        write_record(tmp_path / name, signal)
    rows = [f'{i + 1},{100 + i},"{CODES[i]}",{FOLDS[i]},{NAMES[i]}\n' for i in range(5)]
    (tmp_path / "ptbxl_database.csv").write_text("ecg_id,patient_id,scp_codes,strat_fold,filename_lr\n" + "".join(rows))
    (tmp_path / "scp_statements.csv").write_text(STATEMENTS)
    (tmp_path / "records.json").write_text(json.dumps({"version": "1", "records": NAMES}))
    return {name: tmp_path / name for name in ("ptbxl_database.csv", "scp_statements.csv", "records.json")}


@pytest.fixture
def outputs(tmp_path: Path) -> Files:
    return {"signals": tmp_path / "prepared/signals.npy", "records": tmp_path / "prepared/records.csv"}


def run(raw: Files, outputs: Files) -> None:
    prepare.run(JobSettings(), raw, outputs, Machine())


def make(signals: NDArray[np.int16], folds: list[int]) -> EcgRecords:
    table = dict.fromkeys([*KEYS, *CLASSES], np.zeros(len(folds), np.int64)) | {"fold": np.array(folds)}
    return EcgRecords(signals, table, np.zeros((len(folds), 5), np.float32))


def test_prepared_records_are_the_raw_ones(raw: Files, outputs: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_BLOCK", 2)
    run(raw, outputs)
    records = load(**outputs)
    assert isinstance(records.signals, np.memmap)
    assert not records.signals.flags.writeable
    np.testing.assert_array_equal(records.signals, SIGNALS)
    assert records.labels.dtype == np.float32
    assert records.labels.tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 1], [0] * 5, [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]]
    numbers = [list(range(1, 6)), list(range(100, 105)), FOLDS]
    assert [records.table[name].tolist() for name in KEYS] == numbers
    assert (records.training.tolist(), records.test.tolist()) == ([0, 2, 3], [1, 4])
    header, first, *_ = outputs["records"].read_text().splitlines()
    assert (header, first) == (f"ecg_id,patient_id,fold,{','.join(CLASSES)}", "1,100,1,1,0,0,0,0")

    raw["records.json"].write_text(json.dumps({"version": "1", "records": [NAMES[3], NAMES[1]]}))
    run(raw, outputs)
    some = load(**outputs)
    np.testing.assert_array_equal(some.signals, SIGNALS[[1, 3]])
    assert some.table["ecg_id"].tolist() == [2, 4], "only what is listed"


NINTH = "records100/00000/00009_lr"
LISTS: list[tuple[Any, str]] = [
    ("{", "can't be read"), ("[]", "is no list of records"), ([], "is no list of records"),
    ([1], "is no list of records"), ([NAMES[0], NAMES[0]], "names a record twice"),
    ([NAMES[0], NINTH], rf"names {NINTH}, which .*ptbxl_database\.csv does not"),
    ([NAMES[0], "../secret"], r"names \.\./secret, which"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "message"), LISTS)
def test_wrong_listing(raw: Files, outputs: Files, names: Any, message: str) -> None:
    raw["records.json"].write_text(names if isinstance(names, str) else json.dumps({"records": names}))
    with pytest.raises(DataError, match=rf"records\.json {message}"):
        run(raw, outputs)
    assert not outputs["signals"].parent.exists()


def test_a_wrong_record_leaves_nothing(raw: Files, outputs: Files) -> None:
    path = raw["records.json"].parent / f"{NAMES[4]}.dat"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"00005_lr\.dat is cut"):
        run(raw, outputs)
    assert not list(outputs["signals"].parent.iterdir())


def test_missing_files_are_named(raw: Files, outputs: Files) -> None:
    run(raw, outputs)
    for path in outputs.values():
        path.unlink()
        with pytest.raises(DataError, match=rf"{path.name} is missing: make it with the target that prepares ECGs"):
            load(**outputs)


def test_statistics_are_those_of_the_training_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_BLOCK", 2)
    signals, training = SIGNALS.copy(), SIGNALS[[0, 2, 3]].astype(np.float64)
    mean, deviation = statistics(make(signals, FOLDS))
    assert mean == pytest.approx(training.mean(), rel=1e-12)
    assert deviation == pytest.approx(training.std(), rel=1e-12)
    signals[[1, 4]] = 0
    assert statistics(make(signals, FOLDS)) == (mean, deviation)
    extreme = np.full((200, 12, 1000), 32767, np.int16)  # whose squares are not exact in float32
    extreme[:100] = -32767
    assert statistics(make(extreme, [1] * 200)) == (0.0, 32767.0)
    with pytest.raises(DataError, match="no records of folds 1 to 9"):
        statistics(make(SIGNALS, [10] * 5))
