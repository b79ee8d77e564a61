"""Runs of the real workflow in folders of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = Path(__file__).parent / "tiny.yaml"
TINY_ECG = Path(__file__).parent / "tiny_ecg.yaml"
TINY_PPI = Path(__file__).parent / "tiny_ppi.yaml"
TARGETS = ("all", "mnist", "mnist_rotation_mean", "ecg", "ecg_full_access")


@dataclass(frozen=True)
class Outcome:
    """What a call of snakemake ended in."""

    status: int
    text: str

    def jobs(self) -> dict[str, int]:
        """Rule -> number of jobs, of a dry run; the rules that only name targets left out."""
        table = re.search(r"^job +count\n[- ]+\n(.*?)^total", self.text, flags=re.M | re.S)
        rows = (line.split() for line in table[1].splitlines()) if table else ()
        return {rule: int(count) for rule, count in rows if rule not in TARGETS}


def snakemake(folder: Path, *arguments: str | Path, cores: Sequence[str] = ("--cores", "2")) -> Outcome:
    """Call snakemake with `folder` as working directory."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", ROOT / "workflow" / "Snakefile", *cores, *arguments]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / ".cache")}
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return Outcome(done.returncode, done.stdout)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tiny config has run; not to be changed."""
    folder = tmp_path_factory.mktemp("workflow")
    outcome = snakemake(folder, "--configfile", TINY)
    assert outcome.status == 0, outcome.text
    return folder


@pytest.fixture(scope="session")
def finished_ecg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tiny config of the ECG domain has run; not to be changed."""
    folder = tmp_path_factory.mktemp("ecg_workflow")
    outcome = snakemake(folder, "--configfile", TINY_ECG)
    assert outcome.status == 0, outcome.text
    return folder


@pytest.fixture(scope="session")
def finished_ppi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tiny config of the PPI domain has run; not to be changed."""
    folder = tmp_path_factory.mktemp("ppi_workflow")
    outcome = snakemake(folder, "--configfile", TINY_PPI)
    assert outcome.status == 0, outcome.text
    return folder


@pytest.fixture
def again(finished: Path, tmp_path: Path) -> Path:
    """A copy of `finished` that a test may change."""
    return shutil.copytree(finished, tmp_path / "copy")
