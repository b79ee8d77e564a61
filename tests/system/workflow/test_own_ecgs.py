"""The workflow on WFDB records in a folder, with three classes: from the records to the page."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import wfdb

from metapt.cli import main
from metapt.domains.ecg.data import simulate
from metapt.evaluation.comparisons import OWN_DATA

from .conftest import TINY, snakemake

RESULTS = Path("results/tiny")
OWN = """source: folder
  folder: mine
  evaluations: [linear_evaluation]"""


def write_records(folder: Path) -> None:
    """Write generated ECGs in format 212, in steps of 5 microvolts, and labels of three of their classes."""
    folder.mkdir()
    made, leads, rows = simulate.generate(60, 0), list(simulate.LEADS), ["record,patient,NORM,MI,CD"]
    for number, (signal, labels) in enumerate(zip(made.signals, made.labels.astype(int), strict=True)):
        wfdb.wrsamp(
            f"r{number}", 100, ["uV"] * 12, leads[::-1], d_signal=np.rint(signal[::-1].T / 5).astype(np.int64),
            fmt=["212"] * 12, adc_gain=[0.2] * 12, baseline=[0] * 12, write_dir=str(folder),
        )  # fmt: skip
        rows.append(f"r{number},{made.patient_id[number]},{labels[0]},{labels[1]},{labels[3]}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")


def test_own_records_come_to_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path / "mine")
    config = tmp_path / "own.yaml"
    tiny = TINY["ecg"].read_text().partition("  cost:\n")[0]
    config.write_text(tiny.replace("source: simulated", OWN).replace("seeds: 2", "seeds: 1"))
    assert main(["run", "--configfile", str(config)]) == 0
    table = pd.read_csv(RESULTS / "ecg/full_access/table.csv")
    assert set(table["arm"]) == {"simclr", "meta"}
    assert table["paper_mean"].isna().all()
    shown = "".join(path.read_text() for path in RESULTS.glob("ecg/*/table.md"))
    assert "mean test AUROC over 3 classes (%)" in shown
    assert re.findall(r"\S*paper\S*", shown) == ["paper's;"], "but in the name of an error"
    assert set(pd.read_csv(RESULTS / "claims.csv")["paper"]) == {OWN_DATA}
    assert "<b>real data</b>, source folder" in (RESULTS / "index.html").read_text()

    os.utime(tmp_path / "mine/r0.dat", (0, 0))
    assert snakemake(tmp_path, "--dry-run", "--configfile", config).jobs()["prepare_ecg"] == 1
    capsys.readouterr()
    assert main(["run", "--configfile", str(config)]) == 0
    lines = [line.partition(" ecg/")[2] for line in capsys.readouterr().out.splitlines() if "up to date" not in line]
    assert lines == ["data/folder: its settings have changed"], "equal bytes make nothing else again"
