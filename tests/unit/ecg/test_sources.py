"""PTB-XL's tables and records are read exactly, or refused with one sentence."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import wfdb
from numpy.typing import NDArray

from metapt.domains.ecg.data.sources import CLASSES, LEADS, read_database, read_signals
from metapt.errors import DataError

NAMES = [f"records100/00000/0000{number}_lr" for number in (1, 2, 3)]
DATABASE = """\
ecg_id,patient_id,report,scp_codes,strat_fold,filename_lr
1,15709.0,"two
lines","{'NORM': 100.0, 'SR': 0.0}",3,records100/00000/00001_lr
2,13243,,"{'AMI': 0.0, 'IMI': 15.0, 'LVH': 50.0}",10,records100/00000/00002_lr
3,15709,,{},3,records100/00000/00003_lr
4,20372,,"{'NDT': 100.0, 'IRBBB': 35.0, 'SR': 0}",10,records100/00000/00004_lr
"""
STATEMENTS = """\
,description,diagnostic,form,diagnostic_class
NORM,normal ECG,1.0,,NORM
AMI,anterior myocardial infarction,1.0,,MI
IMI,inferior myocardial infarction,1.0,,MI
NDT,non-diagnostic T abnormalities,1.0,1.0,STTC
IRBBB,incomplete right bundle branch block,1.0,,CD
LVH,left ventricular hypertrophy,1.0,,HYP
SR,sinus rhythm,,,
"""
SIGNALS = np.random.default_rng(0).integers(-3000, 3000, (3, 12, 1000)).astype(np.int16)


def tables(folder: Path, database: str = DATABASE, statements: str = STATEMENTS, **form: str) -> tuple[Path, Path]:
    paths = folder / "ptbxl_database.csv", folder / "scp_statements.csv"
    for path, text in zip(paths, (database, statements), strict=True):
        path.write_text(text, **{"encoding": "utf-8", **form})
    return paths


def write_record(folder: Path, name: str, signal: NDArray[np.int16], gain: float = 1000) -> None:
    """Write a record with wfdb: signal [leads, times]."""
    target, number = folder / name, len(signal)
    target.parent.mkdir(parents=True, exist_ok=True)
    wfdb.wrsamp(
        target.name, 100, ["mV"] * number, list(LEADS[:number]), d_signal=signal.T.astype(np.int64),
        fmt=["16"] * number, adc_gain=[gain] * number, baseline=[0] * number, write_dir=str(target.parent),
    )  # fmt: skip


def write_header(folder: Path, name: str, signal: NDArray[np.int16], end: str = "") -> None:
    """Write a header in PTB-XL's format."""
    stem = Path(name).name
    sums = signal.sum(axis=1, dtype=np.int64) % 2**16
    lines = [f"{stem}.dat 16 1000.0(0)/mV 16 0 {signal[i, 0]} {sums[i]} 0 {lead}" for i, lead in enumerate(LEADS)]
    (folder / f"{name}.hea").write_text("\n".join([f"{stem} 12 100 1000", *lines]) + "\n" + end)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with three records."""
    folder = tmp_path_factory.mktemp("written")
    for name, signal in zip(NAMES, SIGNALS, strict=True):
        write_record(folder, name, signal)
    return folder


@pytest.fixture(params=["", "# a comment\n"], ids=["as PTB-XL's", "left to wfdb"])
def records(written: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a folder with three records, with headers in two spellings."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    for name, signal in zip(NAMES, SIGNALS, strict=True):
        write_header(tmp_path, name, signal, end=request.param)
    return tmp_path


@pytest.mark.parametrize("form", [{}, {"encoding": "utf-8-sig"}, {"newline": "\r\n"}])
def test_the_database_is_read_as_any_editor_writes_it(form: dict[str, str], tmp_path: Path) -> None:
    table = pd.DataFrame(read_database(*tables(tmp_path, **form)))
    assert list(table.columns) == ["ecg_id", "patient_id", "fold", *CLASSES, "filename_lr"]
    assert table.drop(columns="filename_lr").to_numpy().tolist() == [
        [1, 15709, 3, 1, 0, 0, 0, 0], [2, 13243, 10, 0, 1, 0, 0, 1],
        [3, 15709, 3, 0, 0, 0, 0, 0], [4, 20372, 10, 0, 0, 1, 1, 0],
    ]  # fmt: skip
    assert table["filename_lr"].tolist() == [*NAMES, "records100/00000/00004_lr"]


WRONG_TABLES = [
    ("strat_fold,", "patient_id,strat_fold,", "has the column 'patient_id' twice"),
    ("strat_fold,", "fold,", "lacks the column 'strat_fold'"),
    (DATABASE, "", "lacks the column 'ecg_id'"),
    (DATABASE, DATABASE.splitlines()[0], "has no records"),
    ("\n3,", "\nx,", "line 5: ecg_id is 'x', and a whole number is expected"),
    ("13243", "13243.5", "line 4: patient_id is '13243.5'"),
    (",10,records100/00000/00002", ",11,records100/00000/00002", "ecg_id 2 is in fold 11; folds are 1 to 10"),
    ("\n3,15709,,{},3,records100/00000/00003", "\n1,15709,,{},3,records100/00000/00001", "with ecg_id 1 twice"),
    ("00003_lr", "00004_lr", r"line 5: filename_lr is .*/NNNNN/00003_lr is expected"),
    ("records100/00000/00003_lr", "../../00000/00003_lr", r"line 5: filename_lr is '\.\./\.\./"),
    (",{},", ",{,", "line 5: scp_codes is '{', which is no dict"),
    (",{},", ",[],", r"line 5: scp_codes is '\[\]', and statements with likelihoods"),
    (",{},", ",__import__('os').getcwd(),", "line 5: scp_codes is .*, which is no dict"),
    ("'SR': 0}", "'SR': 'x'}", "line 6: scp_codes is .* likelihoods of 0 to 100"),
    ("'SR': 0}", "'XYZ': 0}", r"line 6: the statement 'XYZ' is not one of scp_statements\.csv"),
    ("4,20372", "4,15709", "the patient 15709 is in fold 10 and in another one"),
    ("3,15709,,{}", "3,15709,,,{}", "line 5: more or fewer values than columns"),
    ('lines",', "lines", "is no CSV file"),
    ("diagnostic_class", "class", "lacks the column 'diagnostic_class'"),
    ("1.0,,MI", "1.0,,XY", "line 3: a new statement with diagnostic 1.0 or empty"),
    ("1.0,,MI", "2.0,,MI", "line 3: a new statement"),
    ("IMI,", "AMI,", "line 4: a new statement"),
]
"""What is replaced in one of the tables, by what, and what the sentence says."""


@pytest.mark.parametrize(("old", "new", "message"), WRONG_TABLES)
def test_wrong_tables(tmp_path: Path, old: str, new: str, message: str) -> None:
    name = "ptbxl_database" if old in DATABASE else "scp_statements"
    paths = tables(tmp_path, DATABASE.replace(old, new), STATEMENTS.replace(old, new))
    with pytest.raises(DataError, match=rf"{name}\.csv.*{message}"):
        read_database(*paths)


def test_missing_and_binary_tables(tmp_path: Path) -> None:
    database, statements = tables(tmp_path)

    def refused(message: str) -> None:
        with pytest.raises(DataError, match=rf"ptbxl_database\.csv {message}"):
            read_database(database, statements)

    database.write_bytes(b"ecg_id,\xff\n")
    refused("is cut or altered: it is no CSV file")
    database.unlink()
    refused("is missing")
    database.mkdir()
    refused("can't be read: Is a directory")


def test_the_records_are_read(records: Path) -> None:
    signals = read_signals(records, NAMES)
    assert signals.dtype == np.int16
    assert signals.flags.c_contiguous
    np.testing.assert_array_equal(signals, SIGNALS)
    np.testing.assert_array_equal(read_signals(records, NAMES[::-1]), SIGNALS[::-1])


FOUND = {
    "is cut: it has 23999 bytes instead of 24000": lambda dat: dat[:-1],
    "is overlong: it has 24001 bytes": lambda dat: dat + b"\0",
    "or its header is altered: the first value of lead I is 1,": lambda dat: b"\1\0" + dat[2:],
    "altered: the checksum of lead V6 is": lambda dat: dat[:-2] + bytes([dat[-2] ^ 1, dat[-1]]),
}
HEADERS = [
    (b"00002_lr 12 100", b"00002_lr 12 500", "fs is 500, not 100"),
    (b"00002_lr 12 100 1000", b"00002_lr 12 100 999", "sig_len is 999, not 1000"),
    (b"00002_lr 12", b"00003_lr 12", "record_name is 00003_lr"),
    (b"00002_lr.dat", b"00003_lr.dat", r"file_name is \['00003_lr\.dat'"),
    (b".dat 16", b".dat 212", r"fmt is \['212'"),
    (b".dat 16", b".dat 16+24", r"byte_offset is \[24"),
    (b"1000.0(0)", b"1000.0(5)", r"baseline is \[5"),
    (b"/mV", b"/uV", r"units is \['uV'"),
    (b" AVR", b" AVX", r"sig_name is \['I', 'II', 'III', 'AVX'"),
    (b" 0 V6", b"9999999999999999999 0 V6", "its first values or checksums are"),
    (b" 0 V6\n", b"\n", "is no header|its first values or checksums are"),
]
"""What is replaced in a header, by what, and what the sentence says."""
WRONG: list[tuple[str, Callable[[bytes], bytes], str]] = [
    *((".dat", change, message) for message, change in FOUND.items()),
    (".hea", lambda hea: b"", "is cut or altered: wfdb can't read it"),
    *((".hea", lambda hea, old=old, new=new: hea.replace(old, new), message) for old, new, message in HEADERS),
]


@pytest.mark.parametrize(("suffix", "change", "message"), WRONG)
def test_wrong_records(records: Path, suffix: str, change: Callable[[bytes], bytes], message: str) -> None:
    path = records / f"{NAMES[1]}{suffix}"
    content = path.read_bytes()
    assert change(content) != content
    path.write_bytes(change(content))
    with pytest.raises(DataError, match=message) as raised:
        read_signals(records, NAMES)
    assert str(raised.value).startswith(str(path))
    assert str(raised.value).endswith("records.json and download again, which replaces what is missing or wrong.")


GAIN, START = b"1000.0(0)/mV", b"00001_lr 12"


SPELLINGS = [
    *((GAIN, gain) for gain in (b"1000/mV", b"1000(0)/mV", b"1000.0/mV")),
    (b"\n", b"\r\n"),
    (START, b"\xef\xbb\xbf" + START),
]


@pytest.mark.parametrize(("old", "new"), SPELLINGS)
def test_headers_of_any_editor_and_other_spellings_of_the_gain_are_read(tmp_path: Path, old: bytes, new: bytes) -> None:
    write_record(tmp_path, NAMES[0], SIGNALS[0])
    write_header(tmp_path, NAMES[0], SIGNALS[0])
    header = tmp_path / f"{NAMES[0]}.hea"
    assert old in header.read_bytes()
    header.write_bytes(header.read_bytes().replace(old, new))
    np.testing.assert_array_equal(read_signals(tmp_path, NAMES[:1]), SIGNALS[:1])


def long_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 32)


ENDLESS: list[tuple[Callable[[Path], object], str]] = [
    (os.mkfifo, "it is a pipe or a device"),
    (lambda path: path.symlink_to("/dev/zero"), "it is a pipe or a device"),
    (long_file, "is overlong"),
    (lambda path: None, "00001_lr.* is missing: remove records.json and download again"),
    (Path.mkdir, "00001_lr.* can't be read"),
]


@pytest.mark.parametrize("suffix", [".hea", ".dat"])
@pytest.mark.parametrize(("make", "message"), ENDLESS)
def test_what_is_missing_or_has_no_end_is_not_read(
    tmp_path: Path, suffix: str, make: Callable[[Path], None], message: str
) -> None:
    write_record(tmp_path, NAMES[0], SIGNALS[0])
    write_header(tmp_path, NAMES[0], SIGNALS[0])
    path = tmp_path / f"{NAMES[0]}{suffix}"
    path.unlink()
    make(path)
    with pytest.raises(DataError, match=message):
        read_signals(tmp_path, NAMES[:1])


def test_invalid_values_another_gain_and_another_number_of_leads_are_refused(tmp_path: Path) -> None:
    first, *others = SIGNALS.copy()
    first[7, 500] = -(2**15)
    write_record(tmp_path, NAMES[0], first)
    write_header(tmp_path, NAMES[0], first)
    write_record(tmp_path, NAMES[1], others[0], gain=200)
    write_record(tmp_path, NAMES[2], others[1][:3])
    words = (r"00001_lr\.dat has invalid values \(-32768\) in lead V2", r"adc_gain is \[200", "n_sig is 3, not 12")
    for name, message in zip(NAMES, words, strict=True):
        with pytest.raises(DataError, match=message):
            read_signals(tmp_path, [name])


@pytest.mark.real_data
def test_real_ptbxl(ptbxl: Path) -> None:
    """The shared table was made for the mirror; a few rows differ from 1.0.3's, so do the numbers of classes."""
    table = pd.DataFrame(read_database(ptbxl / "ptbxl_database.csv", ptbxl / "scp_statements.csv"))
    assert len(table) == 21_799
    assert table["patient_id"].nunique() == 18_869
    folds = [2175, 2181, 2192, 2174, 2174, 2173, 2176, 2173, 2183, 2198]
    assert table["fold"].value_counts().sort_index().tolist() == folds
    published = {"NORM": 9514, "MI": 5469, "STTC": 5235, "CD": 4898, "HYP": 2649}
    assert (table[list(CLASSES)].sum() - [published[each] for each in CLASSES]).between(0, 3).all()
    assert table.groupby("patient_id")["fold"].nunique().max() == 1

    names = [name for name in table["filename_lr"] if name.startswith("records100/00000/")]
    signals = read_signals(ptbxl, names)
    assert len(signals) == len(names) > 900
    for index in range(0, len(names), 200):
        theirs, _ = wfdb.rdsamp(str(ptbxl / names[index]))
        np.testing.assert_array_equal(signals[index].T, np.rint(1000 * theirs))
    # Einthoven: I + III = II, within rounding
    assert np.abs(signals[:, 0].astype(int) + signals[:, 2] - signals[:, 1]).max() <= 5
