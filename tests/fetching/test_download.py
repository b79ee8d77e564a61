"""The stage reads entries of sources.yaml, and fetches real files from mirrors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from metapt.errors import ConfigError
from metapt.fetching.download import run
from metapt.fetching.source import SOURCES
from metapt.machine import Machine

ROOT = Path(__file__).parents[2]
SHARED_DATA = Path(os.environ.get("METAPT_SHARED_DATA", ROOT / "../shared/data"))


def entry_of(source: str) -> dict[str, Any]:
    """Return the entry without the publisher's addresses."""
    entries = yaml.safe_load(SOURCES.read_text(encoding="utf-8"))
    return {**entries[source], "urls": []}


def test_unknown_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mnist has no file 'other'; legal: train-images-idx3-ubyte\.gz, "):
        run({"source": entry_of("mnist"), "mirrors": []}, {}, {"other": tmp_path / "other"}, Machine())


@pytest.mark.real_data
def test_real_mirror(tmp_path: Path) -> None:
    if not (SHARED_DATA / "mnist").is_dir():
        pytest.skip(f"{SHARED_DATA / 'mnist'} is not there (METAPT_SHARED_DATA names another folder)")
    entry = entry_of("mnist")
    outputs = {name: tmp_path / name for name in entry["files"]}
    run({"source": entry, "mirrors": [str(SHARED_DATA)]}, {}, outputs, Machine())
    assert sorted(tmp_path.iterdir()) == sorted(outputs.values())


@pytest.mark.real_data
def test_real_ptbxl_mirror(tmp_path: Path) -> None:
    """Fetch one block of the records, and the tables, verified by the mirror's list of sums."""
    if not (SHARED_DATA / "ptbxl").is_dir():
        pytest.skip(f"{SHARED_DATA / 'ptbxl'} is not there (METAPT_SHARED_DATA names another folder)")
    folder = tmp_path / "mirror/ptbxl-1.0.3"
    command = [sys.executable, SHARED_DATA / "ptbxl/restore.py", folder, "--blocks", "21000"]
    subprocess.run(command, check=True, capture_output=True)
    entry = entry_of("ptbxl-1.0.3")
    source = {**entry, "listed": {**entry["listed"], "records": "records100/21000/"}}
    outputs = {name: tmp_path / "raw" / name for name in ("ptbxl_database.csv", "scp_statements.csv", "records.json")}
    run({"source": source, "mirrors": [str(tmp_path / "mirror")]}, {}, outputs, Machine())
    assert len(json.loads((tmp_path / "raw/records.json").read_text())["records"]) == len(list(folder.rglob("*.dat")))
