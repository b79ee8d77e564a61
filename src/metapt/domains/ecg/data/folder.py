"""Records of 12 leads in WFDB's formats (https://wfdb.io) in a folder, prepared as PTB-XL is.

Beside them lies labels.csv, with a row for each record: `record`, its path in the folder without suffix; `patient`; a
column of 0 and 1 for each class; and, if the file says it, `fold`, 1 to 10, of which 10 is tested.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import wfdb
from numpy.typing import NDArray
from scipy.signal import firwin, kaiserord, resample_poly
from tqdm import tqdm

from metapt.domains.ecg.data import FREQUENCY, LABELS, EcgFolder, find
from metapt.domains.ecg.data.prepare import KEYS, write
from metapt.domains.ecg.data.sources import FOLDS, LEADS, TEST_FOLD, Table
from metapt.domains.ecg.stages import FolderSettings
from metapt.errors import DataError
from metapt.files import reading
from metapt.machine import Machine

PASSED, STOPPED, ATTENUATION = 45.0, 50.0, 61.0
"""What resampling keeps to 0.1 % up to, and weakens from on (Hz) by so much (dB)."""
MOST = np.iinfo(np.int16).max  # microvolts
MICROVOLTS = {"nv": 1e-3, "uv": 1.0, "mv": 1e3, "v": 1e6}
"""Microvolts of each unit, by its name in lower case."""

_LEAD = re.compile(r"(?:(?:mdc_ecg_lead|ecg|ekg|lead)[ _]*)*(d?i{1,3}|[dl][123]|av[rlf]|[vc][ _]?[1-6])", re.IGNORECASE)
_MICRO, _PLAIN = re.compile(rb"/[\x80-\xff]+[vV]"), re.compile(rb"/[vV]\b")
_NO_GAIN = re.compile(rb"^[^#~\s]\S*[ \t]+[\dx:+]+[ \t]+0[0.]*[(/\s]", re.MULTILINE)  # wfdb reads a gain of 200
_CLASS = re.compile(r"[\w.+/-]{1,40}")
_LABELS = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}
_FOLDS = {text: fold for fold in FOLDS for text in (f"{fold}", f"{fold}.0")}
_UNLABELLED = "records without a label"
_MARGIN = 1.0  # s, read beyond an ECG's end, for the filter

Signals = NDArray[np.floating[Any]]
Faults = defaultdict[str, list[str]]
"""What is wrong -> the records or patients of which it is."""


def run(settings: FolderSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Prepare the records of a folder, in the order of its `labels.csv`; `ecg_id` is the row, from 1 on.

    Raises DataError with all that is wrong with the records and their labels, or if files have changed since `settings`
    were made.
    """
    path, faults = inputs[LABELS], Faults(list)
    found = find(path.parent).records
    table, names = read_labels(path, found, faults)
    write(table, _ecgs(path.parent, names, found, settings, faults), settings.folder.samples, outputs)


def _ecgs(
    folder: Path, names: list[str], found: list[str], settings: FolderSettings, faults: Faults
) -> Iterator[NDArray[np.int16]]:
    """Yield the ECGs [1, 12, samples] of the records `names`; raises as `run`, after the last."""
    unlabelled, there = set(found).difference(names), set(found)
    for name in tqdm(names, "records", disable=None):
        if name in there:
            signal, wrong, parts = read_record(folder / name, settings.folder)
            unlabelled.difference_update(Path(name).with_name(part).as_posix() for part in parts)
            for kind, words in wrong.items():
                faults[kind].append(f"{name} ({words})")
            yield signal[None]
    faults[_UNLABELLED] += sorted(unlabelled)
    if listed := "; ".join(f"{kind}: {', '.join(cases)}" for kind, cases in faults.items() if cases):
        raise DataError(
            f"{folder} is refused for {listed}. Mend or remove these records and their rows of {LABELS}, or "
            "change fit or spoilt of ecg.folder."
        )
    if find(folder).digest != settings.files:
        raise DataError(f"files of {folder} have changed since this run was planned: start it again.")


def read_labels(path: Path, records: list[str], faults: Faults) -> tuple[Table, list[str]]:
    """Return the prepared table of labels.csv, and the names of its records; what is wrong with rows goes to `faults`.

    Raises DataError if it is no CSV file, lacks columns, or has no rows.
    """
    try:
        with reading(path, "write it, with a row for each record") as file:
            reader = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""), strict=True)
            read, header = list(reader), list(reader.fieldnames or ())
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is no CSV file in UTF-8 ({error}): write it anew.") from error
    classes = [name for name in header if name not in ("record", "patient", "fold")]
    illegal = [name for name in classes if not _CLASS.fullmatch(name) or name in ("all", *KEYS)]
    if not read or not {"record", "patient"} <= set(header) or len(set(header)) < len(header) or illegal or not classes:
        raise DataError(
            f"{path} has {len(read)} rows with the columns {', '.join(header)}; legal: a row for each record, and "
            "record, patient, fold or not, and one column for each class, each once; the name of a class is made of "
            "letters, digits and _.+/- (40 at most), but not all, ecg_id or patient_id."
        )
    rows = [{name: (row[name] or "").strip() for name in header} for row in read]
    names, patients = [row["record"] for row in rows], [row["patient"] for row in rows]
    folds = [_FOLDS.get(row["fold"], 0) for row in rows] if "fold" in header else _dealt(patients, faults)
    there = set(records)
    for row, given, fold in zip(rows, read, folds, strict=True):
        for kind, wrong in {
            "rows of another length than the first": None in given or None in given.values(),
            "rows without a record in the folder": row["record"] not in there,
            "records without a patient": not row["patient"],
            "folds other than 1 to 10": fold == 0,
            _UNLABELLED: not all(row[name] for name in classes),
        }.items():
            faults[kind] += [row["record"]] * wrong
        odd = [f"{name} {row[name]}" for name in classes if row[name] and row[name] not in _LABELS]
        faults["labels other than 0 and 1"] += [f"{row['record']} ({', '.join(odd)})"] * bool(odd)
    faults["records in two rows"] = _twice(names)
    faults["patients in two folds"] = _twice([patient for patient, _ in set(zip(patients, folds, strict=True))])
    faults["folds without a record"] = ["10"] * (TEST_FOLD not in folds) + ["1 to 9"] * (set(folds) <= {TEST_FOLD})
    numbers = {patient: number for number, patient in enumerate(dict.fromkeys(patients), 1)}
    keys = range(1, len(rows) + 1), [numbers[patient] for patient in patients], folds
    columns = dict(zip(KEYS, keys, strict=True)) | {c: [_LABELS.get(row[c], 0) for row in rows] for c in classes}
    return {name: np.array(values, np.int64) for name, values in columns.items()}, names


def _twice(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _dealt(patients: list[str], faults: Faults) -> list[int]:
    """Return the fold of each patient's row: patients by the SHA-256 of their names, one to each fold in turn."""
    order = sorted(set(patients), key=lambda patient: hashlib.sha256(patient.encode()).digest())
    if len(order) < len(FOLDS):
        faults["fewer patients than folds"] = [f"{len(order)} for {len(FOLDS)}"]
    fold = {patient: FOLDS[place % len(FOLDS)] for place, patient in enumerate(order)}
    return [fold[patient] for patient in patients]


def read_record(path: Path, given: EcgFolder) -> tuple[NDArray[np.int16], dict[str, str], list[str]]:
    """Return an ECG [12, samples], microvolts; what is wrong with its record, details by kind; its segments' names."""
    signal = np.zeros((len(LEADS), given.samples), np.int16)
    try:
        header = wfdb.rdheader(str(path))
        rate, parts = float(header.fs), [str(name) for name in getattr(header, "seg_name", [])]
        most = math.ceil((given.seconds + _MARGIN) * rate)
        until = min(most, header.sig_len) if header.sig_len else None
        record = wfdb.rdrecord(str(path), sampto=until, m2s=False)
        if parts:
            if not _alike(record):
                return signal, {"segments with other leads or units than the first": " ".join(parts)}, parts
            record = record.multi_to_single(physical=True)
        read: Signals = record.p_signal.T
        # wfdb leaves the letter mu out of units, and so takes both for V.
        headers = [path.with_name(f"{name}.hea") for name in (path.name, *parts)]
        text = b"\n".join(each.read_bytes() for each in headers if each.exists())
        known = MICROVOLTS | ({"v": 0.0 if _PLAIN.search(text) else 1.0} if _MICRO.search(text) else {})
        whole, frames = header.sig_len or read.shape[1], set(record.samps_per_frame or [1])
    except Exception as error:  # what wfdb raises on altered records is not a closed list
        return signal, {"records that wfdb can't read": f"{type(error).__name__}: {error}"}, []
    names = [lead_of(str(name)) for name in record.sig_name]
    places = {lead: names.index(lead) for lead in LEADS if lead in names}
    scales = {lead: known.get(str(record.units[place]).lower(), 0.0) for lead, place in places.items()}
    kept = math.ceil(given.seconds * rate)
    shares = {lead: _spoilt(read[place, :kept], rate) for lead, place in places.items()}
    length, seconds = math.ceil(whole / rate * FREQUENCY - 1e-6), f"{given.seconds:g} s"
    found = {
        "missing leads": [lead for lead in LEADS if lead not in places],
        "leads that are there twice": _twice([name for name in names if name]),
        "signals that are not calibrated (gain 0)": ["the header"] * bool(_NO_GAIN.search(text)),
        "units that are no voltage": [lead for lead, scale in scales.items() if not scale],
        "signals of several samples per frame": [str(max(frames))] * (frames != {1}),
        f"rates below {FREQUENCY} Hz": [f"{rate:g} Hz"] * (rate < FREQUENCY),
        f"more than {seconds}": [f"{whole / rate:g} s"] * (length > given.samples and given.fit in ("pad", "neither")),
        f"less than {seconds}": [f"{whole / rate:g} s"] * (length < given.samples and given.fit in ("cut", "neither")),
        f"flat or NaN signals beyond a share of {given.spoilt:g}": [
            f"{lead} {share:.2g}" for lead, share in shares.items() if share > given.spoilt
        ],
    }
    if not any(found.values()):
        microvolts = np.stack([_filled(read[places[lead]]) * scales[lead] for lead in LEADS])
        values = np.rint(resampled(microvolts, rate)[:, : given.samples])
        beyond = [lead for lead, row in zip(LEADS, values, strict=True) if np.abs(row).max() > MOST]
        found[f"more than {MOST / 1000:g} mV"] = beyond
        signal[:, : values.shape[1]] = np.clip(values, -MOST, MOST)
    return signal, {kind: ", ".join(words) for kind, words in found.items() if words}, parts


def _alike(record: wfdb.MultiRecord) -> bool:
    """Return whether the segments of a record can be joined, for which wfdb takes the units of one segment for all."""
    segments = [each for each in record.segments[record.layout == "variable" :] if each is not None]
    signals = {(name, unit) for each in segments for name, unit in zip(each.sig_name, each.units, strict=True)}
    orders = {tuple(each.sig_name) for each in segments}  # a fixed layout's segments are joined by place
    return len(signals) == len(dict(signals)) and (record.layout == "variable" or len(orders) == 1)


def lead_of(name: str) -> str:
    """Return the lead of `LEADS` that a signal's name stands for, or an empty text.

    >>> [lead_of(name) for name in ("aVR", "Lead_II", "DIII", "v 4", "C1", "MLII", "-aVR")]
    ['AVR', 'II', 'III', 'V4', 'V1', '', '']
    """
    match = _LEAD.fullmatch(name.strip())
    word = re.sub("[ _]", "", match[1]).upper() if match else ""
    return {"1": "I", "2": "II", "3": "III"}.get(word.lstrip("DL"), word.lstrip("DL").replace("C", "V"))


def resampled(signals: Signals, rate: float) -> Signals:
    """Return signals [n, samples] at 100 Hz, of which nothing at or above 50 Hz remains (see `STOPPED`)."""
    up, down = Fraction(FREQUENCY / rate).limit_denominator(10_000).as_integer_ratio()
    if up == down:
        return signals
    # Beyond an end a signal goes on as its mirror image in both directions, without a step.
    return np.asarray(resample_poly(signals, up, down, axis=1, window=_taps(down), padtype="antireflect"))


@cache
def _taps(down: int) -> Signals:
    """Return the filter at `down` times 100 Hz."""
    rate = FREQUENCY * down
    count, beta = kaiserord(ATTENUATION, (STOPPED - PASSED) / (rate / 2))
    return np.asarray(firwin(count | 1, (PASSED + STOPPED) / 2, window=("kaiser", beta), fs=rate))


def _spoilt(values: Signals, rate: float) -> float:
    """Return the share of a lead that is NaN, or has one value for a second or more."""
    ends = np.flatnonzero(np.append(np.diff(values) != 0, True))  # NaN differs from NaN
    runs = np.diff(ends, prepend=-1)
    return float(runs[runs >= rate].sum() + np.isnan(values).sum()) / len(values)


def _filled(values: Signals) -> Signals:
    """Return a lead with NaN interpolated linearly, and zero where there is nothing else."""
    places, known = np.arange(len(values)), ~np.isnan(values)
    return np.interp(places, places[known], values[known]) if known.any() else np.zeros(len(values))
