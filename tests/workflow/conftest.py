"""Runs of the real workflow in folders of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from metapt.digest import EXCLUDED, closure
from metapt.registry import entry
from metapt.stages import Job, execute

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


def records_of(folder: Path) -> dict[tuple[str, ...], Path]:
    """A run.json of each kind of job that has run there: (stage, domain, experiment) -> path from the folder."""
    found = {}
    for path in sorted(folder.rglob("*run.json")):
        record = json.loads(path.read_text())
        config = record["config"]
        kind = (record["stage"], config.get("domain", ""), config.get("experiment", "") if record["stage"] == "study" else "")
        found.setdefault(kind, path.relative_to(folder))
    return found


def altered(path: Path) -> list[bytes]:
    """The content with one bit flipped, and cut at the end of a line or anywhere."""
    content = path.read_bytes()
    place = content.index(b"stage") if path.name.endswith("run.json") else len(content) // 2
    flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    return [flipped, content[: content.rfind(b"\n", 0, -1) + 1], content[:-2]]


def check_that_altered_inputs_are_refused(folder: Path) -> None:
    """For each kind of input of each kind of job in `folder`, the working directory; the error names input and record."""
    for kind, path in records_of(folder).items():
        record = json.loads(path.read_text())
        inputs = {Path(file).name: Path(file) for file in record["inputs"].values()}
        assert inputs or kind[0] == "simulate"
        for file in inputs.values():
            content = file.read_bytes()
            for change in altered(file):
                file.write_bytes(change)
                outputs = {"run": folder / "refused" / "run.json"}
                job = Job(record["stage"], record["config"], {"altered": file}, outputs, log=folder / "refused" / "log.txt")
                assert execute(job) == 1, (kind, file)
                error = (folder / "refused" / "log.txt").read_text()
                assert str(file) in error
                assert "run.json" in error
                assert "Traceback" not in error
            file.write_bytes(content)


def check_that_jobs_load_their_closures(folder: Path, into: Path) -> None:
    """What jobs load of metapt is in the closures of their entry modules, or excluded, or hands them on."""
    records = records_of(folder)
    command = [sys.executable, Path(__file__).with_name("loaded.py"), folder, into, *records.values()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(records)
    for answer in answers:
        assert answer["status"] == 0, answer
        record = json.loads((folder / answer["record"]).read_text())
        module = entry(record["stage"], record["config"])
        assert module is not None
        loaded = {name.removeprefix("metapt").removeprefix(".") for name in answer["loaded"]}
        hands_on = {"", "domains", "training", f"stages.{record['stage']}", f"{record['config'].get('domain')}.domain"}
        assert loaded - closure(module).keys() - EXCLUDED.keys() - hands_on == set(), answer["record"]
        assert module in loaded


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
