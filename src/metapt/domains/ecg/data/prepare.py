"""The prepared form of ECGs: one memory-mapped array of all signals, and a table with a row for each."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metapt.domains.ecg.data.sources import CLASSES, LEADS, SAMPLES, TEST_FOLD, Table, read_database, read_signals
from metapt.errors import DataError
from metapt.files import atomic_path, reading, write_csv
from metapt.machine import Machine
from metapt.sections import JobSettings

KEYS = ("ecg_id", "patient_id", "fold")
"""The first columns of the table; those of the classes follow."""

_BLOCK = 128  # records that are read at once
_MISSING = "make it with the target that prepares ECGs"


@dataclass(frozen=True, eq=False)
class EcgRecords:
    """Prepared records."""

    signals: NDArray[np.int16]  # int16 [N, 12, samples], microvolts at 100 Hz, mapped from the disk
    table: Table  # the columns `KEYS` and those of the classes, int64
    labels: NDArray[np.float32]  # float32 [N, classes]

    @property
    def classes(self) -> list[str]:
        return list(self.table)[len(KEYS) :]

    @property
    def patients(self) -> NDArray[np.int64]:
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
    """Open prepared files. Raises DataError if one is missing or can't be read.

    Whether they are what their job left is checked by `execute`.
    """
    with reading(records, _MISSING) as file:
        header, *rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
    table = dict(zip(header, np.array(rows, np.int64).T.copy(), strict=True))
    with reading(signals, _MISSING):
        array = np.load(signals, mmap_mode="r")
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
