"""Tiny jobs of every kind, processes that run them, and the table of what came of the faults."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from pydantic import TypeAdapter

from metapt.domains.ecg.config import Arm
from metapt.domains.ecg.data import prepare
from metapt.domains.ecg.data.simulate import generate, write
from metapt.engine import records
from metapt.engine.jobs import Job
from metapt.files import sha256
from metapt.machine import Machine
from metapt.sections import JobSettings, plain

FULL = os.environ.get("METAPT_FAULTS") == "full"
"""Set METAPT_FAULTS=full for 20 moments of each kind and 10,000 files for each reader."""

MEASURED = "PT wall time (s)", "PT time per step (s)", "PT peak memory (GB)", "FT wall time (s)"
"""Metrics that differ from run to run."""


def times(few: int, many: int = 20) -> int:
    """How often a fault is injected."""
    return many if FULL else few


class Ended(NamedTuple):
    """A job that has ended: status (negative: killed by a signal), its duration in seconds, its log, and its stderr."""

    status: int
    seconds: float
    log: str
    stderr: str

    @property
    def error(self) -> str:
        """The sentence it ended with, after a check that it is one, and no traceback."""
        assert self.status == 1, self
        assert "Traceback" not in self.stderr, self.stderr
        return next(line.partition("error: ")[2] for line in reversed(self.stderr.splitlines()) if "error: " in line)


class Forks:
    """`forks.py` at the other end of a pipe."""

    def __init__(self, folder: Path) -> None:
        self._stderr = folder / "stderr"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "no_proxy": "*"}
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("forks.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self._lock = threading.Lock()

    def __call__(
        self, *jobs: Job, kill_after: float | None = None, faults: tuple[str, ...] = ("checkpoint_always",)
    ) -> list[Ended]:
        """Run jobs side by side to their ends, or to their kill."""
        paths = [self._stderr.with_name(f"stderr{number}") for number in range(len(jobs))]
        requests = [
            {"job": asdict(job), "faults": faults, "stderr": str(path)} for job, path in zip(jobs, paths, strict=True)
        ]
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps({"jobs": requests, "kill_after": kill_after}) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        return [
            Ended(status, answer["seconds"], _text(Path(job.log)), _text(path))
            for status, job, path in zip(answer["statuses"], jobs, paths, strict=True)
        ]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    found = Forks(tmp_path_factory.mktemp("forks"))
    yield found
    found.close()


@dataclass(frozen=True)
class Kind:
    """A kind of job: stage, entry module, config (but for the checkpoint), inputs and names of the output files."""

    stage: str
    entry: str
    config: dict[str, Any]
    inputs: dict[str, Path] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)

    def job(self, folder: Path, **changes: Any) -> Job:
        """The job whose outputs, checkpoint and log lie in `folder`."""
        config = self.config | (
            {"checkpoint": str(folder / "resume" / "state.pt")} if self.stage in ("pretrain", "finetune") else {}
        )
        for path in self.inputs.values():
            if records.producer(path) is None:  # no job has made it
                sums = {"outputs": {path.name: sha256(path)}}
                records.write(
                    path.with_name(f"{path.name}.run.json"), {"outputs": {path.name: path.name}, "sha256": sums}
                )
        fields: dict[str, Any] = {
            "stage": self.stage,
            "name": "mine",
            "entry": self.entry,
            "config": config,
            "inputs": {name: str(path) for name, path in self.inputs.items()},
            "outputs": {name: str(folder / "out" / file) for name, file in self.outputs.items()},
            "record": str(folder / "run.json"),
            "log": str(folder / "log.txt"),
        }
        return Job(**(fields | changes))


RAW = ("ptbxl_database.csv", "scp_statements.csv", "records.json")
PRETRAINED = {"pretrained": "pretrained.pt", "metrics": "metrics.csv", "series": "series.csv"}


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The raw files of about 100 generated ECGs."""
    folder = tmp_path_factory.mktemp("raw")
    paths = {name: folder / name for name in RAW}
    write(generate(90, seed=1), paths)
    return paths


@pytest.fixture(scope="session")
def prepared(raw: dict[str, Path]) -> dict[str, Path]:
    folder = raw[RAW[0]].parent
    outputs = {"signals": folder / "signals.npy", "records": folder / "records.csv"}
    prepare.run(JobSettings(), raw, outputs, Machine())
    return outputs


@pytest.fixture(scope="session")
def kinds(
    raw: dict[str, Path], prepared: dict[str, Path], forks: Forks, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Kind]:
    """preparation, PT, meta-PT and FT of ECGs."""

    def pretraining(arm: dict[str, Any], meta_size: int | None) -> Kind:
        settings = plain(TypeAdapter(Arm).validate_python(arm))
        config = {
            "domain": "ecg",
            "arm": "mine",
            "arm_settings": settings,
            "seed": 0,
            "meta_size": meta_size,
            "split": "patients",
            "width": 2,
        }
        return Kind(
            "pretrain",
            "domains.ecg.pretrain",
            config | {"samples": 1000, "pretrain": {"signals": 24, "epochs": 2, "batch_size": 8}},
            prepared,
            PRETRAINED,
        )

    found = {
        "preparation": Kind(
            "prepare",
            "domains.ecg.data.prepare",
            {"domain": "ecg"},
            raw,
            {"signals": "signals.npy", "records": "records.csv"},
        ),
        "PT": pretraining({"method": "simclr"}, None),
        "meta-PT": pretraining({"method": "meta", "pretrain_steps": 1, "batch_size": 8, "warmup_epochs": 0}, 20),
    }
    job = found["PT"].job(tmp_path_factory.mktemp("encoder"))
    (ended,) = forks(job)
    assert ended.status == 0, ended.stderr
    finetuning = {
        "domain": "ecg",
        "arm": "simclr",
        "meta_size": None,
        "size": 40,
        "split": "patients",
        "seed": 0,
        "finetune_seeds": 3,
    }
    finetuning |= {"evaluations": ["full_transfer", "linear_evaluation"], "width": 2, "samples": 1000}
    finetuning |= {"finetune": {"epochs": 2, "linear_epochs": 3, "batch_size": 8}}
    inputs = prepared | {"pretrained": Path(job.outputs["pretrained"])}
    found["FT"] = Kind(
        "finetune", "domains.ecg.finetune", finetuning, inputs, {"metrics": "metrics.csv", "series": "series.csv"}
    )
    return found


Contents = dict[str, bytes]


def contents(folder: Path) -> Contents:
    """What lies in the folder of outputs, hidden files left out, as bytes that equal runs have in common."""
    found = sorted(path for path in (folder / "out").rglob("*") if path.is_file() and path.name[0] != ".")
    return {str(path.relative_to(folder)): _common(path) for path in found}


def _common(path: Path) -> bytes:
    if path.name != "metrics.csv":
        return path.read_bytes()
    table = pd.read_csv(path)
    return table[~table["metric"].isin(MEASURED)].to_csv(index=False).encode()


@dataclass(frozen=True)
class Jobs:
    """The kinds of jobs, and what runs them."""

    kinds: dict[str, Kind]
    forks: Forks
    folders: pytest.TempPathFactory
    known: dict[str, tuple[Contents, float]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Kind:
        return self.kinds[name]

    def run(self, job: Job, **options: Any) -> Ended:
        (ended,) = self.forks(job, **options)
        return ended

    def undisturbed(self, kind: Kind) -> tuple[Contents, float]:
        """Return what a kind of job leaves when nothing happens, and how many seconds it takes."""
        key = json.dumps(asdict(kind.job(Path("x"))), sort_keys=True)
        if key not in self.known:
            folder = self.folders.mktemp("undisturbed")
            ended = self.run(kind.job(folder))
            assert ended.status == 0, ended.stderr
            assert len(contents(folder)) >= len(kind.outputs)
            self.known[key] = contents(folder), ended.seconds
        return self.known[key]

    def run_well(self, kind: Kind, folder: Path, **options: Any) -> Ended:
        """Run a job, which must end well and leave what an undisturbed run leaves, and nothing else."""
        ended = self.run(kind.job(folder), **options)
        assert ended.status == 0, ended.stderr
        assert contents(folder) == self.undisturbed(kind)[0]
        assert not leftovers(folder)
        return ended


@pytest.fixture(scope="session")
def jobs(kinds: dict[str, Kind], forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    return Jobs(kinds, forks, tmp_path_factory)


def leftovers(folder: Path) -> list[str]:
    """Checkpoints and parts that a finished job must not leave."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in found if path.name.endswith((".part", ".previous")) or path.parent.name == "resume"]


def mount(folder: Path, options: str) -> None:
    """Mount a small file system of its own, or change its options; skips the test where that isn't allowed."""
    command = ["mount", "-t", "tmpfs", "-o", options, "metapt-faults", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a small disk")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """(options such as size=64k) -> a folder that is a disk of its own; called again, its options change."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = False

    def make(options: str) -> Path:
        nonlocal mounted
        mount(folder, f"remount,{options}" if mounted else options)
        mounted = True
        return folder

    yield make
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def random() -> np.random.Generator:
    return np.random.default_rng(20)
