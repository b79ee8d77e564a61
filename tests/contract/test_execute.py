"""The execution of a job: record, log, device, and errors as sentences."""

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


class Named(ResumableSettings):
    name: str = ""


Run = Callable[[Named, dict[str, Path], dict[str, Path], Machine], None]


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], str]:
    """Return a function that makes its argument the work of an entry module and returns the module's name."""

    def install(run: Run) -> str:
        module = ModuleType("metapt.pretend")
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "metapt.pretend", module)
        return "pretend"

    for variable in THREAD_VARIABLES:
        monkeypatch.setenv(variable, "1")
    return install


def copy(settings: Named, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    assert set(outputs) == {"copy"}
    logging.getLogger("metapt").info("copying for %s", settings.name)
    outputs["copy"].parent.mkdir(parents=True, exist_ok=True)
    outputs["copy"].write_text(inputs["original"].read_text() + f" on {machine.device} with {machine.threads}")


def raising(error: BaseException) -> Run:
    def run(settings: Named, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
        raise error

    return run


def record(path: Path) -> None:
    """Write the record that the job which made a file would have left."""
    sums = {"outputs": {"made": sha256(path)}}
    records.write(path.with_name(f"{path.name}.run.json"), {"outputs": {"made": path.name}, "sha256": sums})


def job(folder: Path, entry: str, **changes: Any) -> Job:
    (folder / "original").write_text("text")
    record(folder / "original")
    fields: dict[str, Any] = {
        "stage": "simulate",
        "name": "mine",
        "config": {"name": "me"},
        "inputs": {"original": str(folder / "original")},
        "outputs": {"copy": str(folder / "out" / "copy")},
        "record": str(folder / "out" / "run.json"),
        "log": str(folder / "log.txt"),
    }
    return Job(entry=entry, **(fields | changes))


def test_the_record_says_what_was_run_and_on_what(entry: Callable[[Run], str], tmp_path: Path) -> None:
    assert execute(job(tmp_path, entry(copy), threads=2), code="of the plan") == 0
    assert (tmp_path / "out" / "copy").read_text() == "text on cpu with 2"
    assert os.environ["OMP_NUM_THREADS"] == "2"
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (record["stage"], record["name"], record["entry"]) == ("simulate", "mine", "pretend")
    assert record["config"] == {"name": "me"}
    assert record["code"] == "of the plan"
    assert record["inputs"] == {"original": str(tmp_path / "original")}
    assert record["outputs"] == {"copy": str(tmp_path / "out" / "copy")}
    assert record["sha256"]["inputs"] == {"original": sha256(tmp_path / "original")}
    assert record["sha256"]["outputs"] == {"copy": sha256(tmp_path / "out" / "copy")}
    assert record["machine"]["device"] == "cpu"
    assert record["machine"]["threads"] == 2
    assert record["versions"]["torch"] == torch.__version__
    assert record["wall_time_s"] >= 0
    assert record["cpu_time_s"] > 0
    assert record["peak_memory_bytes"] > 10_000_000
    assert record["peak_gpu_memory_bytes"] is None
    assert record["state"] == "done"
    assert "copying for me" in (tmp_path / "log.txt").read_text()


def test_the_record_has_the_time_of_the_job_and_of_its_children(entry: Callable[[Run], str], tmp_path: Path) -> None:
    own: list[float] = []
    wall: list[float] = []

    def run(settings: Named, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
        begin = time.monotonic()
        burn = "import time\nwhile time.process_time() < 0.5: pass"
        subprocess.run([sys.executable, "-c", burn], check=True)
        own.append(time.process_time())
        wall.append(time.monotonic() - begin)

    begin = time.monotonic()
    assert execute(job(tmp_path, entry(run))) == 0
    whole = time.monotonic() - begin
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert wall[0] - 0.001 <= record["wall_time_s"] <= whole + 0.001  # it is rounded to milliseconds
    assert record["cpu_time_s"] > own[0] + 0.4


def test_every_library_is_told_the_threads(entry: Callable[[Run], str], tmp_path: Path) -> None:
    assert execute(job(tmp_path, entry(copy), threads=2)) == 0
    assert {os.environ[name] for name in THREAD_VARIABLES} == {"2"}


def test_a_log_is_of_one_job(entry: Callable[[Run], str], tmp_path: Path) -> None:
    name, other = entry(copy), tmp_path / "other.txt"
    for path in (other, tmp_path / "log.txt", tmp_path / "log.txt"):
        assert execute(job(tmp_path, name, log=str(path))) == 0
    for path in (other, tmp_path / "log.txt"):
        assert path.read_text().count("copying for me") == 1


def test_a_job_that_is_broken_off_leaves_no_log_open(entry: Callable[[Run], str], tmp_path: Path) -> None:
    before = list(logging.getLogger("metapt").handlers)
    with pytest.raises(KeyboardInterrupt):
        execute(job(tmp_path, entry(raising(KeyboardInterrupt()))))
    assert logging.getLogger("metapt").handlers == before


def test_a_known_error_is_one_sentence(
    entry: Callable[[Run], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert execute(job(tmp_path, entry(raising(DataError("the file is cut."))))) == 1
    for text in ((tmp_path / "log.txt").read_text(), capfd.readouterr().err):
        assert text.count("\n") == 1
        assert text.endswith("error: the file is cut.\n")
    assert json.loads((tmp_path / "out" / "run.json").read_text())["state"] == "error: the file is cut."


def test_an_unknown_error_has_its_traceback(entry: Callable[[Run], str], tmp_path: Path) -> None:
    assert execute(job(tmp_path, entry(raising(ValueError("odd"))))) == 1
    text = (tmp_path / "log.txt").read_text()
    assert "Traceback" in text
    assert "ValueError: odd" in text
    assert json.loads((tmp_path / "out" / "run.json").read_text())["state"] == "error: ValueError('odd')"


def test_a_full_disk_is_one_sentence(entry: Callable[[Run], str], tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "results/table.csv")
    assert execute(job(tmp_path, entry(raising(full)))) == 1
    assert "error: no room to write results/table.csv: make some on that disk" in (tmp_path / "log.txt").read_text()


def test_an_error_of_the_system_is_one_sentence_if_it_names_a_file(
    entry: Callable[[Run], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for error, words in (
        (OSError(errno.EIO, os.strerror(errno.EIO), "there"), "error: there can't be read or written (Input/output"),
        (OSError("no folder for the cache"), "error: no folder for the cache"),
    ):
        assert execute(job(tmp_path, entry(raising(error)))) == 1
        assert words in capfd.readouterr().err
        assert "Traceback" not in (tmp_path / "log.txt").read_text()
    assert execute(job(tmp_path, entry(raising(OSError(errno.EIO, os.strerror(errno.EIO)))))) == 1
    assert "Traceback" in (tmp_path / "log.txt").read_text(), "else nobody could tell where"


def test_a_record_that_cannot_be_made_is_named(
    entry: Callable[[Run], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(package: str) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("metapt.engine.execute.metadata.version", fail)
    assert execute(job(tmp_path, entry(copy))) == 1
    text = (tmp_path / "log.txt").read_text()
    assert f"error: {tmp_path / 'out' / 'run.json'} can't be written, because the system fails ([Errno 5]" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("log", ["/dev/full", "original/log.txt", "out"])
def test_a_log_that_cannot_be_written_is_said_once_and_ends_no_job(
    log: str, entry: Callable[[Run], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    path = tmp_path / log
    assert execute(job(tmp_path, entry(copy), log=str(path))) == 0
    text = capfd.readouterr().err
    assert text.count(f"mine: the log {path} can't be written (") == 1
    assert text.count("\n") == 1
    assert json.loads((tmp_path / "out" / "run.json").read_text())["state"] == "done"
    assert execute(job(tmp_path, entry(raising(DataError("the file is cut."))), log=str(path))) == 1
    assert "mine: error: the file is cut.\n" in capfd.readouterr().err


def test_a_full_disk_behind_stderr_ends_no_job(
    entry: Callable[[Run], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with suppress(OSError), open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert execute(job(tmp_path, entry(copy))) == 0
    assert "copying for me" in (tmp_path / "log.txt").read_text()


def test_a_missing_input_is_named(entry: Callable[[Run], str], tmp_path: Path) -> None:
    assert execute(job(tmp_path, entry(copy), inputs={"original": str(tmp_path / "gone")})) == 1
    assert f"error: the input 'original', {tmp_path / 'gone'}, is not there" in (tmp_path / "log.txt").read_text()


def test_a_folder_in_the_place_of_a_raw_file_is_named(entry: Callable[[Run], str], tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    assert execute(job(tmp_path, entry(copy), stage="prepare", inputs={"original": str(raw)})) == 1
    assert f"the input 'original', {raw}, is a folder, a pipe or a device" in (tmp_path / "log.txt").read_text()


def test_an_input_that_is_not_what_its_job_left_is_named_with_its_record(
    entry: Callable[[Run], str], tmp_path: Path
) -> None:
    described = job(tmp_path, entry(copy))
    (tmp_path / "original").write_text("texu")
    assert execute(described) == 1
    text = (tmp_path / "log.txt").read_text()
    assert f"error: {tmp_path / 'original'} is not what its job left" in text
    assert f"in {tmp_path / 'original.run.json'}. It has been cut or altered since; remove it" in text
    assert not (tmp_path / "out" / "copy").exists()


def test_an_input_without_a_record_is_refused_but_where_users_put_files(
    entry: Callable[[Run], str], tmp_path: Path
) -> None:
    described = job(tmp_path, entry(copy))
    (tmp_path / "original.run.json").unlink()
    assert execute(described) == 1
    assert f"whether {tmp_path / 'original'} is whole can't be told" in (tmp_path / "log.txt").read_text()
    outside = job(tmp_path, entry(copy), stage="prepare")
    (tmp_path / "original.run.json").unlink()
    assert execute(outside) == 0
    text = (tmp_path / "log.txt").read_text()
    said = "no run.json beside these files holds their SHA-256, so that they are taken as they are"
    assert f"{said}: {tmp_path / 'original'}" in text
    assert "can't be told" not in text


def test_what_a_job_left_that_broke_off_is_no_input(entry: Callable[[Run], str], tmp_path: Path) -> None:
    def half(settings: Named, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
        copy(settings, inputs, outputs, machine)
        raise DataError("no more.")

    assert execute(job(tmp_path, entry(half))) == 1
    assert execute(job(tmp_path, entry(copy), inputs={"original": str(tmp_path / "out" / "copy")})) == 1
    assert f"{tmp_path / 'out' / 'copy'} is of a job that has not come to its end" in (tmp_path / "log.txt").read_text()


def test_metapt_run_refuses_a_record_that_has_been_altered(
    entry: Callable[[Run], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(job(tmp_path, entry(copy))) == 0
    path = tmp_path / "out" / "run.json"
    path.write_text(path.read_text().replace('"name": "me"', '"name": "mf"'))
    assert main(["run", str(path), "--into", str(tmp_path / "again")]) == 1
    assert f"error: {path} has been altered since its job wrote it" in capsys.readouterr().err


def test_only_a_job_that_keeps_a_checkpoint_outlives_a_signal_for_a_moment(
    entry: Callable[[Run], str], tmp_path: Path
) -> None:
    handlers = []

    def run(settings: Named, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
        handlers.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    name = entry(run)
    assert execute(job(tmp_path, name)) == 0
    assert execute(job(tmp_path, name, config={"checkpoint": "c.pt"})) == 0
    assert handlers[0] is before
    assert handlers[1] is not before


def test_an_entry_module_that_is_not_there_or_does_no_work_is_named(tmp_path: Path) -> None:
    for name, stage, missing in (
        ("nowhere", "prepare", "No module"),
        ("files", "prepare", "'run'"),
        ("files", "summarise", "'EXP"),
    ):
        assert execute(job(tmp_path, name, stage=stage)) == 1
        text = (tmp_path / "log.txt").read_text()
        assert f"error: metapt.{name} does no job of the stage '{stage}': " in text
        assert missing in text


def test_a_job_gets_its_settings_as_the_class_that_it_names(entry: Callable[..., str], tmp_path: Path) -> None:
    found: list[Named] = []

    def run(settings: Named, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
        found.append(settings)

    assert execute(job(tmp_path, entry(run), outputs={})) == 0
    assert found == [Named(name="me")]
    assert execute(job(tmp_path, entry(run), config={"name": "me", "nmae": 1})) == 1
    assert "error: the settings of the job mine are not those of metapt.pretend: " in (tmp_path / "log.txt").read_text()
    assert len(found) == 1
    assert execute(job(tmp_path, entry(lambda settings, *_: found.append(settings)), outputs={})) == 1  # names none
    assert len(found) == 1


def test_a_job_that_trains_gives_torch_its_threads(entry: Callable[[Run], str], tmp_path: Path) -> None:
    found = []
    threads = torch.get_num_threads()
    try:
        name = entry(lambda _, inputs, outputs, machine: found.append((torch.get_num_threads(), machine.threads)))
        assert execute(job(tmp_path, name, config={}, stage="study", threads=threads + 1)) == 0
    finally:
        torch.set_num_threads(threads)
    assert found == [(threads + 1, threads + 1)]


def test_a_gpu_that_is_not_there_is_an_error(
    entry: Callable[[Run], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert execute(job(tmp_path, entry(copy)), gpus=1) == 1
    assert "error: this job was given a GPU, but torch sees none here" in (tmp_path / "log.txt").read_text()
    assert not (tmp_path / "out" / "copy").exists()


def test_require_gpu_forbids_the_cpu(entry: Callable[[Run], str], tmp_path: Path) -> None:
    assert execute(job(tmp_path, entry(copy), stage="study"), gpus=0, require_gpu=True) == 1
    assert (
        "error: the config says require_gpu: true, but this job was given no GPU" in (tmp_path / "log.txt").read_text()
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_a_gpu_is_used_and_recorded(entry: Callable[[Run], str], tmp_path: Path) -> None:
    assert execute(job(tmp_path, entry(copy)), gpus=1, require_gpu=True) == 0
    assert (tmp_path / "out" / "copy").read_text() == "text on cuda with 1"
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["machine"]["name"] == torch.cuda.get_device_name()
    assert record["peak_gpu_memory_bytes"] is not None


@pytest.fixture
def matmul_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch see a GPU that nothing computes on."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 1)


@pytest.mark.usefixtures("pretended_gpu", "matmul_precision")
@pytest.mark.parametrize("fails", [False, True])
def test_a_gpu_computes_strictly_in_float32_and_the_record_says_so(
    entry: Callable[[Run], str], tmp_path: Path, fails: bool
) -> None:
    torch.set_float32_matmul_precision("highest")
    backends, seen = torch.backends, []

    def work(settings: Named, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
        seen.append((backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32))
        copy(settings, inputs, outputs, machine)
        backends.cudnn.allow_tf32 = fails
        if fails:
            raise DataError("of the work")

    assert execute(job(tmp_path, entry(work)), gpus=1) == fails
    assert seen == [(False, False)]
    assert backends.cudnn.allow_tf32, "as torch has it by default"
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["tf32"] == {"convolutions": fails, "products": False}, "as seen at the end"


@pytest.mark.usefixtures("matmul_precision")
def test_a_cpu_keeps_torchs_settings(entry: Callable[[Run], str], tmp_path: Path) -> None:
    torch.set_float32_matmul_precision("medium")
    seen = []

    def work(settings: Named, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
        seen.append((torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()))
        copy(settings, inputs, outputs, machine)

    assert execute(job(tmp_path, entry(work))) == 0
    assert seen == [(True, "medium")]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["tf32"] is None


def test_metapt_run_repeats_a_record(entry: Callable[[Run], str], tmp_path: Path) -> None:
    assert execute(job(tmp_path, entry(copy), config={"name": "me", "checkpoint": "c/of.pt"}, threads=3)) == 0
    again = tmp_path / "again"
    assert main(["run", str(tmp_path / "out" / "run.json"), "--into", str(again)]) == 0
    assert (again / "copy").read_text() == (tmp_path / "out" / "copy").read_text()
    first, second = (json.loads((folder / "run.json").read_text()) for folder in (tmp_path / "out", again))
    assert second["inputs"] == first["inputs"]
    assert second["outputs"]["copy"] == str(again / "copy")
    assert second["config"] == {"name": "me", "checkpoint": str(again / "checkpoint.pt")}
    assert main(["run", str(tmp_path / "out" / "run.json"), "--into", str(again), "--threads", "1"]) == 0
    assert (again / "copy").read_text() == "text on cpu with 1"


def test_a_run_that_keeps_no_checkpoint_is_repeated_without_one(entry: Callable[[Run], str], tmp_path: Path) -> None:
    config = {"name": "me", "checkpoint": ""}
    assert execute(job(tmp_path, entry(copy), config=config)) == 0
    assert main(["run", str(tmp_path / "out" / "run.json"), "--into", str(tmp_path / "again")]) == 0
    assert json.loads((tmp_path / "again" / "run.json").read_text())["config"] == config


def test_an_interrupted_run_leaves_no_record_of_the_one_before(entry: Callable[[Run], str], tmp_path: Path) -> None:
    """The record would say that the outputs are those of the earlier run."""

    def broken_off(settings: Named, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
        outputs["copy"].write_text("of another run")
        raise KeyboardInterrupt

    first = job(tmp_path, entry(copy))
    assert execute(first) == 0
    with pytest.raises(KeyboardInterrupt):
        execute(job(tmp_path, entry(broken_off), config={"name": "another"}))
    assert records.stale(Path(first.record), first.config, None, first.inputs) == "there is no record of it"


def test_a_record_is_not_repeated_with_another_input(
    entry: Callable[[Run], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(job(tmp_path, entry(copy))) == 0
    (path,) = json.loads((tmp_path / "out" / "run.json").read_text())["inputs"].values()
    Path(path).write_text("another text")
    assert main(["run", str(tmp_path / "out" / "run.json"), "--into", str(tmp_path / "again")]) == 1
    assert f"{path} is not what the run of {tmp_path}/out/run.json has read" in capsys.readouterr().err
    assert not (tmp_path / "again" / "copy").exists()


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
def test_metapt_run_says_what_is_wrong_with_a_record(
    content: str | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "run.json"
    if content is not None:
        record.write_text(content)
    assert main(["run", str(record), "--into", str(tmp_path / "again")]) == 1
    assert sentence in capsys.readouterr().err


def test_metapt_run_does_not_overwrite_the_run(
    entry: Callable[[Run], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(job(tmp_path, entry(copy))) == 0
    assert main(["run", str(tmp_path / "out" / "run.json"), "--into", str(tmp_path / "out")]) == 1
    assert "is the folder of the recorded run itself" in capsys.readouterr().err
    (tmp_path / "out").rename(tmp_path / "moved")
    assert main(["run", str(tmp_path / "moved" / "run.json"), "--into", str(tmp_path / "moved")]) == 1
    assert "is the folder of the recorded run itself" in capsys.readouterr().err


@pytest.mark.parametrize(("limit", "end"), [("AVX2", " with AVX512, oneDNN AVX2"), (None, " with AVX512")])
def test_a_record_says_which_instructions_a_cpu_computes_with(
    entry: Callable[[Run], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, end: str
) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    if limit:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert execute(job(tmp_path, entry(copy))) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["machine"]["name"] == machine_name("cpu") + end
