"""The slurm profile on a SLURM installation."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import ROOT, TINY, snakemake


def slurm_answers() -> bool:
    if shutil.which("sinfo") is None:
        return False
    try:
        return subprocess.run(["sinfo", "--noheader"], capture_output=True, timeout=5).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.skipif(not slurm_answers(), reason="no SLURM controller answers here")
def test_the_tiny_config_runs_on_slurm(tmp_path: Path) -> None:
    profile = ROOT / "workflow" / "profiles" / "slurm"
    # Works with and without accounting.
    options = ("--workflow-profile", profile, "--slurm-status-command", "squeue", "--slurm-no-account", "--configfile", TINY)
    outcome = snakemake(tmp_path, *options)
    assert outcome.status == 0, outcome.text
    assert "submitted with SLURM jobid" in outcome.text
    assert (tmp_path / "results/tiny/headline.md").is_file()
    assert "Nothing to be done" in snakemake(tmp_path, "--dry-run", *options).text
