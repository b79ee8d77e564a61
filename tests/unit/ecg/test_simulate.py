"""Generated ECGs have planted conditions, and are in PTB-XL's files as wfdb writes them."""

from __future__ import annotations

import json
from ast import literal_eval
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import wfdb

from metapt.domains.ecg.config import TRAINING_RECORDS
from metapt.domains.ecg.data import simulate as sim
from metapt.domains.ecg.data.sources import CLASSES, LEADS

PATIENTS = 240


@pytest.fixture(scope="module")
def ecgs() -> sim.Simulated:
    return sim.generate(PATIENTS, seed=3)


@pytest.fixture(scope="module")
def written(ecgs: sim.Simulated, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    sim.write(ecgs, {name: folder / name for name in ("ptbxl_database.csv", "scp_statements.csv", "records.json")})
    return folder


def heart(pr: float = 0.15, qrs: float = 1.0, qt: float = 1.0) -> np.ndarray:
    """Return lead II [1000] in mV of a noise-free heart at exactly 60 bpm, R peaks at whole seconds, no nuisances."""
    vectors = np.zeros((1, len(sim._KERNELS) + len(sim._INFARCT), 3))
    rows = np.arange(len(sim._KERNELS))
    vectors[0, rows, sim._KERNELS[:, 1].astype(int)] = sim._KERNELS[:, 4]
    beats = np.arange(-1.0, 12)[None]
    return (sim._DOWER @ sim.dipole(beats, vectors, np.array([pr]), np.array([qrs]), np.array([qt])))[0, 1]


def test_leads_obey_einthoven_and_each_recording_has_a_rhythm_of_its_own(ecgs: sim.Simulated) -> None:
    assert ecgs.signals.shape == (PATIENTS * 6 // 5, 12, 1000)
    assert ecgs.signals.dtype == np.int16
    assert np.abs(ecgs.signals.astype(int)).max() < 12_000
    one, two, three, avr, avl, avf = ecgs.signals[:, :6].astype(int).transpose(1, 0, 2)
    np.testing.assert_array_equal(three, two - one)
    for lead, twice in ((avr, -one - two), (avl, 2 * one - two), (avf, 2 * two - one)):
        assert np.abs(2 * lead - twice).max() <= 1
    interval = np.diff(ecgs.beats)
    rate = 60 / interval.mean(axis=1)
    assert 45 < rate.min() < rate.max() < 105
    assert rate.std() > 8
    assert interval.min() > 0.35
    assert ecgs.beats[:, 0].max() < 0 < 10 < ecgs.beats[:, -1].min()
    pattern = interval[:, :8] / interval[:, :8].mean(axis=1, keepdims=True) - 1
    assert pattern.std() > 0.03
    assert abs(np.corrcoef(pattern)[np.triu_indices(len(pattern), 1)].mean()) < 0.05


def test_other_signals_have_another_list_of_records(ecgs: sim.Simulated, written: Path, tmp_path: Path) -> None:
    """The list is the only file of theirs that later jobs compare."""
    outputs = {name: tmp_path / name for name in ("ptbxl_database.csv", "scp_statements.csv", "records.json")}
    sim.write(replace(ecgs, signals=ecgs.signals + np.int16(1)), outputs)
    lists = [json.loads((folder / "records.json").read_text()) for folder in (written, tmp_path)]
    assert lists[0]["records"] == lists[1]["records"]
    assert lists[0] != lists[1]


def test_same_seed_same_bytes() -> None:
    first, again, other = (sim.generate(20, seed) for seed in (3, 3, 4))
    for field in fields(first):
        np.testing.assert_array_equal(getattr(first, field.name), getattr(again, field.name))
    assert (first.signals != other.signals).any()


def test_patients_stay_in_one_fold(ecgs: sim.Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame({"patient": ecgs.patient_id, "fold": ecgs.fold})
    assert (table.groupby("patient").fold.nunique() == 1).all()
    assert sorted(table.patient.value_counts().unique()) == [1, 2, 3]
    assert table.drop_duplicates("patient").fold.value_counts().tolist() == [PATIENTS // 10] * 10
    monkeypatch.setattr(sim, "dipole", lambda beats, *_: np.zeros((len(beats), 3, 1)))  # after the folds are drawn
    monkeypatch.setattr(sim, "_noise", lambda rng, n, leads: np.zeros((n, leads, 1)))
    assert (sim.generate(sim.PATIENTS, sim.SEED).fold != 10).sum() == TRAINING_RECORDS["simulated"]


def test_conditions_are_as_frequent_as_they_should_be_and_planted_where_they_should_be(ecgs: sim.Simulated) -> None:
    share = ecgs.labels.mean(axis=0)
    assert 0.33 < share[0] < 0.47
    assert ((share[1:] > 0.13) & (share[1:] < 0.27)).all()
    np.testing.assert_array_equal(ecgs.labels[:, 0], ~ecgs.labels[:, 1:].any(axis=1))
    _, _, sttc, cd, hyp = ecgs.labels.T
    for interval, label, other in ((ecgs.qrs, cd, sttc), (ecgs.pr, cd, sttc), (ecgs.qt, sttc, cd)):
        assert interval[label].mean() > 1.1 * interval[~label].mean()
        assert interval[other].mean() == pytest.approx(interval[~other].mean(), rel=0.05)
    swing = np.log(np.ptp(ecgs.signals, axis=2).astype(float)).mean(axis=1)
    gap = [swing[label].mean() - swing[~label].mean() for label in (sttc, cd, hyp)]
    assert max(abs(gap[0]), abs(gap[1])) < 0.05 < 0.08 < gap[2], "of voltages, which durations leave alone"


def test_intervals_and_infarcts_can_be_measured_in_the_signal() -> None:
    normal = heart()
    assert np.argmax(heart(qt=1.2)[520:560]) == pytest.approx(1.2 * (np.argmax(normal[520:560]) + 20) - 20, abs=1)
    p_wave = slice(470, 488)  # R at 500
    assert np.argmax(normal[p_wave]) - np.argmax(heart(pr=0.2)[p_wave]) == 5
    width = [(np.abs(lead[490:510]) > 0.3 * np.abs(lead).max()).sum() for lead in (normal, heart(qrs=1.5))]
    assert width[1] >= 1.3 * width[0]
    assert np.ptp(heart(qrs=1.5)) == pytest.approx(np.ptp(normal), rel=0.05)
    for wall, lead in ((0, 1), (1, 4)):  # II and V3 face an inferior and an anterior wall
        vectors = sim._vectors(np.random.default_rng(0), np.array([0.0, 2.0]), np.zeros(2), np.full(2, wall))
        q = (sim._DOWER @ vectors[:, len(sim._KERNELS) :].transpose(0, 2, 1))[:, lead, 0]
        assert q[0] == 0
        assert q[1] < -0.1


def test_records_are_the_bytes_that_wfdb_writes(ecgs: sim.Simulated, written: Path, tmp_path: Path) -> None:
    listing = json.loads((written / "records.json").read_text())
    assert listing["version"] == "simulated"
    assert listing["records"] == sorted(listing["records"])
    assert len(listing["records"]) == len(ecgs.signals)
    for index in (0, -1):
        name = Path(listing["records"][index])
        wfdb.wrsamp(
            name.name, 100, ["mV"] * 12, list(LEADS), d_signal=ecgs.signals[index].T.astype(int), fmt=["16"] * 12,
            adc_gain=[1000.0] * 12, baseline=[0] * 12, write_dir=str(tmp_path),
        )  # fmt: skip
        for suffix in (".hea", ".dat"):
            theirs = (tmp_path / name.name).with_suffix(suffix).read_bytes()
            assert (written / name).with_suffix(suffix).read_bytes() == theirs


def test_tables_give_the_labels(ecgs: sim.Simulated, written: Path) -> None:
    table = pd.read_csv(written / "ptbxl_database.csv", index_col="ecg_id")
    statements = pd.read_csv(written / "scp_statements.csv", index_col=0)
    superclass = statements[statements.diagnostic == 1].diagnostic_class
    for codes, labels in zip(table.scp_codes.map(literal_eval), ecgs.labels, strict=True):
        assert set(codes) <= set(statements.index)
        found = {superclass[code] for code in codes if code in superclass}
        assert found == {name for name, label in zip(CLASSES, labels, strict=True) if label}
    np.testing.assert_array_equal(table.strat_fold, ecgs.fold)
    np.testing.assert_array_equal(table.patient_id, ecgs.patient_id)
    assert all((written / f"{name}.hea").exists() for name in table.filename_lr)
    assert table.groupby("patient_id")[["age", "sex"]].nunique().eq(1).all(axis=None)
