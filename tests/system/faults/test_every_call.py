"""Every call of the system that a job makes on its files fails in turn: a sentence or success, and nothing false."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import metapt.domains
from metapt.engine import execute as executing
from metapt.engine import records
from metapt.engine.jobs import Job
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.comparisons import COLUMNS
from metapt.files import write_csv
from metapt.machine import THREAD_VARIABLES
from metapt.training import checkpoint
from metapt.training.interruption import Every

from .conftest import PRETRAINED, Contents, Kind, contents, leftovers
from .failing import Calls

TOY = Path(__file__).parents[2] / "contract" / "toy_domain"
WRITING = ("open", "write", "fsync", "close", "rename", "mkdir")
"""Calls that may find the disk full."""


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    """The toy domain is one of metapt's and small; checkpoints are written after each step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metapt.domains, "__path__", [*metapt.domains.__path__, str(TOY)])
        patch.setattr(checkpoint, "code_digest", lambda module: "the toy's")
        patch.setattr(executing, "_revision", lambda: None)  # as `_versions`, it takes longer than the jobs
        patch.setattr(executing, "_versions", dict)
        patch.setattr(Every, "__call__", lambda self: True)
        for variable in THREAD_VARIABLES:
            patch.setenv(variable, "1")
        yield patch


@pytest.fixture(scope="module")
def kinds(patch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    """The toy's jobs and `collect`, each on the outputs of the one before it."""
    from metapt.domains.noise.data import simulate  # type: ignore[import-not-found]

    patch.setattr(simulate, "SIZES", {"pretrain": 200, "train": 20, "validation": 20, "test": 20})
    folder = tmp_path_factory.mktemp("every-call")
    toy = "domains.noise"
    pretraining = {"domain": "noise", "arm": "mine", "arm_settings": {"method": "fixed"}, "seed": 0, "epochs": 2}
    finetuning = {
        "domain": "noise",
        "arm": "mine",
        "seed": 0,
        "finetune_seeds": 2,
        "evaluations": ["linear_evaluation"],
    }

    def made(kind: Kind) -> dict[str, Path]:
        job = kind.job(folder / kind.entry)
        assert execute(job) == 0
        return {name: Path(path) for name, path in job.outputs.items()}

    found = {
        "simulate": Kind(
            "simulate", f"{toy}.data.simulate", {"source": "simulated"}, {}, {"examples.csv": "examples.csv"}
        )
    }
    found["prepare"] = Kind("prepare", f"{toy}.data.prepare", {}, made(found["simulate"]), {"examples": "examples.pt"})
    examples = made(found["prepare"])
    found["PT"] = Kind("pretrain", f"{toy}.pretrain", pretraining, examples, PRETRAINED)
    encoder = {"pretrained": made(found["PT"])["pretrained"]}
    outputs = {"metrics": "metrics.csv", "series": "series.csv"}
    found["FT"] = Kind("finetune", f"{toy}.finetune", finetuning, examples | encoder, outputs)
    metrics.write([metrics.row("mnist_bptt", "meta", "accuracy (%)", 90.0, replicate=0)], folder / "metrics.csv")
    write_csv({column: ["1"] for column in COLUMNS}, folder / "claims.csv")
    found["collect"] = Kind(
        "collect", "evaluation.collect", {"experiments": ["mnist_bptt"], "stand_ins": []},
        {f"mnist_bptt/{name}": folder / f"{name}.csv" for name in ("metrics", "claims")},
        {"metrics": "all.csv", "claims": "claims.csv", "headline": "headline.md"},
    )  # fmt: skip
    return found


def execute(job: Job) -> int:
    return executing.execute(job, code="the toy's")


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


@pytest.mark.parametrize("name", ["simulate", "prepare", "PT", "FT", "collect"])
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
        faults = [
            (each, number, error)
            for each, count in counts.items()
            for number in range(1, count + 1)
            for error in (errno.EIO, *((errno.ENOSPC,) if each in WRITING else ()))
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
