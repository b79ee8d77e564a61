"""Random data of PTB-XL's shapes, for `metapt estimate` where PTB-XL is not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from metapt.domains.ecg.data.prepare import KEYS
from metapt.domains.ecg.data.sources import CLASSES, LEADS, SAMPLES, TEST_FOLD
from metapt.engine.jobs import RawData
from metapt.files import write_csv
from metapt.machine import Machine
from metapt.sections import JobSettings

RECORDS = 21_799
_BLOCK = 1000


def raw_data(settings: JobSettings) -> RawData:
    """Return what `run` stands for."""
    return RawData(560e6, seconds=11.0)


def run(settings: JobSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Write the prepared files: each record of a patient of its own, a tenth of them in the test fold."""
    random = np.random.default_rng(0)
    block = random.integers(-300, 300, (_BLOCK, len(LEADS), SAMPLES), np.int16)
    with outputs["signals"].open("wb") as file:
        shape = (RECORDS, len(LEADS), SAMPLES)
        np.lib.format.write_array_header_1_0(file, {"descr": "<i2", "fortran_order": False, "shape": shape})
        for start in range(0, RECORDS, _BLOCK):
            file.write(block[: RECORDS - start].data)
    numbers = np.arange(RECORDS)
    columns = [numbers + 1, numbers + 1, numbers % TEST_FOLD + 1, *random.integers(0, 2, (len(CLASSES), RECORDS))]
    write_csv(dict(zip([*KEYS, *CLASSES], columns, strict=True)), outputs["records"])
