"""The prepared form of ECGs: one memory-mapped array of all signals, and a table with a row for each."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from metapt.domains.ecg.data.sources import (
    CLASSES,
    LEADS,
    SAMPLES,
    TEST_FOLD,
    Table,
    check_table,
    read_database,
    read_signals,
)
from metapt.errors import DataError
from metapt.files import atomic_path, reading, write_csv
from metapt.machine import Machine
from metapt.sections import JobSettings

KEYS = ("ecg_id", "patient_id", "fold")
"""The first columns of the table; those of the classes follow."""

_BLOCK = 128  # records that are read at once
_ADVICE = "remove it, so that it is prepared again"


@dataclass(frozen=True, eq=False)
class EcgRecords:
    """Prepared records."""

    signals: NDArray[np.int16]  # int16 [N, 12, samples], microvolts at 100 Hz, mapped from the disk
    table: Table  # the columns `KEYS` and those of the classes, int64
    labels: NDArray[np.float32]  # float32 [N, classes]

    @property
    def classes(self) -> list[str]:
        """Return the names of the classes."""
        return list(self.table)[len(KEYS) :]

    @property
    def patients(self) -> NDArray[np.int64]:
        """Return the patient of each record."""
        return self.table["patient_id"]

    @property
    def training(self) -> NDArray[np.int64]:
        """Return the indices of the records of folds 1 to 9, ascending."""
        return np.flatnonzero(self.table["fold"] != TEST_FOLD)

    @property
    def test(self) -> NDArray[np.int64]:
        """Return the indices of the records of fold 10, ascending."""
        return np.flatnonzero(self.table["fold"] == TEST_FOLD)


def run(settings: JobSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Convert the raw files to the prepared ones, in the database's order; the same raw files give the same bytes.

    The inputs are `ptbxl_database.csv`, `scp_statements.csv`, and `records.json`, which names the records to prepare
    and has their files in its folder. The outputs are `signals`, an .npy file, int16 [N, 12, 1000], microvolts, and
    `records`, a CSV file of `KEYS` and `CLASSES`. Raises DataError as `read_database` and `read_signals`, and if
    records.json is no list of records or names one that is not in the database.
    """
    table = read_database(inputs["ptbxl_database.csv"], inputs["scp_statements.csv"])
    path = inputs["records.json"]
    listed = _listed(path)
    if unknown := set(listed).difference(table["filename_lr"]):
        database = inputs["ptbxl_database.csv"]
        raise DataError(f"{path} names {min(unknown)}, which {database} does not have: download them again.")
    chosen = np.isin(table["filename_lr"], listed)
    names = table["filename_lr"][chosen].tolist()
    blocks = (read_signals(path.parent, names[start : start + _BLOCK]) for start in range(0, len(names), _BLOCK))
    write({name: table[name][chosen] for name in (*KEYS, *CLASSES)}, blocks, SAMPLES, outputs)


def write(table: Table, blocks: Iterable[NDArray[np.int16]], samples: int, outputs: dict[str, Path]) -> None:
    """Write prepared files, given signals in blocks [n, 12, samples], and nothing if one of them can't be made."""
    shape = (len(table["ecg_id"]), len(LEADS), samples)
    with atomic_path(outputs["signals"], 2 * math.prod(shape) + 128) as signals, signals.open("wb") as file:
        # Not through a memory map: the system kills a process that writes to one when the disk is full.
        np.lib.format.write_array_header_1_0(file, {"descr": "<i2", "fortran_order": False, "shape": shape})
        for block in blocks:
            file.write(block.data)
        write_csv(table, outputs["records"])


def load(signals: Path, records: Path) -> EcgRecords:
    """Open prepared files.

    Raises DataError if a file is missing, cut, or not of the prepared form; the two don't belong together; a patient of
    fold 10 is in another fold too.
    """
    table = _read_table(records)
    array = _open_signals(signals)
    if len(array) != len(table["fold"]):
        both = f"{signals} has {len(array)} records and {records} has {len(table['fold'])}"
        raise DataError(f"{both}: remove both, so that they are prepared again.")
    return EcgRecords(array, table, np.stack([*table.values()][len(KEYS) :], 1, dtype=np.float32))


def statistics(records: EcgRecords) -> tuple[float, float]:
    """Return mean and standard deviation over all training signals, leads and times, microvolts; the sums are exact.

    Raises DataError if there are no training signals.
    """
    indices = records.training
    if len(indices) == 0:
        raise DataError("there are no records of folds 1 to 9, so that their mean is not known: prepare more records.")
    total = squares = 0
    for start in range(0, len(indices), _BLOCK):
        # In a block both sums are integers below 2^53, so that float64 has them exactly.
        values = records.signals[indices[start : start + _BLOCK]].astype(np.float64).ravel()
        total += int(values.sum())
        squares += int(values @ values)
    number = len(indices) * math.prod(records.signals.shape[1:])
    return total / number, math.sqrt((number * squares - total**2) / number**2)


def _listed(path: Path) -> list[str]:
    try:
        with reading(path, "make it with the target that downloads PTB-XL") as file:
            content = json.loads(file.read().decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} can't be read ({error}): remove it and download again.") from error
    records = content.get("records") if isinstance(content, dict) else None
    if not isinstance(records, list) or not records or not all(isinstance(name, str) for name in records):
        raise DataError(f"{path} is no list of records: remove it and download again.")
    if len(set(records)) < len(records):
        raise DataError(f"{path} names a record twice: remove it and download again.")
    return records


def _open_signals(path: Path) -> NDArray[np.int16]:
    with reading(path, "make it with the target that prepares ECGs"):
        try:
            array = np.load(path, mmap_mode="r")
            whole = isinstance(array, np.memmap) and path.stat().st_size == array.offset + array.nbytes
        except OSError:
            raise
        except Exception as error:  # what NumPy raises on altered headers is not a closed list
            raise DataError(f"{path} is cut or altered ({type(error).__name__}): {_ADVICE}.") from error
    if not whole:
        raise DataError(f"{path} is overlong, or no .npy file: {_ADVICE}.")
    shape = (*array.shape[:1], len(LEADS), *array.shape[2:3])
    if array.dtype != np.dtype("<i2") or array.shape != shape or len(shape) < 3 or not array.flags.c_contiguous:
        legal = f"int16 [N, {len(LEADS)}, samples] in C order"
        raise DataError(f"{path} is {array.dtype} {list(array.shape)}, not {legal}: {_ADVICE}.")
    return cast("NDArray[np.int16]", array)


def _read_table(path: Path) -> Table:
    try:
        with reading(path, "make it with the target that prepares ECGs") as file:
            lines = io.TextIOWrapper(file, encoding="utf-8")
            header = tuple(lines.readline().rstrip("\n").split(","))
            rows = np.array([line.split(",") for line in lines]).astype(np.int64)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{path} is cut or altered ({error}): {_ADVICE}.") from error
    classes = header[len(KEYS) :]
    if header[: len(KEYS)] != KEYS or not classes or rows.shape[1:] not in {(), (len(header),)}:
        legal = f"{', '.join(KEYS)} and those of classes"
        raise DataError(f"{path} has the columns {', '.join(header)}, not {legal}: {_ADVICE}.")
    table = dict(zip(header, rows.reshape(-1, len(header)).T.copy(), strict=True))
    check_table(table, classes, path)
    return table
