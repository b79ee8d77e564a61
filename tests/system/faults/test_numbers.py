"""NaN in data, in a loss, in a hypergradient: reported, never averaged in, and without effect on a rerun without it."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from metapt.domains.ecg.data import prepare
from metapt.domains.ecg.resnet1d import load_pretrained
from metapt.domains.ppi.data.string_files import read_links
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.machine import Machine
from metapt.sections import JobSettings
from metapt.training.pretrained_file import save_pretrained

from .conftest import Jobs, contents

pytestmark = pytest.mark.slow


def test_nan_in_raw_data(raw: dict[str, Path], tmp_path: Path) -> None:
    head = "protein1 protein2 experiments database combined_score\n"
    links = tmp_path / "links.gz"
    links.write_bytes(gzip.compress(f"{head}11.A 11.B nan 1 500\n".encode()))
    with pytest.raises(DataError, match=r"links.gz, line 2: a score is no whole number"):
        read_links(links, 11)
    altered = tmp_path / "ptbxl_database.csv"
    text = raw["ptbxl_database.csv"].read_text()
    row = text.splitlines()[1].split(",")
    altered.write_text(text.replace(f"\n{row[0]},{row[1]},", f"\n{row[0]},nan,", 1))
    outputs = {name: tmp_path / name for name in ("signals", "records")}
    with pytest.raises(DataError, match="patient_id is 'nan', and a whole number is expected"):
        prepare.run(JobSettings(), raw | {"ptbxl_database.csv": altered}, outputs, Machine())
    assert not outputs["signals"].exists()


def test_missing_values_in_signals(raw: dict[str, Path], tmp_path: Path) -> None:
    """WFDB's mark of a missing value, the lowest of int16."""
    record = next(raw["records.json"].parent.glob("records100/*/*.dat"))
    copy = tmp_path / record.relative_to(raw["records.json"].parent)
    copy.parent.mkdir(parents=True)
    values = np.fromfile(record, "<i2").reshape(1000, 12)
    lines = record.with_suffix(".hea").read_text().splitlines()
    values[7, 3] = -(2**15)
    values.tofile(copy)
    cells = lines[4].split()
    cells[6] = str(int(values[:, 3].sum(dtype=np.int64)) % 2**16)
    copy.with_suffix(".hea").write_text("\n".join([*lines[:4], " ".join(cells), *lines[5:], ""]))
    name = str(copy.relative_to(tmp_path).with_suffix(""))
    (tmp_path / "records.json").write_text(f'{{"records": ["{name}"]}}')
    outputs = {each: tmp_path / each for each in ("signals", "records")}
    with pytest.raises(DataError, match=r"has invalid values \(-32768\) in lead AVR"):
        prepare.run(JobSettings(), raw | {"records.json": tmp_path / "records.json"}, outputs, Machine())


def test_nan_in_weights(jobs: Jobs, tmp_path: Path) -> None:
    """FT of an encoder that is not a number: no AUROC is made up."""
    learned = load_pretrained(jobs["FT"].inputs["pretrained"], 2, "cpu")
    for value in learned.pretrained.encoder.values():
        value.mul_(torch.nan)
    save_pretrained(learned, tmp_path / "nan.pt")
    kind = replace(jobs["FT"], inputs=jobs["FT"].inputs | {"pretrained": tmp_path / "nan.pt"})
    ended = jobs.run(kind.job(tmp_path / "run"))
    assert ended.status == 0, ended.stderr
    assert "FT diverged: in 2 of 2 epochs outputs of the network were not finite" in ended.log
    table = metrics.read(tmp_path / "run" / "out" / "metrics.csv")
    assert table.loc[table["metric"].str.contains("AUROC"), "value"].isna().all()


@pytest.mark.parametrize("name", ["PT", "meta-PT"])
@pytest.mark.parametrize("checkpoints", [("checkpoint_always",), ()], ids=["checkpoints", "no checkpoint"])
def test_nan_in_the_loss(name: str, checkpoints: tuple[str, ...], jobs: Jobs, tmp_path: Path) -> None:
    ended = jobs.run(jobs[name].job(tmp_path), faults=(*checkpoints, "nan_loss"))
    place = {"PT": "step", "meta-PT": "PT step"}[name]
    assert f"the PT loss at {place}" in ended.error
    assert "is nan: look for NaN in the PT minibatches" in ended.error
    assert "lower the PT learning rate" in ended.error
    assert not contents(tmp_path)
    assert ("goes on at" in jobs.run_well(jobs[name], tmp_path).log) == bool(checkpoints)


def test_nan_in_a_hypergradient(jobs: Jobs, tmp_path: Path) -> None:
    ended = jobs.run(jobs["meta-PT"].job(tmp_path), faults=("one_nan_hypergradient",))
    assert ended.status == 0, ended.stderr
    assert "skipped 0.167" in ended.log  # one of six
    series = metrics.read_series(tmp_path / "out" / "series.csv")
    assert np.isfinite(series["value"]).all()


def test_nan_in_every_hypergradient(jobs: Jobs, tmp_path: Path) -> None:
    kind = jobs["meta-PT"]
    kind = replace(kind, config=kind.config | {"pretrain": kind.config["pretrain"] | {"epochs": 4}})
    ended = jobs.run(kind.job(tmp_path), faults=("nan_hypergradients",))
    assert ended.error.startswith(
        "10 hypergradients in a row could not be applied; the last one, at iteration 9, was not finite"
    )
    assert "Look for NaN in the minibatches" in ended.error
    assert not contents(tmp_path)
    jobs.run_well(kind, tmp_path)
