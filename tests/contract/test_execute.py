"""The execution of a job, and its repetition from its record: record, log, device, and errors as sentences."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from metapt.cli import main
from metapt.engine import records
from metapt.engine.execute import execute
from metapt.engine.jobs import Job
from metapt.errors import DataError
from metapt.files import sha256
from metapt.machine import THREAD_VARIABLES, Machine, machine_name
from metapt.sections import ResumableSettings

Files = dict[str, Path]


class Named(ResumableSettings):
    name: str = ""


Work = Callable[[Named, Files, Files, Machine], None]


def copy(settings: Named, inputs: Files, outputs: Files, machine: Machine) -> None:
    assert set(outputs) == {"copy"}
    logging.getLogger("metapt").info("copying for %s", settings.name)
    outputs["copy"].parent.mkdir(parents=True, exist_ok=True)
    outputs["copy"].write_text(inputs["original"].read_text() + f" on {machine.device} with {machine.threads}")


def and_then(action: Callable[[], object]) -> Work:
    """Return work that copies, and then does something."""

    def work(settings: Named, inputs: Files, outputs: Files, machine: Machine) -> None:
        copy(settings, inputs, outputs, machine)
        action()

    return work


def raising(error: BaseException) -> Work:
    def fail() -> None:
        raise error

    return and_then(fail)


class Trial:
    """A job `mine` that copies the file `original`, which has a record, to `out`."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, patch
        self.original, self.copy = folder / "original", folder / "out" / "copy"
        self.original.write_text("text")
        sums = {"outputs": {"made": sha256(self.original)}}
        records.write(folder / "original.run.json", {"outputs": {"made": "original"}, "sha256": sums})

    def job(self, **changes: Any) -> Job:
        fields: dict[str, Any] = {
            "stage": "simulate",
            "name": "mine",
            "entry": "pretend",
            "config": {"name": "me"},
            "inputs": {"original": str(self.original)},
            "outputs": {"copy": str(self.copy)},
            "record": str(self.folder / "out" / "run.json"),
            "log": str(self.folder / "log.txt"),
        }
        return Job(**(fields | changes))

    def __call__(
        self, work: Work = copy, *, gpus: int = 0, require_gpu: bool = False, code: str | None = None, **changes: Any
    ) -> int:
        """Execute the job with changes of it, with a function as its work, and return the exit status."""
        module = ModuleType("metapt.pretend")
        module.run = work  # type: ignore[attr-defined]
        self._patch.setitem(sys.modules, "metapt.pretend", module)
        return execute(self.job(**changes), gpus=gpus, require_gpu=require_gpu, code=code)

    def repeat(self, *options: str, into: str = "again", record: str = "out/run.json") -> int:
        return main(["run", str(self.folder / record), "--into", str(self.folder / into), *options])

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def record(self, folder: str = "out") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / folder / "run.json").read_text())
        return found


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    for variable in THREAD_VARIABLES:
        monkeypatch.setenv(variable, "1")
    return Trial(tmp_path, monkeypatch)


# The record and the log


def test_the_record_says_what_was_run_and_on_what(trial: Trial) -> None:
    assert trial(threads=2, code="of the plan") == 0
    assert trial.copy.read_text() == "text on cpu with 2"
    assert {os.environ[name] for name in THREAD_VARIABLES} == {"2"}
    record, job = trial.record(), trial.job()
    for key in ("stage", "name", "entry", "config", "inputs", "outputs"):
        assert record[key] == getattr(job, key)
    assert (record["code"], record["state"], record["tf32"]) == ("of the plan", "done", None)
    assert record["sha256"] == {"inputs": {"original": sha256(trial.original)}, "outputs": {"copy": sha256(trial.copy)}}
    assert (record["machine"]["device"], record["machine"]["threads"]) == ("cpu", 2)
    assert record["versions"]["torch"] == torch.__version__
    assert record["peak_memory_bytes"] > 10_000_000
    assert record["peak_gpu_memory_bytes"] is None
    assert "copying for me" in trial.log


def test_the_record_has_the_time_of_the_job_and_of_its_children(trial: Trial) -> None:
    own: list[float] = []

    def wait_for_a_child() -> None:
        burn = "import time\nwhile time.process_time() < 0.2: pass"
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", burn], check=True)
        own.extend((time.process_time(), time.monotonic() - begin))

    begin = time.monotonic()
    assert trial(and_then(wait_for_a_child)) == 0
    whole, record = time.monotonic() - begin, trial.record()
    assert own[1] - 0.001 <= record["wall_time_s"] <= whole + 0.001  # it is rounded to milliseconds
    assert record["cpu_time_s"] > own[0] + 0.15


@pytest.mark.parametrize(("limit", "end"), [("AVX2", " with AVX512, oneDNN AVX2"), (None, " with AVX512")])
def test_the_record_has_the_instructions_of_the_cpu(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, limit: str | None, end: str
) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    if limit:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert trial() == 0
    assert trial.record()["machine"]["name"] == machine_name("cpu") + end


def test_a_log_is_of_one_job(trial: Trial) -> None:
    other = trial.folder / "other.txt"
    for changes in ({"log": str(other)}, {}, {}):
        assert trial(**changes) == 0
    assert (other.read_text() + trial.log).count("copying for me") == 2


def test_a_job_that_is_broken_off_leaves_no_log_open_and_no_record_of_the_run_before(trial: Trial) -> None:
    assert trial() == 0
    before = list(logging.getLogger("metapt").handlers)
    with pytest.raises(KeyboardInterrupt):
        trial(raising(KeyboardInterrupt()), config={"name": "another"})
    assert logging.getLogger("metapt").handlers == before
    job = trial.job()
    assert records.stale(Path(job.record), job.config, None, job.inputs) == "there is no record of it"


def test_a_record_that_cannot_be_made_is_named(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(package: str) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("metapt.engine.execute.metadata.version", fail)
    assert trial() == 1
    place = trial.folder / "out" / "run.json"
    assert f"error: {place} can't be written, because the system fails ([Errno 5]" in trial.log
    assert "Traceback" not in trial.log


@pytest.mark.parametrize("log", ["/dev/full", "original/log.txt", "out"])
def test_a_log_that_cannot_be_written_is_said_once_and_ends_no_job(
    log: str, trial: Trial, capfd: pytest.CaptureFixture[str]
) -> None:
    (trial.folder / "out").mkdir()
    path = str(trial.folder / log)
    assert trial(log=path) == 0
    text = capfd.readouterr().err
    assert text.count(f"mine: the log {path} can't be written (") == 1
    assert text.count("\n") == 1
    assert trial.record()["state"] == "done"
    assert trial(raising(DataError("the file is cut.")), log=path) == 1
    assert "mine: error: the file is cut.\n" in capfd.readouterr().err


def test_a_full_disk_behind_stderr_ends_no_job(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    with suppress(OSError), open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert trial() == 0
    assert "copying for me" in trial.log


# Errors


@pytest.mark.parametrize(
    ("error", "words", "traced"),
    [
        (DataError("the file is cut."), "error: the file is cut.\n", False),
        (OSError(errno.ENOSPC, "full", "results/a.csv"), "error: no room to write results/a.csv: make some on", False),
        (OSError(errno.EIO, "I/O error", "there"), "error: there can't be read or written (I/O error)", False),
        (OSError("no folder for the cache"), "error: no folder for the cache", False),
        (OSError(errno.EIO, "I/O error"), "OSError: [Errno 5] I/O error", True),  # else nobody could tell where
        (ValueError("odd"), "ValueError: odd", True),
    ],
)
def test_a_known_error_is_one_sentence_and_a_bug_has_its_traceback(
    error: Exception, words: str, traced: bool, trial: Trial, capfd: pytest.CaptureFixture[str]
) -> None:
    assert trial(raising(error)) == 1
    said = capfd.readouterr().err
    for text in (trial.log.replace("copying for me\n", ""), said):
        assert words in text
        assert ("Traceback" in text) == traced
    assert traced or (trial.log.count("\n"), said.count("\n")) == (2, 1)
    state = trial.record()["state"]
    assert state == f"error: {error!r}" if traced else state in said


def gone(trial: Trial) -> str:
    trial.original.unlink()
    return f"error: the input 'original', {trial.original}, is not there"


def a_folder(trial: Trial) -> str:
    trial.original.unlink()
    trial.original.mkdir()
    return f"the input 'original', {trial.original}, is a folder, a pipe or a device"


def altered(trial: Trial) -> str:
    trial.original.write_text("texu")
    end = f"in {trial.original}.run.json. It has been cut or altered since; remove it"
    return f"error: {trial.original} is not what its job left: its SHA-256 is 0428c38a03ea…, and 982d9e3eb996… {end}"


def without_record(trial: Trial) -> str:
    trial.original.with_name("original.run.json").unlink()
    return f"whether {trial.original} is whole can't be told"


def half_made(trial: Trial) -> str:
    assert trial(raising(DataError("no more."))) == 1
    trial.original = trial.copy
    trial.copy = trial.folder / "other"
    return f"{trial.original} is of a job that has not come to its end"


@pytest.mark.parametrize("wrong", [gone, a_folder, altered, without_record, half_made])
def test_an_input_that_is_not_what_its_job_left_is_refused(wrong: Callable[[Trial], str], trial: Trial) -> None:
    sentence = wrong(trial)
    assert trial() == 1
    assert sentence in trial.log
    assert not trial.copy.exists()


def test_where_users_put_files_an_input_without_a_record_is_taken(trial: Trial) -> None:
    without_record(trial)
    assert trial(stage="prepare") == 0
    said = "no run.json beside these files holds their SHA-256, so that they are taken as they are"
    assert f"{said}: {trial.original}" in trial.log


@pytest.mark.parametrize(
    ("entry", "stage", "missing"),
    [("nowhere", "prepare", "No module"), ("files", "prepare", "'run'"), ("files", "summarise", "'EXP")],
)
def test_an_entry_module_that_does_no_work_is_named(entry: str, stage: str, missing: str, trial: Trial) -> None:
    assert trial(entry=entry, stage=stage) == 1
    assert f"error: metapt.{entry} does no job of the stage '{stage}': " in trial.log
    assert missing in trial.log


def test_a_job_gets_its_settings_as_the_class_that_it_names(trial: Trial) -> None:
    found: list[Named] = []

    def work(settings: Named, inputs: Files, outputs: Files, machine: Machine) -> None:
        found.append(settings)

    assert trial(work) == 0
    assert trial(work, config={"name": "me", "nmae": 1}) == 1
    assert "error: the settings of the job mine are not those of metapt.pretend: " in trial.log
    assert trial(lambda settings, *_: found.append(settings)) == 1, "it names none"
    assert found == [Named(name="me")]


def test_only_a_job_that_keeps_a_checkpoint_outlives_a_signal_for_a_moment(trial: Trial) -> None:
    handlers: list[object] = []
    work, before = and_then(lambda: handlers.append(signal.getsignal(signal.SIGTERM))), signal.getsignal(signal.SIGTERM)
    assert trial(work) == 0
    assert trial(work, config={"checkpoint": "c.pt"}) == 0
    assert [each is before for each in handlers] == [True, False]


# The device


def test_a_job_that_trains_sets_threads_and_memory(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    found, threads = list[object](), torch.get_num_threads()
    monkeypatch.setattr("metapt.engine.execute.keep_freed_memory", lambda: found.append("memory"))
    try:
        assert trial(and_then(lambda: found.append(torch.get_num_threads())), stage="study", threads=threads + 1) == 0
    finally:
        torch.set_num_threads(threads)
    assert found == ["memory", threads + 1]
    assert trial.copy.read_text().endswith(f"with {threads + 1}")


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (1, "error: this job was given a GPU, but torch sees none here"),
        (0, "error: the config says require_gpu: true, but this job was given no GPU"),
    ],
)
def test_a_gpu_that_is_not_there_is_an_error(
    gpus: int, words: str, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert trial(stage="study", gpus=gpus, require_gpu=True) == 1
    assert words in trial.log
    assert not trial.copy.exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_a_gpu_is_used_and_recorded(trial: Trial) -> None:
    assert trial(gpus=1, require_gpu=True) == 0
    assert trial.copy.read_text() == "text on cuda with 1"
    assert trial.record()["machine"]["name"] == torch.cuda.get_device_name()
    assert trial.record()["peak_gpu_memory_bytes"] is not None


@pytest.fixture
def matmul_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("matmul_precision")
@pytest.mark.parametrize("fails", [False, True])
def test_a_gpu_computes_strictly_in_float32_and_the_record_says_so(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """torch is let see a GPU that nothing computes on."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 1)
    torch.set_float32_matmul_precision("highest")
    backends, seen = torch.backends, []

    def look() -> None:
        seen.append((backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32))
        backends.cudnn.allow_tf32 = fails
        if fails:
            raise DataError("of the work")

    assert trial(and_then(look), gpus=1) == fails
    assert seen == [(False, False)]
    assert backends.cudnn.allow_tf32, "as torch has it by default"
    assert trial.record()["tf32"] == {"convolutions": fails, "products": False}, "as seen at the end"


@pytest.mark.usefixtures("matmul_precision")
def test_a_cpu_keeps_torchs_settings(trial: Trial) -> None:
    torch.set_float32_matmul_precision("medium")
    seen: list[object] = []
    look = and_then(lambda: seen.append((torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision())))
    assert trial(look) == 0
    assert seen == [(True, "medium")]


def test_code_that_has_changed_since_the_plan_does_no_work(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metapt.engine.execute.code_of", lambda job: "of now")
    assert trial(code="of the plan") == 1
    assert "the code has changed since this run was planned: start the run again." in trial.log
    assert not trial.copy.exists()
    assert trial(code="of now") == 0
    assert trial() == 0
    assert trial.record()["code"] == "of now"


# Repetition from a record


def test_a_record_is_repeated(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    assert trial(config={"name": "me"}, code="older") == 0
    assert trial.repeat() == 0
    assert "the code has changed since" in capsys.readouterr().err
    assert trial(config={"name": "me", "checkpoint": "c/of.pt"}, threads=3) == 0
    assert trial.repeat() == 0
    assert not capsys.readouterr().err
    first, second, again = trial.record(), trial.record("again"), trial.folder / "again"
    assert (again / "copy").read_text() == trial.copy.read_text()
    assert second["inputs"] == first["inputs"]
    assert second["outputs"]["copy"] == str(again / "copy")
    assert second["config"] == {"name": "me", "checkpoint": str(again / "checkpoint.pt")}
    assert trial.repeat("--threads", "1") == 0
    assert (again / "copy").read_text() == "text on cpu with 1"
    config = {"name": "me", "checkpoint": ""}
    assert trial(config=config) == 0
    assert trial.repeat() == 0
    assert trial.record("again")["config"] == config, "a run that keeps no checkpoint is repeated without one"


def test_a_record_is_not_repeated_with_another_input_or_over_its_own_outputs(
    trial: Trial, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trial() == 0
    (trial.folder / "out").rename(trial.folder / "moved")
    assert trial() == 0
    for folder in ("out", "moved"):
        assert trial.repeat(into=folder, record=f"{folder}/run.json") == 1
        assert "is the folder of the recorded run itself" in capsys.readouterr().err
    trial.original.write_text("another text")
    assert trial.repeat() == 1
    assert f"{trial.original} is not what the run of {trial.folder}/out/run.json has read" in capsys.readouterr().err
    assert not (trial.folder / "again" / "copy").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "run.json is no file; name the run.json that a run has left"),
        ("{", "run.json is not the record of a run (Expecting property name"),
        ("[" * 100000, "run.json is not the record of a run (maximum recursion depth"),
        ("[1]", "run.json is not the record of a run ("),
        ("{}", "run.json holds no SHA-256, as the record of a run does"),
        ('{"stage": "study", "sha256_of_record": "0"}', "run.json has been altered since its job wrote it"),
    ],
)
def test_what_is_wrong_with_a_record_is_said(
    content: str | None, sentence: str, trial: Trial, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (trial.folder / "run.json").write_text(content)
    assert trial.repeat(record="run.json") == 1
    assert sentence in capsys.readouterr().err
