"""Runs of the real workflow in temporary folders."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from metapt.engine.digest import closure, excluded, imports
from metapt.engine.domain import DOMAINS, domain
from metapt.engine.execute import execute
from metapt.engine.jobs import Job

from .forked import status_of

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TINY = {"mnist": HERE / "tiny.yaml", "ecg": HERE / "tiny_ecg.yaml", "ppi": HERE / "tiny_ppi.yaml"}
TARGETS = {"all", *DOMAINS, *(f"{name}_{key}" for name in DOMAINS for key in domain(name).experiments)}
NOTHING = "Nothing to be done"


@dataclass(frozen=True)
class Outcome:
    """The result of a call of snakemake."""

    status: int
    text: str

    def jobs(self) -> dict[str, int]:
        """Return rule -> number of jobs of a dry run, without rules that only name targets."""
        table = re.search(r"^job +count\n[- ]+\n(.*?)^total", self.text, flags=re.M | re.S)
        rows = (line.split() for line in table[1].splitlines()) if table else ()
        return {rule: int(count) for rule, count in rows if rule not in TARGETS}


def snakemake(folder: Path, *arguments: str | Path, cores: Sequence[str] = ("--cores", "2")) -> Outcome:
    """Call snakemake with `folder` as working directory."""
    words = ["--snakefile", str(ROOT / "workflow" / "Snakefile"), *cores, *map(str, arguments)]
    with pytest.MonkeyPatch.context() as patch, NamedTemporaryFile() as output:
        patch.setenv("XDG_CACHE_HOME", str(folder / ".cache"))
        status = status_of(words, folder, Path(output.name))
        return Outcome(status, output.read().decode())


def edited(config: Path, folder: Path, old: str, new: str) -> Path:
    """Return a copy of a config with a change, in `folder`."""
    text = config.read_text()
    assert old in text
    path = folder / "edited.yaml"
    path.write_text(text.replace(old, new))
    return path


def records_of(folder: Path) -> dict[str, Path]:
    """Return a run.json of each kind of job that has run in a folder: entry module -> path from the folder."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*run.json")):
        found.setdefault(json.loads(path.read_text())["entry"], path.relative_to(folder))
    return found


def altered(path: Path) -> list[bytes]:
    """Return the content with one bit flipped, and cut at a line or anywhere."""
    content = path.read_bytes()
    place = content.index(b"stage") if path.name.endswith("run.json") else len(content) // 2
    flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    return [flipped, content[: content.rfind(b"\n", 0, -1) + 1], content[:-2]]


def check_that_altered_inputs_are_refused(folder: Path) -> None:
    """Alter each kind of input of each kind of job in `folder`; the error must name input and record."""
    refused = folder / "refused" / "log.txt"
    for entry, path in records_of(folder).items():
        record = json.loads(path.read_text())
        inputs = {Path(file).name: Path(file) for file in record["inputs"].values()}
        assert inputs or record["stage"] == "simulate"
        for file in inputs.values():
            content = file.read_bytes()
            for change in altered(file):
                file.write_bytes(change)
                job = Job(record["stage"], "altered", entry, record["config"], {"altered": str(file)}, log=str(refused))
                assert execute(job) == 1, (entry, file)
                error = refused.read_text()
                assert str(file) in error
                assert "run.json" in error
                assert "Traceback" not in error
            file.write_bytes(content)


def without_times(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().splitlines() if not re.search(rb"wall time|time per step|memory", line)]


def check_that_jobs_repeat(folder: Path, into: Path) -> None:
    """Check that a job of each kind, run again, writes the same, and loads only its closure and what runs it.

    What a module imports that does not count (see `EXCLUDED`) need not count, either.
    """
    records = records_of(folder)
    command = [sys.executable, Path(__file__).with_name("loaded.py"), folder, into, *records.values()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(records)
    for number, answer in enumerate(answers):
        assert answer["status"] == 0, answer
        record = json.loads((folder / answer["record"]).read_text())
        entry = record["entry"]
        for path in (folder / path for path in record["outputs"].values() if path.endswith((".csv", ".pt", ".npy"))):
            assert without_times(into / str(number) / path.name) == without_times(path), path
        loaded = {name.removeprefix("metapt").removeprefix(".") for name in answer["loaded"]}
        left_out = {name for each in loaded if excluded(each) for name in (each, *imports(each))}
        packages = {name.rpartition(".")[0] for name in left_out}
        runs = {"", "engine.execute", "machine", "training"}
        assert loaded - closure(entry).keys() - left_out - packages - runs == set(), answer["record"]
        assert entry in loaded
        assert answer["slow"] == [], f"{answer['record']} loads what takes as long as torch itself"


@pytest.fixture(scope="session")
def finished_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function (domain) -> folder in which its tiny config has run; tests must not change it."""

    @cache
    def finished(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        outcome = snakemake(folder, "--configfile", TINY[name])
        assert outcome.status == 0, outcome.text
        return folder

    return finished


@pytest.fixture(scope="session")
def finished(finished_of: Callable[[str], Path]) -> Path:
    """Return a folder in which the tiny config of MNIST has run; tests must not change it."""
    return finished_of("mnist")


@pytest.fixture
def again(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of `finished` that a test may change."""
    return shutil.copytree(finished, tmp_path / "copy")
