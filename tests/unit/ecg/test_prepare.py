"""Prepared ECGs equal the raw ones, and files that are not of the prepared form are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wfdb
from numpy.typing import NDArray

from metapt.domains.ecg.data import prepare
from metapt.domains.ecg.data.prepare import KEYS, EcgRecords, load, statistics
from metapt.domains.ecg.data.sources import CLASSES, LEADS
from metapt.errors import DataError
from metapt.machine import Machine
from metapt.sections import JobSettings

FOLDS = [1, 10, 2, 9, 10]
CODES = ["{'NORM': 100.0}", "{'AMI': 0.0, 'LVH': 50.0}", "{}", "{'NDT': 15.0}", "{'IRBBB': 100.0}"]
NAMES = [f"records100/00000/0000{number}_lr" for number in range(1, 6)]
STATEMENTS = ",diagnostic,diagnostic_class\nNORM,1.0,NORM\nAMI,1.0,MI\nNDT,1.0,STTC\nIRBBB,1.0,CD\nLVH,1.0,HYP\n"


def draw_signals() -> NDArray[np.int16]:
    return np.random.default_rng(0).integers(-3000, 3000, (5, 12, 1000)).astype(np.int16)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write five records of five patients."""
    folder = tmp_path_factory.mktemp("raw")
    (folder / "records100/00000").mkdir(parents=True)
    for name, signal in zip(NAMES, draw_signals(), strict=True):
        wfdb.wrsamp(
            Path(name).name, 100, ["mV"] * 12, list(LEADS), d_signal=signal.T.astype(np.int64), fmt=["16"] * 12,
            adc_gain=[1000.0] * 12, baseline=[0] * 12, write_dir=str(folder / "records100/00000"),
        )  # fmt: skip
    rows = [f'{i + 1},{100 + i},"{CODES[i]}",{FOLDS[i]},{NAMES[i]}\n' for i in range(5)]
    (folder / "ptbxl_database.csv").write_text("ecg_id,patient_id,scp_codes,strat_fold,filename_lr\n" + "".join(rows))
    (folder / "scp_statements.csv").write_text(STATEMENTS)
    (folder / "records.json").write_text(json.dumps({"version": "1", "records": NAMES}))
    return {name: folder / name for name in ("ptbxl_database.csv", "scp_statements.csv", "records.json")}


@pytest.fixture
def outputs(tmp_path: Path) -> dict[str, Path]:
    return {"signals": tmp_path / "prepared/signals.npy", "records": tmp_path / "prepared/records.csv"}


def listing(raw: dict[str, Path], content: object) -> dict[str, Path]:
    """Return the raw files with another records.json."""
    path = raw["records.json"].with_name("other.json")
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return {**raw, "records.json": path}


def make(signals: NDArray[np.int16], folds: list[int]) -> EcgRecords:
    table = dict.fromkeys([*KEYS, *CLASSES], np.zeros(len(folds), np.int64)) | {"fold": np.array(folds)}
    return EcgRecords(signals, table, np.zeros((len(folds), 5), np.float32))


def test_prepared_records_are_the_raw_ones(
    raw: dict[str, Path], outputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "_BLOCK", 2)
    prepare.run(JobSettings(), raw, outputs, Machine())
    records = load(**outputs)
    assert isinstance(records.signals, np.memmap)
    assert not records.signals.flags.writeable
    np.testing.assert_array_equal(records.signals, draw_signals())
    assert records.labels.dtype == np.float32
    assert records.labels.tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 1], [0] * 5, [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]]
    assert records.table["ecg_id"].tolist() == [1, 2, 3, 4, 5]
    assert records.table["patient_id"].tolist() == [100, 101, 102, 103, 104]
    assert records.table["fold"].tolist() == FOLDS
    assert records.training.tolist() == [0, 2, 3]
    assert records.test.tolist() == [1, 4]
    assert outputs["records"].read_text().splitlines()[:2] == [
        f"ecg_id,patient_id,fold,{','.join(CLASSES)}",
        "1,100,1,1,0,0,0,0",
    ]


def test_only_listed_records_are_prepared(raw: dict[str, Path], outputs: dict[str, Path]) -> None:
    prepare.run(JobSettings(), listing(raw, {"version": "1", "records": [NAMES[3], NAMES[1]]}), outputs, Machine())
    records = load(**outputs)
    np.testing.assert_array_equal(records.signals, draw_signals()[[1, 3]])
    assert records.table["ecg_id"].tolist() == [2, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "can't be read"),
        ([], "is no list of records"),
        ({"records": []}, "is no list of records"),
        ({"records": [1]}, "is no list of records"),
        ({"records": [NAMES[0], NAMES[0]]}, "names a record twice"),
        (
            {"records": [NAMES[0], "records100/00000/00009_lr"]},
            r"names records100/00000/00009_lr, which .*ptbxl_database\.csv does not",
        ),
        ({"records": [NAMES[0], "../secret"]}, r"names \.\./secret, which"),
    ],
)
def test_wrong_listing(raw: dict[str, Path], outputs: dict[str, Path], content: object, message: str) -> None:
    with pytest.raises(DataError, match=rf"other\.json.* {message}|other\.json {message}"):
        prepare.run(JobSettings(), listing(raw, content), outputs, Machine())
    assert not outputs["signals"].parent.exists()


def test_a_wrong_record_leaves_nothing(raw: dict[str, Path], outputs: dict[str, Path]) -> None:
    path = raw["records.json"].parent / f"{NAMES[4]}.dat"
    content = path.read_bytes()
    path.write_bytes(content[:-2])
    try:
        with pytest.raises(DataError, match=r"00005_lr\.dat is cut"):
            prepare.run(JobSettings(), raw, outputs, Machine())
    finally:
        path.write_bytes(content)
    assert not list(outputs["signals"].parent.iterdir())


def table(old: str, new: str) -> Callable[[dict[str, Path]], None]:
    """Return a change of records.csv."""

    def change(files: dict[str, Path]) -> None:
        text = files["records"].read_text()
        assert old in text
        files["records"].write_text(text.replace(old, new))

    return change


def content(change: Callable[[bytes], bytes]) -> Callable[[dict[str, Path]], None]:
    """Return a change of the bytes of signals.npy."""
    return lambda files: files["signals"].write_bytes(change(files["signals"].read_bytes())) and None


def array(value: NDArray[Any]) -> Callable[[dict[str, Path]], None]:
    """Return a change of signals.npy to another array."""
    return lambda files: np.save(files["signals"], value)


CUT = r"signals\.npy is (cut or altered|overlong).*remove it, so that it is prepared again"
MISSING = "is missing: make it with the target that prepares ECGs"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: files["signals"].unlink(), rf"signals\.npy {MISSING}"),
        (lambda files: files["records"].unlink(), rf"records\.csv {MISSING}"),
        (content(lambda c: b""), CUT),
        (content(lambda c: c[:50]), CUT),
        (content(lambda c: c[:-1]), CUT),
        (content(lambda c: c[200:]), CUT),
        (content(lambda c: c + b"\0"), CUT),
        (array(np.zeros((5, 12, 1000), np.float32)), r"float32 \[5, 12, 1000\], not int16"),
        (array(np.zeros((5, 1000, 12), np.int16)), r"int16 \[5, 1000, 12\], not int16 \[N, 12, samples\]"),
        (array(np.asfortranarray(np.zeros((5, 12, 1000), np.int16))), "in C order"),
        (array(np.zeros((5, 12, 1000), ">i2")), "not int16"),
        (array(np.zeros((4, 12, 1000), np.int16)), r"has 4 records and .*records\.csv has 5: remove both"),
        (array(np.int16(1)), "not int16"),
        (array(np.array([None])), "is cut or altered"),
        (
            table("fold", "folds"),
            r"records\.csv has the columns ecg_id, patient_id, folds, .*, not ecg_id, patient_id,",
        ),
        (table("2,101,10", "2,101,11"), r"records\.csv.* is in fold 11"),
        (table("2,101,10", "2,100,10"), r"records\.csv.* the patient 100 is in fold 10 and in another one"),
        (table("2,101,10", "1,101,10"), r"records\.csv.* ecg_id 1 twice"),
        (table("2,101,10,0", "2,101,10,2"), r"records\.csv has a label other than 0 and 1"),
        (table("2,101,10,0", "2,101,10,x"), r"records\.csv is cut or altered"),
        (table("2,101,10,0", "2,101,10,"), r"records\.csv is cut or altered"),
        (table("2,101,10,0", "2,101,10,0,0,0,0"), r"records\.csv is cut or altered"),
    ],
)
def test_load_refuses_other_files(
    raw: dict[str, Path], outputs: dict[str, Path], change: Callable[[dict[str, Path]], None], message: str
) -> None:
    prepare.run(JobSettings(), raw, outputs, Machine())
    change(outputs)
    with pytest.raises(DataError, match=message):
        load(**outputs)


def test_statistics_are_those_of_the_training_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_BLOCK", 2)
    signals, folds = draw_signals(), [1, 10, 2, 9, 10]
    training = signals[[0, 2, 3]].astype(np.float64)
    mean, deviation = statistics(make(signals, folds))
    assert mean == pytest.approx(training.mean(), rel=1e-12)
    assert deviation == pytest.approx(training.std(), rel=1e-12)
    signals[[1, 4]] = 0
    assert statistics(make(signals, folds)) == (mean, deviation)
    extreme = np.full((200, 12, 1000), 32767, np.int16)  # whose squares are not exact in float32
    extreme[:100] = -32767
    assert statistics(make(extreme, [1] * 200)) == (0.0, 32767.0)
    with pytest.raises(DataError, match="no records of folds 1 to 9"):
        statistics(make(draw_signals(), [10] * 5))
