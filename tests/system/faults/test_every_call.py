"""Every call of the system that a job makes on its files fails in turn: a sentence or success, and nothing false."""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import metapt.domains
from metapt.engine import execute as executing
from metapt.engine import records
from metapt.engine.jobs import Job
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.comparisons import COLUMNS
from metapt.evaluation.results import DIFFERENCES
from metapt.files import write_csv
from metapt.machine import THREAD_VARIABLES
from metapt.training import checkpoint
from metapt.training.interruption import Every

from .conftest import FULL, PRETRAINED, TABLES, Contents, Kind, contents, leftovers

TOY = Path(__file__).parents[2] / "contract" / "toy_domain"
WRITING = ("open", "write", "fsync", "close", "rename", "mkdir")
"""Calls that may find the disk full."""
NAMELESS = ("read", "write", "fsync", "close")
"""Calls on an open file: their errors do not say which."""


class Calls:
    """The calls so far by kind: open, read, write, fsync, close, rename, unlink, mkdir."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = f"{folder}/"
        self.begin()
        self._open = io.open
        for module in (builtins, io):
            patch.setattr(module, "open", self._opened)
        alike = {"replace": "rename", "remove": "unlink"}
        for name in ("open", "rename", "replace", "unlink", "remove", "mkdir"):
            patch.setattr(os, name, self._counted(alike.get(name, name), getattr(os, name)))
        patch.setattr(os, "fsync", lambda descriptor: self.call("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))

    def begin(self, kind: str = "", number: int = 0, error: int = 0) -> None:
        """Count from 0; the call of this kind and number is to fail."""
        self.counts: Counter[str] = Counter()
        self._fails = kind, number, error

    def call(self, kind: str, path: Any) -> None:
        """Count a call on a file, and fail it if it is its turn."""
        if isinstance(path, int) or not os.fsdecode(path).startswith(self._folder):
            return
        self.counts[kind] += 1
        fails, number, error = self._fails
        if (kind, self.counts[kind]) == (fails, number):
            raise OSError(error, os.strerror(error), *([] if kind in NAMELESS else [os.fspath(path)]))

    def _counted(self, kind: str, whole: Any) -> Any:
        def counted(path: Any, *arguments: Any, **words: Any) -> Any:
            self.call(kind, path)
            return whole(path, *arguments, **words)

        return counted

    def _opened(
        self, file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
        newline: Any = None, closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        if isinstance(file, int) or not os.fsdecode(file).startswith(self._folder):
            return self._open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if opener is None:  # else it calls os.open
            self.call("open", file)
        raw = _File(self, os.fspath(file), mode.replace("b", "").replace("t", ""), opener=opener)
        if buffering == 0:
            return raw
        of = io.BufferedRandom if "+" in mode else io.BufferedReader if "r" in mode else io.BufferedWriter
        buffered = of(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)


class _File(io.FileIO):
    def __init__(self, calls: Calls, *arguments: Any, **words: Any) -> None:
        self._calls = calls
        super().__init__(*arguments, **words)

    def write(self, data: Any) -> int:
        self._calls.call("write", self.name)
        return super().write(data)

    def readinto(self, buffer: Any) -> int:
        self._calls.call("read", self.name)
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self._calls.call("read", self.name)
        return super().readall()

    def close(self) -> None:
        closed = self.closed
        super().close()
        if not closed:
            self._calls.call("close", self.name)


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    """The toy domain is one of metapt's and small; checkpoints are written after each step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metapt.domains, "__path__", [*metapt.domains.__path__, str(TOY)])
        patch.setattr(checkpoint, "code_digest", lambda module: "the toy's")
        patch.setattr(executing, "code_of", lambda job: "the toy's")
        patch.setattr(executing, "_revision", lambda: None)  # as `_versions`, it takes longer than the jobs
        patch.setattr(executing, "_versions", dict)
        patch.setattr(Every, "__call__", lambda self: True)
        for variable in THREAD_VARIABLES:
            patch.setenv(variable, "1")
        yield patch


@pytest.fixture(scope="module")
def kinds(patch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    """The toy's jobs and `page`, each on the outputs of the one before it."""
    from metapt.domains.noise.data import simulate  # type: ignore[import-not-found]

    patch.setattr(simulate, "SIZES", {"pretrain": 200, "train": 20, "validation": 20, "test": 20})
    folder = tmp_path_factory.mktemp("every-call")
    toy = "domains.noise"
    pretraining = {"domain": "noise", "arm": "mine", "arm_settings": {"method": "fixed"}, "seed": 0, "epochs": 2}
    finetuning = {"domain": "noise", "arm": "mine", "seed": 0, "finetune_seeds": 2}
    finetuning |= {"evaluations": ["linear_evaluation"]}

    def made(kind: Kind) -> dict[str, Path]:
        job = kind.job(folder / kind.entry)
        assert execute(job) == 0
        return {name: Path(path) for name, path in job.outputs.items()}

    raw = {"examples.csv": "examples.csv"}
    found = {"simulate": Kind("simulate", f"{toy}.data.simulate", {"source": "simulated"}, {}, raw)}
    found["prepare"] = Kind("prepare", f"{toy}.data.prepare", {}, made(found["simulate"]), {"examples": "examples.pt"})
    examples = made(found["prepare"])
    found["PT"] = Kind("pretrain", f"{toy}.pretrain", pretraining, examples, PRETRAINED)
    encoder = {"pretrained": made(found["PT"])["pretrained"]}
    found["FT"] = Kind("finetune", f"{toy}.finetune", finetuning, examples | encoder, TABLES)
    metrics.write([metrics.row("mnist_bptt", "meta", "accuracy (%)", 90.0, replicate=0)], folder / "metrics.csv")
    for name, columns in {"claims": COLUMNS, "differences": DIFFERENCES}.items():
        write_csv({column: ["1"] for column in columns}, folder / f"{name}.csv")
    texts = {"table.md": "a table", "table.html": "a table", "figure.svg": '<svg xmlns="http://www.w3.org/2000/svg"/>'}
    for name, text in texts.items():
        (folder / name).write_text(text)
    records.write(folder / "run.json", {"stage": "summarise", "outputs": {}})
    experiment = {"key": "bptt", "title": "BPTT", "figure": "", "arms": {}}
    shown = {"name": "mnist", "title": "MNIST", "source": "", "stand_in": True, "experiments": [experiment]}
    files = {name: f"{name}.csv" for name in ("metrics", "claims", "differences")} | {"record": "run.json"}
    files |= {f"table_{kind}": f"table.{kind}" for kind in ("md", "html")} | {"figure_svg": "figure.svg"}
    found["page"] = Kind(
        "page", "evaluation.page", {"domains": [shown]},
        {f"mnist_bptt/{name}": folder / file for name, file in files.items()},
        {"metrics": "all.csv", "claims": "claims.csv", "headline": "headline.md", "page": "index.html"},
    )  # fmt: skip
    return found


def execute(job: Job) -> int:
    return executing.execute(job)


def results(folder: Path) -> Contents:
    return {name: content for name, content in contents(folder).items() if not name.endswith("run.json")}


def check_what_is_there(job: Job, folder: Path, right: Contents) -> None:
    """Nothing under a final name is anything but right, and none but a right file is taken for the job's result."""
    for name, content in results(folder).items():
        assert content == right[name], f"{name} is there, and is not whole"
    if Path(job.record).exists():
        assert records.read(Path(job.record))["state"].startswith("error: ")
        for path in map(Path, job.outputs.values()):
            with pytest.raises(DataError):
                records.checked(path)


def check_done(job: Job, folder: Path, right: Contents) -> None:
    assert results(folder) == right
    assert records.read(Path(job.record))["state"] == "done"
    for path in map(Path, job.outputs.values()):
        assert records.checked(path) is not None


@pytest.mark.parametrize("name", ["simulate", "prepare", "PT", "FT", "page"])
def test_every_call_fails(name: str, kinds: dict[str, Kind], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kind = kinds[name]
    folder = tmp_path / "run"
    job = kind.job(folder, record=str(folder / "out" / "run.json"))
    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(tmp_path.parent, patch)
        assert execute(job) == 0
        right, counts = results(folder), dict(calls.counts)
        assert min(counts["write"], counts["fsync"], counts["rename"]) >= len(job.outputs) + 1, "and the record"
        check_done(job, folder, right)
        both = (errno.EIO, errno.ENOSPC)
        faults = [
            (each, number, error)
            for each, count in counts.items()
            for number in range(1, count + 1)
            for error in (both[:1] if each not in WRITING else both if FULL else [both[number % 2]])
        ]
        for fault in faults:
            shutil.rmtree(folder)
            capfd.readouterr()
            calls.begin(*fault)
            status = execute(job)
            calls.begin()
            text = capfd.readouterr().err
            assert "Traceback" not in text, (fault, text)
            assert "Logging error" not in text, (fault, text)
            if status != 0:
                check_sentence(text.splitlines()[-1], fault[2], tmp_path)
                check_what_is_there(job, folder, right)
                assert execute(job) == 0
                assert not leftovers(folder)
            check_done(job, folder, right)


def check_sentence(line: str, error: int, folder: Path) -> None:
    sentence = line.partition("error: ")[2]
    assert str(folder.parent) in sentence, line
    assert os.strerror(error) in sentence or "the disk is full" in sentence or "no room" in sentence, line
