"""A home folder that can't be written: caches lie elsewhere, and other packages print neither traceback nor advice."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from metapt.errors import MachineError
from metapt.machine import find_caches

ROOT = Path(__file__).parents[3]
VARIABLES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR")


@pytest.fixture(autouse=True)
def _no_other_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "as it was")  # so that it is put back
        monkeypatch.delenv(variable)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_home_folder_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    find_caches()
    assert not any(variable in os.environ for variable in VARIABLES)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("home", ["/dev/null", "read-only", "file/home", "~"])
def test_without_one_a_temporary_folder_is_named_once(
    home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, disk: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(disk("ro") if home == "read-only" else home if home[0] in "/~" else tmp_path / home))
    find_caches()
    folder = os.environ["XDG_CACHE_HOME"]
    assert Path(folder).parent == tmp_path
    assert os.environ["MPLCONFIGDIR"] == folder
    assert capsys.readouterr().err.startswith(f"the home folder can't be written, so that caches are kept in {folder}")
    find_caches()
    assert capsys.readouterr().err == ""
    assert not Path("~").exists()


def test_without_any_folder_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    with pytest.raises(MachineError, match="neither the home folder nor a temporary folder can be written"):
        find_caches()


@pytest.mark.slow
def test_the_workflow_needs_no_home() -> None:
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet"]
    environment = os.environ | {"HOME": "/dev/null"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the home folder can't be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Matplotlib" not in done.stderr
