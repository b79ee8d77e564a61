"""Records of a folder: their microvolts at 100 Hz, their labels and folds, and the refusal of what is wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wfdb
from numpy.typing import NDArray
from scipy.signal import resample

from metapt.domains.ecg.data import EcgFolder, find
from metapt.domains.ecg.data import folder as own
from metapt.domains.ecg.data.folder import resampled
from metapt.domains.ecg.data.prepare import EcgRecords, load
from metapt.domains.ecg.data.sources import LEADS, read_database, read_signals
from metapt.domains.ecg.stages import FolderSettings
from metapt.engine import records
from metapt.engine.config import validate
from metapt.engine.execute import execute
from metapt.engine.jobs import Job
from metapt.engine.plan import planned
from metapt.errors import ConfigError, DataError
from metapt.machine import Machine

SPELLED = ("lead I", "Lead_II", "DIII", "aVR", "avl", "ECG aVF", "v1", "V 2", "C3", "MDC_ECG_LEAD_V4", "V_5", "v6")
EDGE = 40  # samples at 100 Hz: the filter reaches 0.37 s
TONES = ((0.7, 300), (1.3, 200), (5, 150), (11, 120), (23, 90), (37, 60), (44.5, 50))
"""Frequencies (Hz) and amplitudes (microvolts) of a signal within the band that is kept."""
Signals = NDArray[np.float64]


def signals(rate: float, seconds: float, hum: Iterable[float] = ()) -> Signals:
    """Return 12 leads [12, samples], microvolts: tones in phases of their own, and hum of 1 mV beyond the band."""
    time, phase = np.arange(round(rate * seconds)) / rate, np.arange(12)[:, None]
    tones = [(each, size, (1 + place) * phase) for place, (each, size) in enumerate(TONES)]
    waves = [*tones, *((each, 1000, phase) for each in hum)]
    return np.asarray(sum(size * np.sin(2 * np.pi * each * time + start) for each, size, start in waves))


def write(path: Path, microvolts: Signals, rate: float, names: Iterable[str] = LEADS, **form: Any) -> None:
    """Write a record with `gain` steps per unit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    form = {"fmt": "16", "gain": 1000.0, "unit": "mV", "baseline": 0} | form
    scale, count = {"mV": 1e-3, "uV": 1.0, "V": 1e-6, "adu": 1e-3}[form["unit"]], len(microvolts)
    steps = np.rint(np.nan_to_num(microvolts) * scale * form["gain"]).astype(np.int64) + form["baseline"]
    steps[np.isnan(microvolts)] = -32768  # format 16's mark of a missing value
    fmt, gain, unit, baseline = ([form[name]] * count for name in ("fmt", "gain", "unit", "baseline"))
    place: dict[str, Any] = {"write_dir": str(path.parent), "adc_gain": gain, "baseline": baseline}
    wfdb.wrsamp(path.name, rate, unit, list(names), d_signal=steps.T, fmt=fmt, **place)


@pytest.mark.parametrize(("mu", "code"), [("\xb5", "utf-8"), ("\u03bc", "utf-8"), ("\xb5", "latin-1")])
def test_microvolts_by_the_letter_mu(mu: str, code: str, tmp_path: Path) -> None:
    write(tmp_path / "x", signals(100, 6), 100, unit="uV", gain=1.0)
    header = tmp_path / "x.hea"
    header.write_bytes(header.read_text().replace("uV", f"{mu}V").encode(code))
    found, faults, _ = own.read_record(tmp_path / "x", EcgFolder(path=str(tmp_path), seconds=6))
    assert faults == {}
    assert np.abs(found - signals(100, 6)).max() <= 0.5
    header.write_bytes(header.read_bytes().replace(f"{mu}V".encode(code), b"V", 1))
    _, faults, _ = own.read_record(tmp_path / "x", EcgFolder(path=str(tmp_path), seconds=6))
    assert "units that are no voltage" in faults


def label(folder: Path, *rows: str, header: str = "record,patient,fold,A,B,C") -> None:
    (folder / "labels.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


def prepared(folder: Path, **keys: Any) -> EcgRecords:
    settings = FolderSettings(folder=EcgFolder(path=str(folder), **keys), files=find(folder).digest)
    outputs = {"signals": folder / "out/signals.npy", "records": folder / "out/records.csv"}
    own.run(settings, {"labels.csv": folder / "labels.csv"}, outputs, Machine())
    return load(**outputs)


def refused(folder: Path, *parts: str, **keys: Any) -> None:
    """Check that one sentence has all parts, and that nothing is left."""
    (folder / "out/signals.npy").unlink(missing_ok=True)
    with pytest.raises(DataError) as raised:
        prepared(folder, **keys)
    assert [part for part in parts if part not in str(raised.value)] == []
    assert not (folder / "out/signals.npy").exists()


FORMS: list[tuple[int, dict[str, Any]]] = [
    (100, {}), (500, {"fmt": "16", "gain": 4880.0, "baseline": 17}), (500, {"fmt": "212", "gain": 200.0}),
    (360, {"fmt": "212", "gain": 0.2, "unit": "uV", "baseline": -3}), (257, {"fmt": "24", "gain": 1e6, "unit": "V"}),
    (1000, {"fmt": "32", "gain": 1e5}), (128, {"fmt": "80", "gain": 50.0}),
]  # fmt: skip


@pytest.mark.parametrize(("rate", "form"), FORMS)
def test_microvolts_at_100_hz(rate: int, form: dict[str, Any], tmp_path: Path) -> None:
    """The filter keeps 0.1 % of an amplitude's size, and leaves 0.1 % of hum; a phase of it sums to 3 at most."""
    hum = [each for each in (51.0, 60.0, 0.45 * rate) if 50 <= each < rate / 2] if rate > 200 else []
    order = np.random.default_rng(rate).permutation(12)
    write(tmp_path / "far/below/x", signals(rate, 6, hum)[order], rate, names=[SPELLED[k] for k in order], **form)
    write(tmp_path / "y", signals(rate, 6), rate)
    label(tmp_path, "y,b,10,1,0,1", "far/below/x,a,1,0,1,0")
    found = prepared(tmp_path, seconds=6)
    step = {"mV": 1e3, "uV": 1.0, "V": 1e6}[form.get("unit", "mV")] / form.get("gain", 1000.0)
    allowed = 0.5 + 1.5 * step + 1e-3 * (sum(size for _, size in TONES) + 1000 * len(hum)) * (rate != 100)
    assert np.abs(found.signals[1] - signals(100, 6))[:, EDGE:-EDGE].max() <= allowed
    assert found.classes == ["A", "B", "C"]
    assert found.labels.tolist() == [[1, 0, 1], [0, 1, 0]]
    assert [found.table[name].tolist() for name in ("ecg_id", "patient_id", "fold")] == [[1, 2], [1, 2], [10, 1]]


def test_a_header_need_not_say_how_long_the_record_is(tmp_path: Path) -> None:
    for name in "xy":
        write(tmp_path / name, signals(500, 7), 500)
    label(tmp_path, "x,a,1,0,0,1", "y,b,10,1,1,0")
    told = prepared(tmp_path, seconds=6).signals
    first, *rest = (tmp_path / "x.hea").read_text().splitlines()
    (tmp_path / "x.hea").write_text("\n".join([first.rpartition(" ")[0], *rest]) + "\n")
    assert np.array_equal(prepared(tmp_path, seconds=6).signals, told)


def test_a_drifting_baseline_makes_no_step_at_the_ends() -> None:
    for rate in (250.0, 499.99, 512.0):
        line, expected = (5000.0 + 800.0 * np.arange(round(3 * each))[None] / each for each in (rate, 100))
        np.testing.assert_allclose(resampled(line, rate)[:, :300], expected, rtol=0.002)


def test_longer_records_are_cut_and_shorter_ones_padded(tmp_path: Path) -> None:
    write(tmp_path / "long", signals(500, 5), 500)
    write(tmp_path / "short", signals(500, 3), 500)
    label(tmp_path, "long,a,1,0,1,0", "short,b,10,0,1,0")
    found = prepared(tmp_path, seconds=4, fit="both").signals
    assert found.shape[2] == 400
    assert np.abs(found[0, :, EDGE:] - signals(100, 4)[:, EDGE:]).max() <= 3, "the end is not that of the record"
    assert np.abs(found[1, :, EDGE : 300 - EDGE] - signals(100, 3)[:, EDGE:-EDGE]).max() <= 3
    assert not found[1, :, 300:].any()
    longer, shorter = "more than 4 s: long (5 s)", "less than 4 s: short (3 s)"
    refused(tmp_path, f"for {shorter}.", seconds=4, fit="cut")
    refused(tmp_path, f"for {longer}.", seconds=4, fit="pad")
    refused(tmp_path, f"for {longer}; {shorter}.", seconds=4, fit="neither")


def test_missing_values_up_to_a_share_are_interpolated(tmp_path: Path) -> None:
    ramp = np.tile(np.arange(1000.0), (12, 1))
    ramp[3, 200:300] = np.nan
    ramp[5, 400:] = 7.0
    write(tmp_path / "x", ramp, 100)
    write(tmp_path / "y", ramp[::-1], 100)
    label(tmp_path, "x,a,1,0,1,0", "y,b,10,0,1,0")
    assert prepared(tmp_path, spoilt=0.6).signals[0, 3].tolist() == list(range(1000))
    refused(tmp_path, "share of 0.1: x (AVF 0.6), y (V1 0.6).", spoilt=0.1)


OTHERS, RAW = "segments with other leads or units than the first", "signals that are not calibrated (gain 0)"


@pytest.mark.parametrize(
    ("changes", "fixed", "variable"),
    [
        ({}, "", ""),
        ({"gain": 200.0}, "", ""),
        ({"unit": "uV", "gain": 1.0}, OTHERS, OTHERS),
        ({"names": LEADS[::-1]}, OTHERS, ""),
        ({"raw": True}, RAW, RAW),
    ],
)
def test_segments_are_joined_if_they_are_alike(
    changes: dict[str, Any], fixed: str, variable: str, tmp_path: Path
) -> None:
    whole = np.rint(signals(100, 2) / 5) * 5  # steps of a gain of 200 per mV
    write(tmp_path / "one", whole[:, :100], 100)
    write(tmp_path / "two", whole[:, 100:][:: -1 if "names" in changes else 1], 100, **changes)
    if "raw" in changes:
        header = tmp_path / "two.hea"
        header.write_text(header.read_text().replace(" 1000.0(", " 0("))
    (tmp_path / "all.hea").write_text("all/2 12 100 200\none 100\ntwo 100\n")
    (tmp_path / "any.hea").write_text("any/3 12 100 200\nlayout 0\none 100\ntwo 100\n")
    (tmp_path / "layout.hea").write_text(
        "\n".join(["layout 12 100 0", *(f"~ 0 0/mV 0 0 0 0 0 {lead}" for lead in LEADS)])
    )
    for name, fault in (("all", fixed), ("any", variable)):
        found, wrong, _ = own.read_record(tmp_path / name, EcgFolder(path=str(tmp_path), seconds=2))
        assert list(wrong) == [fault] * bool(fault)
        np.testing.assert_array_equal(found, 0 * whole if fault else whole)


def test_all_that_is_wrong_with_records_is_said_at_once(tmp_path: Path) -> None:
    good, rows = signals(100, 2), []
    flat, none = good * (np.arange(12) != 1)[:, None], np.where((np.arange(12) == 0)[:, None], np.nan, good)
    wrong: dict[str, dict[str, Any]] = {
        "some": {"names": (*LEADS[:10], "MLII", "-V6")}, "twice": {"names": (*LEADS[:11], "v5")}, "slow": {"rate": 99},
        "counts": {"unit": "adu"}, "short": {"microvolts": good[:, :150]}, "flat": {"microvolts": flat},
        "gaps": {"microvolts": none}, "strong": {"microvolts": good * 100, "fmt": "32"},
        "both": {"names": (*LEADS[:11], "X"), "microvolts": flat},
    }  # fmt: skip
    for number, (name, changes) in enumerate(wrong.items()):
        write(tmp_path / name, **{"microvolts": good, "rate": 100} | changes)
        rows.append(f"{name},{number},{number + 2},0,1,0")
    for name in ("new", "cut", "raw"):
        write(tmp_path / name, good, 100)
    (tmp_path / "cut.dat").write_bytes(b"")
    (tmp_path / "raw.hea").write_text((tmp_path / "raw.hea").read_text().replace(" 16 1000.0(", "\t16\t0.0("))
    label(tmp_path, *rows, "cut,c,1,1,1,1", "raw,d,1,1,1,1")
    refused(
        tmp_path, "missing leads: some (V5, V6), twice (V6), both (V6);", "leads that are there twice: twice (V5);",
        "not calibrated (gain 0): raw (the header).", "rates below 100 Hz: slow (99 Hz);",
        f"units that are no voltage: counts ({', '.join(LEADS)});",
        "less than 2 s: short (1.5 s);", "more than 32.767 mV: strong (I, II", "records that wfdb can't read: cut (",
        "flat or NaN signals beyond a share of 0.1: flat (II 1), gaps (I 1), both (II 1);",
        "records without a label: new;", seconds=2,
    )  # fmt: skip


def test_all_that_is_wrong_with_labels_is_said_at_once(tmp_path: Path) -> None:
    for name in "abcdefg":
        write(tmp_path / name, signals(100, 1), 100)
    rows = "a,1,1,0,1,0", "b,1,2,0,1,0", "c,2,11,0,1,0", "d,3,3,0,,0", "e,4,4,0,2,yes", "e,4,4,0,1,0", "f,,5,0,1,0"
    label(tmp_path, *rows, "h,5,6,0,1,0", "g,6,6,0,1")
    refused(
        tmp_path, "rows of another length than the first: g;", "rows without a record in the folder: h;",
        "records without a patient: f;", "records without a label: d, g;", "folds other than 1 to 10: c;",
        "labels other than 0 and 1: e (B 2, C yes);", "records in two rows: e;", "patients in two folds: 1;",
        "folds without a record: 10.", seconds=1,
    )  # fmt: skip


HEADERS = [
    ("record,fold,A", "columns record, fold, A; legal: a row for each record, and record, patient, fold or not, and"),
    ("record;patient;A", "with the columns record;patient;A;"), ("record,patient,fold", "one column for each class"),
    ("record,patient,A,A", "each once"), ("record,patient,left bundle", "the name of a class is made of letters"),
    ("record,patient,ecg_id", "but not all, ecg_id"), ('record,patient,"A', "is no CSV file in UTF-8"),
]  # fmt: skip


def test_other_tables_are_refused(tmp_path: Path) -> None:
    for header, words in HEADERS:
        label(tmp_path, re.sub("[^,]+", "1", header), header=header)
        refused(tmp_path, words)
    label(tmp_path, header="record,patient,A")
    refused(tmp_path, "has 0 rows")


def test_patients_are_dealt_out_to_ten_folds(tmp_path: Path) -> None:
    rows, faults = [f"r{number},p{number * 7 % 23},1" for number in range(60)], own.Faults(list)
    folds = []
    for order in (rows, rows[::-1]):
        label(tmp_path, *order, header="record,patient,A")
        table, names = own.read_labels(tmp_path / "labels.csv", [f"r{number}" for number in range(60)], faults)
        patients, found = [row.split(",")[1] for row in order], table["fold"].tolist()
        assert names == [row.split(",")[0] for row in order]
        folds.append(dict(zip(patients, found, strict=True)))
        assert [folds[-1][patient] for patient in patients] == found, "a patient is in one fold"
    assert not any(faults.values())
    assert folds[0] == folds[1]
    assert sorted(Counter(folds[0].values()).values()) == [2] * 7 + [3] * 3
    for number in range(11):
        write(tmp_path / f"r{number}", signals(100, 1), 100)
    label(tmp_path, *(f"r{number},{number % 10},1" for number in range(11)), header="record,patient,A")
    assert {*prepared(tmp_path, seconds=1).table["fold"]} == {*range(1, 11)}
    label(tmp_path, *(f"r{number},{number % 9},1" for number in range(11)), header="record,patient,A")
    refused(tmp_path, "fewer patients than folds: 9 for 10", seconds=1)


def test_a_changed_record_is_prepared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "xy":
        write(tmp_path / "mine" / name, signals(100, 1), 100)
    label(tmp_path / "mine", "x,a,1,0,1,0", "y,b,10,0,1,0")
    header, signal = tmp_path / "mine/y.hea", (tmp_path / "mine/y.dat").rename(tmp_path / "mine/signal-1.bin")
    header.write_text(header.read_text().replace("y.dat", signal.name))
    ecg = {"source": "folder", "folder": {"path": "mine", "seconds": 1}, "full_access": {"arms": ["simclr"]}}
    config = validate({"results": "results/mine", "ecg": ecg})

    def job() -> Job:
        return planned(config).jobs["ecg/data/folder"]

    def stale() -> str | None:
        made = job()
        return records.stale(Path(made.record), made.config, made.code, made.inputs)

    assert execute(job()) == 0
    (tmp_path / "mine/notes.txt").write_text("no file of a record")
    old = job()
    assert stale() is None
    write(tmp_path / "mine/x", 2 * signals(100, 1), 100)
    assert stale() == "its settings have changed"
    assert execute(old) == 1
    assert "have changed since this run was planned" in Path(old.log).read_text()
    assert execute(job()) == 0
    assert stale() is None
    signal.write_bytes(signal.read_bytes()[::-1])
    assert stale() == "its settings have changed"
    (tmp_path / "mine/labels.csv").unlink()
    with pytest.raises(ConfigError, match=r"ecg\.folder: mine/labels\.csv can't be read"):
        planned(config)


@pytest.mark.slow
@pytest.mark.real_data
def test_ptbxl_at_500_hz_returns(ptbxl: Path, tmp_path: Path) -> None:
    """Half of the records in format 16, half in 212 with steps of 5 microvolts, whose errors are 1.4 in the mean."""
    table = read_database(ptbxl / "ptbxl_database.csv", ptbxl / "scp_statements.csv")
    chosen = np.flatnonzero([name.startswith("records100/00000/") for name in table["filename_lr"]])[:16]
    original = read_signals(ptbxl, table["filename_lr"][chosen].tolist()).astype(float)
    before, after = original[..., 100:0:-1], original[..., -2:-102:-1]
    around = [2 * original[..., :1] - before, original, 2 * original[..., -1:] - after]
    rows = []
    for number, signal in enumerate(resample(np.concatenate(around, axis=2), 6000, axis=2)[..., 500:5500]):
        form: dict[str, Any] = {"fmt": "212", "gain": 200.0} if number % 2 else {"fmt": "16", "gain": 8000.0}
        order = np.random.default_rng(number).permutation(12)
        write(tmp_path / f"mine/r{number}", signal[order], 500, names=[LEADS[k] for k in order], **form)
        rows.append(f"r{number},{table['patient_id'][chosen[number]]},{table['NORM'][chosen[number]]}")
    label(tmp_path / "mine", *rows, header="record,patient,NORM")
    found = prepared(tmp_path / "mine")
    error = (found.signals - original)[:, :, EDGE:-EDGE]
    for part, root, most in ((error[::2], 0.5, 4), (error[1::2], 1.0, 8)):
        assert np.sqrt((part**2).mean()) <= root
        assert np.abs(part).max() <= most
    assert found.labels[:, 0].tolist() == table["NORM"][chosen].tolist()
