"""Random data of PTB-XL's shapes, for `metapt estimate` where PTB-XL is not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from metapt.domains.ecg.data.prepare import KEYS, write
from metapt.domains.ecg.data.sources import CLASSES, LEADS, SAMPLES, TEST_FOLD
from metapt.engine.jobs import RawData
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
    numbers = np.arange(RECORDS)
    columns = [numbers + 1, numbers + 1, numbers % TEST_FOLD + 1, *random.integers(0, 2, (len(CLASSES), RECORDS))]
    table = dict(zip([*KEYS, *CLASSES], columns, strict=True))
    write(table, (block[: RECORDS - start] for start in range(0, RECORDS, _BLOCK)), SAMPLES, outputs)
