"""Tiny jobs of every kind, and processes that run them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
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
from metapt.engine.jobs import TRAINING, Job
from metapt.files import sha256
from metapt.machine import Machine
from metapt.sections import JobSettings, plain

from ..fetching.serving import Answer, Handler, Server

FULL = os.environ.get("METAPT_FAULTS") == "full"
"""METAPT_FAULTS=full: 20 moments of each kind, 10,000 files for each reader, each error of each call."""

MEASURED = re.compile(r"wall time|time per step|peak memory")
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

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        assert process.stdin
        assert process.stdout
        self._requests, self._answers, self._folder = process.stdin, process.stdout, folder

    def __call__(
        self, *jobs: Job, kill_after: float | None = None, kill_at: int | None = None,
        told: tuple[int, int] | None = None, faults: tuple[str, ...] = ("checkpoint_always",),
    ) -> list[Ended]:  # fmt: skip
        """Run jobs side by side to their ends.

        Args:
            jobs: each runs in a process of its own.
            kill_after: seconds after which they are killed.
            kill_at: the number of the checkpoint after which they kill themselves.
            told: a signal that they send themselves, and at which look whether a checkpoint is due.
            faults: which they meet, of `forks.py`.
        """
        described = [asdict(job) | {"stderr": f"{self._folder}/stderr{number}"} for number, job in enumerate(jobs)]
        request = {"jobs": described, "faults": faults, "kill_after": kill_after, "kill_at": kill_at, "told": told}
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()
        answer = json.loads(self._answers.readline())
        return [
            Ended(status, answer["seconds"], _text(job["log"]), _text(job["stderr"]))
            for status, job in zip(answer["statuses"], described, strict=True)
        ]


def _text(path: str) -> str:
    return Path(path).read_text(errors="replace") if Path(path).is_file() else ""


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "no_proxy": "*"}
    command = [sys.executable, Path(__file__).with_name("forks.py")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        yield Forks(process, tmp_path_factory.mktemp("forks"))


@dataclass(frozen=True)
class Kind:
    """A kind of job: stage, entry module, config (but for the checkpoint), inputs and names of the output files."""

    stage: str
    entry: str
    config: dict[str, Any]
    inputs: dict[str, Path] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    threads: int = 1

    def job(self, folder: Path, **changes: Any) -> Job:
        """The job whose outputs, checkpoint and log lie in `folder`."""
        resumes = {"checkpoint": str(folder / "resume" / "state.pt")} if self.stage in TRAINING else {}
        for path in self.inputs.values():
            if records.producer(path) is None:  # no job has made it
                made = {"outputs": {path.name: path.name}, "sha256": {"outputs": {path.name: sha256(path)}}}
                records.write(path.with_name(f"{path.name}.run.json"), made)
        fields: dict[str, Any] = {
            "stage": self.stage,
            "name": "mine",
            "entry": self.entry,
            "config": self.config | resumes,
            "inputs": {name: str(path) for name, path in self.inputs.items()},
            "outputs": {name: str(folder / "out" / file) for name, file in self.outputs.items()},
            "record": str(folder / "run.json"),
            "log": str(folder / "log.txt"),
            "threads": self.threads,
        }
        return Job(**(fields | changes))


RAW = ("ptbxl_database.csv", "scp_statements.csv", "records.json")
TABLES = {"metrics": "metrics.csv", "series": "series.csv"}
PRETRAINED = {"pretrained": "pretrained.pt"} | TABLES


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
    """Preparation, PT, meta-PT and FT of ECGs."""
    common = {"domain": "ecg", "split": "patients", "width": 2, "samples": 1000, "seed": 0}

    def pretraining(arm: dict[str, Any], meta_size: int | None) -> Kind:
        config = common | {"arm": "mine", "arm_settings": plain(TypeAdapter(Arm).validate_python(arm))}
        config |= {"meta_size": meta_size, "pretrain": {"signals": 24, "epochs": 2, "batch_size": 8}}
        return Kind("pretrain", "domains.ecg.pretrain", config, prepared, PRETRAINED)

    outputs = {"signals": "signals.npy", "records": "records.csv"}
    found = {
        "preparation": Kind("prepare", "domains.ecg.data.prepare", {"domain": "ecg"}, raw, outputs),
        "PT": pretraining({"method": "simclr"}, None),
        "meta-PT": pretraining({"method": "meta", "pretrain_steps": 1, "batch_size": 8, "warmup_epochs": 0}, 20),
    }
    job = found["PT"].job(tmp_path_factory.mktemp("encoder"))
    (ended,) = forks(job)
    assert ended.status == 0, ended.stderr
    config = common | {"arm": "simclr", "meta_size": None, "size": 40, "finetune_seeds": 3}
    config |= {"evaluations": ["full_transfer", "linear_evaluation"]}
    config |= {"finetune": {"epochs": 2, "linear_epochs": 3, "batch_size": 8}}
    inputs = prepared | {"pretrained": Path(job.outputs["pretrained"])}
    found["FT"] = Kind("finetune", "domains.ecg.finetune", config, inputs, TABLES)
    return found


DOWNLOADED = ("large0", "large1", "z.csv", "records.json")


def slowly(content: bytes) -> Answer:
    """Answer with the requested range in ten pieces, a hundredth of a second apart."""

    def answer(handler: Handler) -> None:
        start, step = handler.start, max(1, len(content) // 10)
        range_of = f"bytes {start}-{len(content) - 1}/{len(content)}"
        handler.reply(206 if start else 200, b"", Content_Length=str(len(content) - start), Content_Range=range_of)
        for place in range(start, len(content), step):
            handler.wfile.write(content[place : place + step])
            handler.wfile.flush()
            time.sleep(0.01)

    return answer


@pytest.fixture
def download(server: Server) -> Kind:
    """Of two large files and of 20 small ones that a list of sums describes."""
    random = np.random.default_rng(0)
    large = {f"large{number}": random.bytes(300_000) for number in range(2)}
    records = {f"records/{number}.{kind}": random.bytes(2_000) for number in range(10) for kind in ("dat", "hea")}
    records["z.csv"] = b"which is looked for in the list, and comes last there"
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in records.items())
    served = large | records | {"SHA256SUMS.txt": sums.encode()}
    server.answers |= {f"/{name}": slowly(content) for name, content in served.items()}
    source = {
        "name": "things", "version": "1", "licence": "none", "description": "for tests", "citation": "none",
        "urls": [server.url],
        "files": {name: {"at_most": len(it), "sha256": hashlib.sha256(it).hexdigest()} for name, it in large.items()},
        "listed": {"sums": "SHA256SUMS.txt", "files": ["z.csv"], "records": "records/"},
    }  # fmt: skip
    outputs = {name: name for name in DOWNLOADED}
    return Kind("download", "fetching", {"source": source, "mirrors": []}, outputs=outputs)


Contents = dict[str, bytes]


def contents(folder: Path) -> Contents:
    """What lies in the folder of outputs, hidden files left out, as bytes that equal runs have in common."""
    found = sorted(path for path in (folder / "out").rglob("*") if path.is_file() and path.name[0] != ".")
    return {str(path.relative_to(folder)): _common(path) for path in found}


def _common(path: Path) -> bytes:
    if path.name != "metrics.csv":
        return path.read_bytes()
    table = pd.read_csv(path)
    return table[~table["metric"].str.contains(MEASURED)].to_csv(index=False).encode()


def check_whole(folder: Path, right: Contents) -> None:
    for name, content in contents(folder).items():
        assert name.endswith(".part") or content == right[name], f"{name} is there, and is not whole"


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

    def undisturbed(self, kind: Kind, **options: Any) -> tuple[Contents, float]:
        """Return what a kind of job leaves when nothing happens, and how many seconds it takes."""
        key = json.dumps(asdict(kind.job(Path("x"))), sort_keys=True)
        if key not in self.known:
            folder = self.folders.mktemp("undisturbed")
            ended = self.run(kind.job(folder), **options)
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
