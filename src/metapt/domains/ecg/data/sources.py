"""PTB-XL's raw form (https://physionet.org/content/ptb-xl/): two tables, and records in WFDB's format 16 at 100 Hz.

A record is a header `NNNNN_lr.hea` (text; https://physionet.org/physiotools/wag/header-5.htm) and its signals
`NNNNN_lr.dat`: little-endian int16, for each time the 12 leads in turn. At 1000 units per mV, a unit is a microvolt.
"""

from __future__ import annotations

import ast
import codecs
import csv
import io
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metapt.domains.ecg.data import FREQUENCY
from metapt.errors import DataError
from metapt.files import FETCH_AGAIN, reading

CLASSES = ("NORM", "MI", "STTC", "CD", "HYP")
"""Diagnostic superclasses: normal, myocardial infarction, ST/T change, conduction disturbance, hypertrophy."""

LEADS = ("I", "II", "III", "AVR", "AVL", "AVF", "V1", "V2", "V3", "V4", "V5", "V6")
SAMPLES = 1000
FOLDS = tuple(range(1, 11))
TEST_FOLD = 10

Table = dict[str, NDArray[Any]]
"""Columns of equal length by name."""

_COLUMNS = ("ecg_id", "patient_id", "scp_codes", "strat_fold", "filename_lr")
_INVALID = np.iinfo(np.int16).min  # WFDB's mark of a value that is missing
_SIGNAL_BYTES = 2 * len(LEADS) * SAMPLES
_HEADER_BYTES = 1 << 16  # a header has 700
_INTEGER = re.compile(r"(\d{1,9})(\.0*)?", re.ASCII)  # patients have a decimal point in 1.0.1
_FILE = re.compile(r"records100/\d{5}/(\d{5})_lr", re.ASCII)
_HEADER = re.compile(
    rb"(\d{5}_lr) 12 100 1000\n"
    + b"".join(
        rb"\1\.dat 16 1000(?:\.0)?(?:\(0\))?/mV 16 0 (-?\d{1,5}) (-?\d{1,5}) 0 %b\n" % lead.encode() for lead in LEADS
    )
)
_ADVICE = "remove records.json and download again, which replaces what is missing or wrong"


def _refused(text: str, advice: str = FETCH_AGAIN) -> DataError:
    return DataError(f"{text}: {advice}.")


def read_database(database: Path, statements: Path) -> Table:
    """Read patient, fold and labels of each record from ptbxl_database.csv and scp_statements.csv, in the file's order.

    Columns: ecg_id, patient_id, fold (1 to 10), the labels `CLASSES` (0 or 1; all int64), and filename_lr, the record's
    name relative to the database's folder, without suffix. A record has the label of a class if any of its diagnostic
    statements belongs to it, whatever its likelihood, as in the publishers' example_physionet.py.

    Raises DataError if a file is missing or no such table; a number, name, fold or dict of statements is illegal; a
    statement is unknown; a record is there twice; or a patient of fold 10 is in another fold too.
    """
    class_of = _read_statements(statements)
    rows = []
    labels_of: dict[str, tuple[int, ...]] = {}  # many records have the same dict
    for line, row in _rows(database, _COLUMNS):
        place = f"{database}, line {line}"
        ecg_id, patient, fold = (
            _integer(row[column], column, place) for column in ("ecg_id", "patient_id", "strat_fold")
        )
        name = _FILE.fullmatch(row["filename_lr"])
        if name is None or int(name[1]) != ecg_id:
            raise _refused(
                f"{place}: filename_lr is {row['filename_lr']!r}, and records100/NNNNN/{ecg_id:05d}_lr is expected"
            )
        if (codes := row["scp_codes"]) not in labels_of:
            classes = {class_of[code] for code in _codes(codes, class_of, place)}
            labels_of[codes] = tuple(int(each in classes) for each in CLASSES)
        rows.append((ecg_id, patient, fold, *labels_of[codes], row["filename_lr"]))
    names = ["ecg_id", "patient_id", "fold", *CLASSES, "filename_lr"]
    table = {name: np.array([row[place] for row in rows]) for place, name in enumerate(names)}
    _check(table, database)
    return table


def _check(table: Table, path: Path) -> None:
    """Check the records, patients and folds of a table from `path`; raises as `read_database`."""
    ids, patients, folds = (table[name] for name in ("ecg_id", "patient_id", "fold"))
    if len(ids) == 0:
        raise _refused(f"{path} has no records")
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise _refused(f"{path} has the record with ecg_id {values[counts > 1][0]} twice")
    if (odd := ~np.isin(folds, FOLDS)).any():
        raise _refused(f"{path}: the record with ecg_id {ids[odd][0]} is in fold {folds[odd][0]}; folds are 1 to 10")
    if len(both := np.intersect1d(patients[folds == TEST_FOLD], patients[folds != TEST_FOLD])):
        raise _refused(
            f"{path}: the patient {both[0]} is in fold {TEST_FOLD} and in another one, so that "
            "test records would be trained on"
        )


def read_signals(folder: Path, names: Sequence[str]) -> NDArray[np.int16]:
    """Read records (filename_lr, relative to `folder`) as int16 [records, 12, 1000], microvolts.

    They are checked by the first values and checksums in their headers. Raises DataError if a record is missing, cut,
    overlong, altered, of another form than PTB-XL's, or has invalid values.
    """
    signals = np.empty((len(names), len(LEADS), SAMPLES), "<i2")
    values, checksums = np.empty((2, len(names), len(LEADS)), np.int64)
    record = np.empty((SAMPLES, len(LEADS)), "<i2")
    for index, name in enumerate(names):
        values[index], checksums[index] = _read_header(f"{folder}/{name}.hea")
        _read_into(record, f"{folder}/{name}.dat")
        signals[index] = record.T
    for what, found, expected in (
        ("first value", signals[:, :, 0].astype(np.int64), values),
        ("checksum", signals.sum(axis=2, dtype=np.int16).astype(np.int64) % 2**16, checksums % 2**16),
    ):
        if (wrong := _first(found != expected)) is not None:
            raise _refused(
                f"{folder}/{names[wrong[0]]}.dat or its header is altered: the {what} of lead "
                f"{LEADS[wrong[1]]} is {found[wrong]}, and the header says {expected[wrong]}",
                _ADVICE,
            )
    if (wrong := _first((signals == _INVALID).any(axis=2))) is not None:
        raise _refused(
            f"{folder}/{names[wrong[0]]}.dat has invalid values ({_INVALID}) in lead {LEADS[wrong[1]]}, "
            "which no record of PTB-XL has",
            _ADVICE,
        )
    return signals


def _first(wrong: NDArray[np.bool_]) -> tuple[int, int] | None:
    found = np.argwhere(wrong)
    return (int(found[0, 0]), int(found[0, 1])) if len(found) else None


def _read_into(record: NDArray[np.int16], path: str) -> None:
    with reading(Path(path), _ADVICE) as file:
        size = os.fstat(file.fileno()).st_size
        read = file.readinto(record.data) if size == _SIGNAL_BYTES else size
    if read != _SIGNAL_BYTES:
        wrong = "cut" if size <= _SIGNAL_BYTES else "overlong"
        raise _refused(f"{path} is {wrong}: it has {read} bytes instead of {_SIGNAL_BYTES}", _ADVICE)


def _read_header(path: str) -> tuple[list[int], list[int]]:
    """Return the first value and the checksum of each lead; check all other fields.

    wfdb takes 3 ms for a header, so only headers that are not formatted like PTB-XL's are read with it.
    """
    with reading(Path(path), _ADVICE) as file:
        content = file.read(_HEADER_BYTES + 1)
    if len(content) > _HEADER_BYTES:
        raise _refused(f"{path} is overlong: it has more than {_HEADER_BYTES} bytes", _ADVICE)
    match = _HEADER.fullmatch(content.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n"))
    if match is not None and path.endswith(f"/{match[1].decode()}.hea"):
        return [int(value) for value in match.groups()[1::2]], [int(value) for value in match.groups()[2::2]]
    return _parse_header(Path(path))


def _parse_header(path: Path) -> tuple[list[int], list[int]]:
    import wfdb  # slow, and hardly ever needed

    try:
        header = wfdb.rdheader(str(path.with_suffix("")))
    except Exception as error:  # what wfdb raises on altered headers is not a closed list
        raise _refused(
            f"{path} is cut or altered: wfdb can't read it ({type(error).__name__}: {error})", _ADVICE
        ) from error
    whole = {"record_name": path.stem, "n_sig": len(LEADS), "fs": FREQUENCY, "sig_len": SAMPLES}
    of_lead = {"file_name": f"{path.stem}.dat", "fmt": "16", "samps_per_frame": 1, "skew": None, "byte_offset": None}
    of_lead |= {"adc_gain": 1000.0, "baseline": 0, "units": "mV"}
    expected = whole | {name: [value] * len(LEADS) for name, value in of_lead.items()} | {"sig_name": list(LEADS)}
    for name, value in expected.items():
        if (found := getattr(header, name, None)) != value:
            raise _refused(f"{path} is no header of a 100 Hz record of PTB-XL: {name} is {found}, not {value}", _ADVICE)
    for numbers in (header.init_value, header.checksum):
        if len(numbers) != len(LEADS) or not all(isinstance(number, int) and abs(number) < 2**16 for number in numbers):
            raise _refused(f"{path} is cut or altered: its first values or checksums are {numbers}", _ADVICE)
    return header.init_value, header.checksum


def _read_statements(path: Path) -> dict[str, str]:
    """Return statement -> its diagnostic class, or "" for one that is not diagnostic."""
    class_of: dict[str, str] = {}
    for line, row in _rows(path, ("", "diagnostic", "diagnostic_class")):
        code, diagnostic, name = row[""], row["diagnostic"], row["diagnostic_class"]
        if diagnostic not in ("", "1", "1.0") or (diagnostic and name not in CLASSES) or not code or code in class_of:
            raise _refused(
                f"{path}, line {line}: a new statement with diagnostic 1.0 or empty, and one of the "
                f"classes {', '.join(CLASSES)} if it is diagnostic, is expected"
            )
        class_of[code] = name if diagnostic else ""
    return class_of


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Return the rows of a CSV file, and the line on which each ends."""
    try:
        with reading(path) as file:
            reader = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""), strict=True)
            found = list(reader.fieldnames or ())
            if again := [column for column in columns if found.count(column) > 1]:
                raise _refused(f"{path} has the column {again[0]!r} twice")
            if missing := [column for column in columns if column not in found]:
                raise _refused(f"{path} lacks the column {missing[0]!r}")
            for row in reader:
                if None in row or None in row.values():
                    raise _refused(f"{path}, line {reader.line_num}: more or fewer values than columns")
                yield reader.line_num, row
    except (csv.Error, UnicodeDecodeError) as error:
        raise _refused(f"{path} is cut or altered: it is no CSV file ({error})") from error


def _integer(text: str, column: str, place: str) -> int:
    if (match := _INTEGER.fullmatch(text)) is None:
        raise _refused(f"{place}: {column} is {text!r}, and a whole number is expected")
    return int(match[1])


def _codes(text: str, known: dict[str, str], place: str) -> Iterator[str]:
    """Return the statements of a record, from the text of a dict of their likelihoods in percent."""
    try:
        codes = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise _refused(f"{place}: scp_codes is {text[:80]!r}, which is no dict of statements") from error
    if not isinstance(codes, dict) or not all(
        isinstance(likelihood, int | float) and 0 <= likelihood <= 100 for likelihood in codes.values()
    ):
        raise _refused(f"{place}: scp_codes is {text[:80]!r}, and statements with likelihoods of 0 to 100 are expected")
    for code in codes:
        if code not in known:
            raise _refused(f"{place}: the statement {code!r} is not one of scp_statements.csv")
        yield code
