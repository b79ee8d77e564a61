"""A new domain takes a package and a line in `DOMAINS`: a toy domain runs through the whole workflow."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[3]
TOY = ROOT / "tests" / "contract" / "toy_domain" / "noise"
SCIENCE = {"problem.py", "simulate.py"}
CONFIG = """results: results/toy
noise:
  pretrain_seeds: 5
  epochs: 20
  gain: {}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the project with the toy domain: its package, and a line in `DOMAINS`."""
    folder = tmp_path_factory.mktemp("toy")
    for part in ("src", "workflow"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copytree(TOY, folder / "src/metapt/domains/noise", ignore=shutil.ignore_patterns("__pycache__"))
    domains = folder / "src/metapt/engine/domain.py"
    lines = domains.read_text(encoding="utf-8").replace('    "ppi",\n', '    "ppi",\n    "noise",\n')
    domains.write_text(lines, encoding="utf-8")
    (folder / "toy.yaml").write_text(CONFIG, encoding="utf-8")
    return folder


def snakemake(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "snakemake", *arguments, "--cores", "1", "--configfile", "toy.yaml"]
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_toy_domain_runs_through_the_workflow(project: Path) -> None:
    done = snakemake(project)
    assert done.returncode == 0, done.stderr
    claims = pd.read_csv(project / "results/toy/noise/gain/claims.csv")
    assert claims[["arm", "control", "verdict"]].values.tolist() == [["meta", "fixed", "reproduced"]]
    assert (project / "results/toy/noise/gain/figure.svg").is_file()
    assert "meta beats fixed" in (project / "results/toy/headline.md").read_text(encoding="utf-8")
    again = snakemake(project, "noise_gain")
    assert "Nothing to be done" in again.stderr + again.stdout


def test_it_is_short() -> None:
    """The toy domain has at most 300 lines of code without its science."""
    lines = 0
    for path in TOY.rglob("*.py"):
        if path.name not in SCIENCE:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            lines += len({node.lineno for node in ast.walk(tree) if hasattr(node, "lineno")})
    assert lines <= 300
