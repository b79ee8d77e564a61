"""Generate PTB-XL's files without a download: 12-lead ECGs with diagnoses planted in known intervals and voltages.

The heart is the dipole of Sameni, Clifford, Jutten and Shamsollahi (EURASIP J. Adv. Signal Process. 2007:43407), the
three-lead form of the model of McSharry, Clifford, Tarassenko and Smith (IEEE Trans. Biomed. Eng. 50:289, 2003): each
component is a sum of Gaussian kernels around the R peak. The sum itself is computed; the differential equation is not
integrated. The kernels are functions of time instead of phase, so that intervals do not follow the RR interval; only
the QT interval depends on the heart rate (Bazett).

STTC (long QT) and CD (broad QRS, long PR) are planted in durations, which a strong temporal warp destroys. MI (Q waves,
raised ST, inverted T) and HYP (high QRS voltages) are planted in voltages, which no warp changes. Rhythm and hum
identify a recording and are independent of the diagnoses: a shortcut for instance discrimination, which a warp of about
a sample blurs while it keeps the durations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metapt.domains.ecg.data import FREQUENCY
from metapt.domains.ecg.data.sources import FOLDS, LEADS, SAMPLES
from metapt.files import atomic_path, write_csv
from metapt.machine import Machine
from metapt.sections import SimulateSettings

PATIENTS = 2000
SEED = 0

FIRST_DEGREE = 0.2  # s; a longer PR interval is a first degree AV block
_STATEMENTS = {  # PTB-XL's scp_statements.csv: description, diagnostic, diagnostic_class
    "LNGQT": ("long QT-interval", 1.0, "STTC"),
    "NORM": ("normal ECG", 1.0, "NORM"),
    "IMI": ("inferior myocardial infarction", 1.0, "MI"),
    "AMI": ("anterior myocardial infarction", 1.0, "MI"),
    "LVH": ("left ventricular hypertrophy", 1.0, "HYP"),
    "1AVB": ("first degree AV block", 1.0, "CD"),
    "IVCD": ("non-specific intraventricular conduction disturbance (block)", 1.0, "CD"),
    "SR": ("sinus rhythm", None, None),
}

_P, _QRS, _T = 0, 1, 2
# wave, axis (x left, y down, z back), place and width (rad at 60 bpm), height (mV): Sameni et al. 2007
_KERNELS = np.array([
    (_P, 0, -1.09, 0.0906, 0.03), (_P, 0, -0.83, 0.1057, 0.08), (_QRS, 0, -0.19, 0.0453, -0.13),
    (_QRS, 0, -0.07, 0.0378, 0.85), (_QRS, 0, 0.0, 0.0332, 1.11), (_QRS, 0, 0.06, 0.0302, 0.75),
    (_QRS, 0, 0.22, 0.0378, 0.06), (_T, 0, 1.2, 0.604, 0.1), (_T, 0, 1.42, 0.302, 0.17),
    (_T, 0, 1.68, 0.1812, 0.39), (_P, 1, -1.1, 0.07, 0.035), (_P, 1, -0.9, 0.07, 0.015),
    (_P, 1, -0.76, 0.04, -0.019), (_QRS, 1, -0.11, 0.055, 0.32), (_QRS, 1, -0.01, 0.037, 0.51),
    (_QRS, 1, 0.065, 0.0604, -0.32), (_T, 1, 0.8, 0.45, 0.04), (_T, 1, 1.58, 0.3, 0.08),
    (_P, 2, -1.1, 0.03, -0.03), (_P, 2, -0.93, 0.12, -0.14), (_P, 2, -0.7, 0.04, -0.035),
    (_QRS, 2, -0.15, 0.045, -0.4), (_QRS, 2, 0.095, 0.05, 0.46), (_T, 2, 1.05, 0.8, -0.12),
    (_T, 2, 1.25, 0.4, -0.2), (_T, 2, 1.55, 0.2, -0.35),
])  # fmt: skip
_INFARCT = np.array(  # wave, place and width (rad at 60 bpm), height along the infarct (mV per unit of severity)
    [(_QRS, -0.2, 0.06, -0.06), (_T, 0.75, 0.25, 0.03), (_T, 1.55, 0.25, -0.045)]
)
_TOWARDS = np.array([(0.0, 1.0, 0.0), (0.5, 0.0, -0.85)])  # direction of an inferior and of an anterior wall
_DOWER = np.array([  # leads I, II, V1..V6 from the dipole: Dower, Machado and Osborne, Clin. Cardiol. 3:87, 1980
    (0.632, -0.235, 0.059), (0.235, 1.066, -0.132), (-0.515, 0.157, -0.917), (0.044, 0.164, -1.387),
    (0.882, 0.098, -1.277), (1.213, 0.127, -0.601), (1.125, 0.127, -0.086), (0.831, 0.076, 0.23),
])  # fmt: skip

_PREVALENCE_CUT = 0.88  # severities above it are diagnosed: about one patient in five for each condition
_DOUBT = 0.3  # cardiologists differ: spread of the cut
# Effect of a severity of 1 on a quantity, and its spread among patients of one severity (natural logarithms).
_QRS_STRETCH, _QRS_SPREAD = 0.18, 0.06
_PR_STRETCH, _PR_SPREAD = 0.15, 0.1
_QT_STRETCH, _QT_SPREAD = 0.11, 0.04
_VOLTAGE, _VOLTAGE_SPREAD = 0.2, 0.12
_QRS_BASE = 1.2  # the kernels' QRS is narrow
_PR_BASE = 0.15  # s
# Voltages differ little between patients, and the hum is strong, lest instance discrimination live on voltages alone.
_HEIGHT, _HEIGHT_SPREAD = 0.6, 0.1  # with Dower's leads the kernels give higher voltages than adults have
_TURN = 8  # degrees, of the heart about each axis
_ELECTRODE = 0.05  # spread of the leads' gain
_MUSCLE, _WANDER, _NOISE_SPREAD = 0.06, 0.05, 0.1  # mV, mV
_HUM, _TONES, _HUM_BAND = 0.15, 3, (15.0, 45.0)  # mV each tone, Hz
_BPM, _BPM_SPREAD = 70, 10
_SWING, _SWING_SPREAD = (0.04, 0.06), 0.4  # of the RR interval with blood pressure and breath, relative
_EARLY = 0.3  # largest share of early beats


@dataclass(frozen=True)
class Simulated:
    """Generated ECGs, n recordings, and the quantities that they were generated from."""

    signals: NDArray[np.int16]  # [n, 12, 1000], microvolts at 100 Hz, leads as in `sources.LEADS`
    labels: NDArray[np.bool_]  # [n, 5], as in `sources.CLASSES`
    wall: NDArray[np.int64]  # [n], where an infarct is, if there is one: 0 inferior, 1 anterior
    pr: NDArray[np.float64]  # [n], s
    qrs: NDArray[np.float64]  # [n], width of the QRS complex, 1 for the kernels of the model
    qt: NDArray[np.float64]  # [n], length of the QT interval at 60 bpm, 1 for the kernels of the model
    beats: NDArray[np.float64]  # [n, beats], s, times of the R peaks, some before and after the recording
    patient_id: NDArray[np.int64]  # [n], from 1
    fold: NDArray[np.int64]  # [n], 1..10, one for all recordings of a patient


def run(settings: SimulateSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Write 2,400 ECGs of 2,000 patients in PTB-XL's layout; recordings go into `records100` beside `records.json`."""
    write(generate(PATIENTS, SEED), outputs)


def write(ecgs: Simulated, outputs: dict[str, Path]) -> None:
    """Write ECGs as `run` does; `records.json`, with their sum, is written last: it exists only if all files do."""
    names = [f"records100/{number // 1000 * 1000:05d}/{number:05d}_lr" for number in range(1, len(ecgs.signals) + 1)]
    with atomic_path(outputs["records.json"]) as listing:
        for name, signal in zip(names, ecgs.signals, strict=True):
            write_record(listing.parent / name, signal)
        descriptions, diagnostic, classes = zip(*_STATEMENTS.values(), strict=True)
        words = {"description": descriptions, "diagnostic": diagnostic, "diagnostic_class": classes}
        write_csv({"": list(_STATEMENTS), **words}, outputs["scp_statements.csv"])
        write_csv(_database(ecgs, names), outputs["ptbxl_database.csv"])
        content = {
            "version": "simulated",
            "sha256": hashlib.sha256(ecgs.signals.tobytes()).hexdigest(),
            "records": names,
        }
        listing.write_text(json.dumps(content, indent=0) + "\n")


def write_record(path: Path, signal: NDArray[np.int16]) -> None:
    """Write a recording [12, samples], microvolts, as `path`.hea and `path`.dat.

    The bytes are those of wfdb.wrsamp (format 16, 1000 / mV), which is slower.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{path.name} {len(LEADS)} {FREQUENCY} {signal.shape[1]}"]
    for lead, values in zip(LEADS, signal, strict=True):
        checksum = int(values.sum(dtype=np.int64)) % 2**16
        lines.append(f"{path.name}.dat 16 1000.0(0)/mV 16 0 {values[0]} {checksum} 0 {lead}")
    path.with_name(path.name + ".hea").write_text("\n".join(lines) + "\n")
    path.with_name(path.name + ".dat").write_bytes(signal.T.astype("<i2").tobytes())


def generate(patients: int, seed: int) -> Simulated:
    """Generate ECGs; the same arguments give the same ECGs (with the same NumPy on the same kind of processor).

    About every sixth patient has two or three recordings: the same heart with different rhythms.
    """
    rng = np.random.default_rng(seed)
    severity = rng.standard_normal((patients, 4))  # of MI, STTC, CD, HYP
    conditions = severity + _DOUBT * rng.standard_normal((patients, 4)) > _PREVALENCE_CUT
    labels = np.column_stack([~conditions.any(axis=1), conditions])
    wall = rng.integers(2, size=patients)
    mi, sttc, cd, hyp = severity.T
    qrs = _QRS_BASE * np.exp(_QRS_STRETCH * cd + _vary(rng, _QRS_SPREAD, patients))
    pr = _PR_BASE * np.exp(_PR_STRETCH * cd + _vary(rng, _PR_SPREAD, patients))
    qt = np.exp(_QT_STRETCH * sttc + _vary(rng, _QT_SPREAD, patients))
    rate = np.clip(_BPM + _vary(rng, _BPM_SPREAD, patients), 50, 95)  # beats per minute
    vectors = _vectors(rng, mi, hyp, wall)
    leads = _leads(rng, patients)
    fold = rng.permutation(patients) % len(FOLDS) + 1

    owner = np.sort(np.concatenate([np.arange(patients), np.arange(patients * 7 // 40), np.arange(patients // 40)]))
    beats = rhythm(rng, rate[owner])
    ecg = leads[owner] @ dipole(beats, vectors[owner], pr[owner], qrs[owner], qt[owner])
    signals = twelve(1000 * (ecg + _noise(rng, *ecg.shape[:2])))
    labels, wall, pr, qrs, qt, fold = (each[owner] for each in (labels, wall, pr, qrs, qt, fold))
    return Simulated(signals, labels, wall, pr, qrs, qt, beats, owner + 1, fold)


def rhythm(rng: np.random.Generator, rate: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return R peaks [n, beats], s, of hearts of mean `rate` [n], beats per minute, some beats early.

    The first peak is before 0 and the last after the recording. The RR interval varies with blood pressure and
    breath, with the spectrum of McSharry et al. (peaks at 0.1 and 0.25 Hz, here jittered) and random phases.
    """
    n = len(rate)
    mean = 60 / rate
    frequency = np.stack([rng.normal(0.1, 0.02, (n, 3)), rng.normal(0.25, 0.04, (n, 3))], axis=1)  # Hz
    size = np.exp(rng.normal(np.log(_SWING), _SWING_SPREAD, (n, 2)))[:, :, None] / np.sqrt(1.5)
    phase = rng.uniform(0, 2 * np.pi, (n, 2, 3))
    early = rng.uniform(0, _EARLY, n)  # share of early beats
    peaks = [-1.0 - rng.uniform(0, 1, n) * mean]
    pause = np.ones(n)
    while peaks[-1].min() < SAMPLES / FREQUENCY + 1:
        wave = (size * np.cos(2 * np.pi * frequency * peaks[-1][:, None, None] + phase)).sum(axis=(1, 2))
        hurry = np.where((rng.random(n) < early) & (pause == 1), rng.uniform(0.7, 0.9, n), 1.0)
        relative = np.clip(1 + wave + rng.normal(0, 0.01, n), 0.8, 1.25) * hurry * pause
        peaks.append(peaks[-1] + mean * relative)
        pause = 2 - hurry  # the beat after an early one is late by as much
    return np.stack(peaks, axis=1)


def dipole(
    beats: NDArray[np.float64],
    vectors: NDArray[np.float64],
    pr: NDArray[np.float64],
    qrs: NDArray[np.float64],
    qt: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Return the heart's dipole over time [n, 3, 1000], mV: sums of Gaussian kernels around the R peaks.

    `beats` [n, beats], s, begin before 0 and end after the recording. `vectors` [n, kernels, 3], mV, are the heights of
    the kernels along x, y, z. `pr`, `qrs` and `qt` [n] are as in `Simulated`.
    """
    time = np.arange(SAMPLES) / FREQUENCY
    last = np.stack([np.searchsorted(row, time, side="right") - 1 for row in beats])
    since = (time - np.take_along_axis(beats, last, axis=1)).astype(np.float32)
    until = (time - np.take_along_axis(beats, last + 1, axis=1)).astype(np.float32)
    mean = np.diff(beats).mean(axis=1)
    wave = np.concatenate([_KERNELS[:, 0], _INFARCT[:, 0]]).astype(int)
    place, width = np.concatenate([_KERNELS[:, 2:4], _INFARCT[:, 1:3]]).T / (2 * np.pi)  # s
    first = [place[wave == kind].min() for kind in (_P, _QRS)]
    stretch = np.stack([np.ones_like(qrs), qrs, qt * np.sqrt(mean)], axis=1)[:, wave]
    shift = np.where(wave == _P, (first[1] * qrs - pr - first[0])[:, None], 0.0)
    places, widths = (place * stretch + shift).astype(np.float32), (width * stretch).astype(np.float32)
    total = np.zeros((len(beats), 3, SAMPLES), np.float32)
    for k in range(len(wave)):
        kernel = sum(np.exp(-0.5 * ((at - places[:, k, None]) / widths[:, k, None]) ** 2) for at in (since, until))
        total += vectors[:, k, :, None].astype(np.float32) * np.asarray(kernel)[:, None]
    return total


def twelve(eight: NDArray[np.float64]) -> NDArray[np.int16]:
    """Return twelve leads [n, 12, samples] from I, II, V1..V6 [n, 8, samples], microvolts (Einthoven, Goldberger)."""
    one, two = np.rint(eight[:, 0]), np.rint(eight[:, 1])
    limbs = [one, two, two - one, -(one + two) / 2, one - two / 2, two - one / 2]
    whole: NDArray[np.int16] = np.rint(np.concatenate([np.stack(limbs, axis=1), eight[:, 2:]], axis=1)).astype(np.int16)
    return whole


def _vectors(
    rng: np.random.Generator, mi: NDArray[np.float64], hyp: NDArray[np.float64], wall: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return kernel heights [n, kernels, 3] for severities of an infarct (at `wall`) and of hypertrophy."""
    n, (wave, axis) = len(mi), _KERNELS[:, :2].astype(int).T
    size = np.exp(_vary(rng, _HEIGHT_SPREAD, n, 1) + _vary(rng, _VOLTAGE_SPREAD, n, 9))[:, 3 * wave + axis]
    size = _HEIGHT * size * np.exp(_VOLTAGE * np.outer(hyp, (wave == _QRS) & (axis != 1)))
    healthy = (size * _KERNELS[:, 4])[:, :, None] * np.eye(3)[axis]
    infarct = np.maximum(mi, 0)[:, None, None] * _INFARCT[:, 3, None] * _TOWARDS[wall][:, None]
    return np.concatenate([healthy, infarct], axis=1)


def _leads(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    """Return the leads from the dipole, [n, 8, 3]: Dower's, for slightly rotated hearts and displaced electrodes."""
    turn = np.broadcast_to(np.eye(3), (n, 3, 3))
    for i, j in ((0, 1), (1, 2), (2, 0)):
        angle = _vary(rng, np.deg2rad(_TURN), n)
        about = np.tile(np.eye(3), (n, 1, 1))
        about[:, i, i] = about[:, j, j] = np.cos(angle)
        about[:, i, j] = -np.sin(angle)
        about[:, j, i] = np.sin(angle)
        turn = about @ turn
    return _DOWER * np.exp(_vary(rng, _ELECTRODE, n, 8, 1)) @ turn


def _noise(rng: np.random.Generator, n: int, leads: int) -> NDArray[np.float32]:
    """Return noise [n, leads, 1000] in mV: muscle (white), baseline wander (power falls as 1 / f ** 3) and hum.

    The hum is the same in I, II and V1..V6: tones of equal strength, whose frequencies differ between recordings. The
    mains' own 50 Hz can't be represented at 100 Hz.
    """
    frequency = np.fft.rfftfreq(SAMPLES, 1 / FREQUENCY).clip(1 / FREQUENCY)
    muscle, wander = np.exp(rng.normal(np.log([[_MUSCLE], [_WANDER]]), _NOISE_SPREAD, (2, n)))[:, :, None]
    red = np.where(frequency < 0.05, 0, (0.3 / frequency) ** 1.5)
    red /= np.sqrt((red**2).mean())
    colour = np.sqrt(muscle**2 + (wander * red) ** 2).astype(np.float32)
    tones, phases = rng.uniform(*_HUM_BAND, (_TONES, n, 1)), rng.uniform(0, 2 * np.pi, (_TONES, n, 1))
    hum = _HUM * np.cos(2 * np.pi * tones * np.arange(SAMPLES) / FREQUENCY + phases).sum(axis=0).astype(np.float32)
    total = np.empty((n, leads, SAMPLES), np.float32)
    for lead in range(leads):
        white = rng.standard_normal((n, SAMPLES), dtype=np.float32)
        total[:, lead] = hum + np.fft.irfft(np.fft.rfft(white) * colour, SAMPLES)
    return total


def _database(ecgs: Simulated, names: list[str]) -> dict[str, Iterable[Any]]:
    """Return the columns of PTB-XL's ptbxl_database.csv, a row per recording; age and sex are random."""
    people = np.random.default_rng(SEED).integers((18, 0), (90, 2), size=(ecgs.patient_id.max(), 2))
    age, sex = people[ecgs.patient_id - 1].T
    return {
        "ecg_id": range(1, len(names) + 1),
        "patient_id": ecgs.patient_id,
        "age": age.astype(float),
        "sex": sex,
        "scp_codes": [str(_codes(ecgs, i)) for i in range(len(names))],
        "strat_fold": ecgs.fold,
        "filename_lr": names,
    }


def _codes(ecgs: Simulated, i: int) -> dict[str, float]:
    norm, mi, sttc, cd, hyp = ecgs.labels[i]
    found = {"NORM": norm, ("IMI", "AMI")[ecgs.wall[i]]: mi, "LNGQT": sttc, "IVCD": cd, "LVH": hyp}
    found["1AVB"] = cd and ecgs.pr[i] > FIRST_DEGREE
    return {code: 100.0 for code, there in found.items() if there} | {"SR": 0.0}


def _vary(rng: np.random.Generator, spread: float, *shape: int) -> NDArray[np.float64]:
    return spread * rng.standard_normal(shape)
