"""The execution of a job; Snakemake, `metapt run` and the tests all use `execute`.

The work of a job is the function `run(settings, inputs, outputs, machine)` of its module, which gets nothing else; in
the stage `summarise` it is the method of this name of its experiment.
"""

from __future__ import annotations

import errno
import inspect
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from metapt.engine import records
from metapt.engine.jobs import Job, Json
from metapt.errors import ConfigError, DataError, MachineError, MetaptError, redacted, with_extra
from metapt.files import sha256
from metapt.machine import (
    THREAD_VARIABLES,
    Machine,
    find_caches,
    keep_freed_memory,
    machine_name,
    peak_memory_since_start,
)
from metapt.sections import JobSettings
from metapt.training.interruption import noticed

# Threads that spin while they wait slow down all other jobs of the machine. torch reads this when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

log = logging.getLogger("metapt")

FROM_OUTSIDE = ("prepare",)
"""Stages whose inputs may have no record, because a user may have put them there."""

PACKAGES = ("metapt", "torch", "torch-geometric", "numpy", "scipy", "scikit-learn", "pandas", "matplotlib")


def execute(job: Job, *, gpus: int = 0, require_gpu: bool = False, code: str | None = None) -> int:
    """Run a job, log it to `job.log` and stderr, and write its record.

    Inputs must be what their producers left, according to the records beside them (see `metapt.engine.records`).

    On SIGTERM, SIGUSR1 or SIGINT a job with a checkpoint saves it and ends with status 1, so that a scheduler can make
    a second attempt; any other job ends at once.

    Args:
        job: its paths are absolute or relative to the working directory; an empty `log` or `record` is not written.
        gpus: number of GPUs that the scheduler gave.
        require_gpu: whether a training job without a GPU is an error.
        code: the digest of the job's code when the run was planned; None: it is not compared.

    Returns:
        Exit status: 0, or 1 after an error, which is logged as one sentence if it is a `MetaptError`.
    """
    state, device, wall_time = "done", "cpu", 0.0
    tf32: Json | None = None
    sums: dict[str, dict[str, str]] = {"inputs": {}, "outputs": {}}
    with _logged(job):
        try:
            find_caches()
            os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(job.threads)))
            work, now = work_of(job), code_of(job)
            if now is not None and code not in (None, now):
                raise ConfigError("the code has changed since this run was planned: start the run again.")
            code = code or now
            device = _device(job, gpus, require_gpu)
            sums["inputs"] = _checked_inputs(job)
            outputs = _paths(job.outputs)
            if job.record:  # of an earlier run, which says nothing of what this one leaves if it is interrupted
                with suppress(OSError):  # writing the new one says what is wrong with the folder
                    Path(job.record).unlink()
            start = time.monotonic()
            if job.trains:
                log.info("starts on %s, CPU threads: %d", device, job.threads)
            with _without_tf32(device), noticed() if job.config.get("checkpoint") else nullcontext():
                try:
                    work(_paths(job.inputs), outputs, Machine(device, job.threads))
                finally:
                    wall_time, tf32 = time.monotonic() - start, _tf32(device)
            sums["outputs"] = {name: sha256(path) for name, path in outputs.items() if path.is_file()}
            if job.trains:
                log.info("done in %.0f s", wall_time)
        except Exception as error:
            sentence = str(error) if isinstance(error, MetaptError) else _of_the_system(error)
            state = f"error: {sentence or repr(error)}"
            if sentence:
                log.error(state)
            else:
                log.exception("error: the job %s broke off", job.name)
        try:
            if job.record:
                found = {"sha256": sums, "tf32": tf32, "wall_time_s": round(wall_time, 3), "state": state}
                records.write(Path(job.record), _record(job, device, code) | found)
        except MetaptError as error:
            state = f"error: {error}"
            log.error(state)
        except OSError as error:  # of a file that the record tells of, such as the code
            state = f"error: {job.record} can't be written, because the system fails ({error})."
            log.error(state)
    return 0 if state == "done" else 1


def _of_the_system(error: Exception) -> str | None:
    """Return a sentence for an error of the system that says where it was; None for any other, which is a bug."""
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no room to write {error.filename}: make some on that disk, or name a folder elsewhere in the config."
    if error.filename:
        return f"{os.fsdecode(error.filename)} can't be read or written ({error.strerror})."
    return str(error) if error.errno is None else None


def _paths(files: dict[str, str]) -> dict[str, Path]:
    return {name: Path(path) for name, path in files.items()}


def work_of(job: Job) -> Callable[[dict[str, Path], dict[str, Path], Machine], None]:
    """Return the function that does a job's work, given its inputs, outputs and machine; it has its settings.

    The settings are of the class that the function names (see `JobSettings`). Raises ConfigError if there is no such
    function, or the job's config is not what it takes.
    """
    try:
        with with_extra(f"the job {job.name}"):
            module = import_module(f"metapt.{job.entry}")
        work = module.EXPERIMENT.summarise if job.stage == "summarise" else module.run
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(f"metapt.{job.entry} does no job of the stage {job.stage!r}: {error}.") from error
    if job.trains:
        import torch

        torch.set_num_threads(job.threads)
        keep_freed_memory()
    return partial(work, settings_for(work, job))


def settings_for(work: Callable[..., None], job: Job) -> Any:
    """Return a job's settings, of the class that the function of its work names. Raises ConfigError as `work_of`."""
    kind = inspect.get_annotations(work, eval_str=True).get("settings", JobSettings)
    try:
        return kind.model_validate(job.config)
    except ValidationError as error:
        raise ConfigError(f"the settings of the job {job.name} are not those of metapt.{job.entry}: {error}") from None


def _device(job: Job, gpus: int, require_gpu: bool) -> str:
    """Return the torch device for a job.

    Raises:
        MachineError: torch sees no GPU although one was given, or `require_gpu` is set and none was given.
    """
    if gpus == 0:
        if require_gpu and job.trains:
            raise MachineError(
                "the config says require_gpu: true, but this job was given no GPU: allow one (snakemake --resources "
                "gpu=1, or metapt run --device cuda), or set require_gpu: false to compute on the CPU."
            )
        return "cpu"
    import torch

    if not torch.cuda.is_available():
        raise MachineError(
            "this job was given a GPU, but torch sees none here: run it where nvidia-smi lists one with a CUDA build "
            "of torch, or compute on the CPU (require_gpu: false in the config, and snakemake --resources gpu=0 or "
            "metapt run --device cpu)."
        )
    return "cuda"


def _without_tf32(device: str) -> AbstractContextManager[None]:
    """Return a context in which a GPU computes in float32 strictly, but for what asks for TF32 (see `computing_in`)."""
    if device == "cpu":
        return nullcontext()
    from metapt.hypergrad.layers.precision import tf32

    return tf32(False)


def _tf32(device: str) -> Json | None:
    """Return whether torch may now compute in TF32 on the GPU; None on a CPU."""
    if device == "cpu":
        return None
    backends = sys.modules["torch"].backends
    return {"convolutions": backends.cudnn.allow_tf32, "products": backends.cuda.matmul.allow_tf32}


def _checked_inputs(job: Job) -> dict[str, str]:
    """Return the SHA-256 of each input by its name.

    Raises:
        DataError: an input is missing, is not what its producer left, or lacks the record that it must have.
    """
    sums: dict[str, str] = {}
    unknown = []
    for name, path in _paths(job.inputs).items():
        if not path.exists():
            raise DataError(f"the input {name!r}, {path}, is not there (looked for from {Path.cwd()}).")
        if not path.is_file():
            raise DataError(f"the input {name!r}, {path}, is a folder, a pipe or a device, not a file.")
        found = records.checked(path)
        if found is None:
            if job.stage not in FROM_OUTSIDE:
                raise DataError(
                    f"whether {path} is whole can't be told: no run.json beside it holds its SHA-256. "
                    "Remove it, so that the workflow makes it again and keeps a record of it."
                )
            unknown.append(str(path))
        sums[name] = found or sha256(path)
    if unknown:
        log.warning(
            "no run.json beside these files holds their SHA-256, so that they are taken as they are: %s",
            ", ".join(unknown),
        )
    return sums


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Write warnings, errors and the progress of long loops to stderr, between tqdm's progress bars.

    A full disk behind it does not end the job.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or getattr(record, "of_a_long_loop", False)

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        with suppress(OSError):
            tqdm.write(self.format(record), file=sys.stderr)


class _LogFile(logging.FileHandler):
    """Write lines to a file. Where that fails, it is said once on stderr, and the job goes on."""

    failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.failed:
            self.failed = True
            _without_log(self.baseFilename, error)

    def close(self) -> None:
        with suppress(OSError):  # of lines that are not written yet
            super().close()


def _without_log(path: str, error: OSError) -> None:
    log.warning("the log %s can't be written (%s), and the job goes on without it", path, error.strerror)


class _Formatter(logging.Formatter):
    """Format lines without the passwords in addresses."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


@contextmanager
def _logged(job: Job) -> Iterator[None]:
    """Log to the job's file and, with its name, to stderr."""
    handlers: list[logging.Handler] = []

    def add(handler: logging.Handler, prefix: str = "") -> None:
        handler.setFormatter(_Formatter(f"%(asctime)s {prefix.replace('%', '%%')}%(message)s", "%H:%M:%S"))
        log.addHandler(handler)
        handlers.append(handler)

    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        add(_Stderr(), f"{job.name}: ")
        if job.log:
            try:
                Path(job.log).parent.mkdir(parents=True, exist_ok=True)
                add(_LogFile(job.log, mode="w", encoding="utf-8"))
            except OSError as error:
                _without_log(job.log, error)
        yield
    finally:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
        log.propagate = True


def _record(job: Job, device: str, code: str | None) -> Json:
    """Return what a record says of a job and of the process that has run it."""
    return {
        "stage": job.stage,
        "name": job.name,
        "entry": job.entry,
        "config": job.config,
        "code": code,
        "inputs": job.inputs,
        "outputs": job.outputs,
        "machine": {"device": device, "threads": job.threads, "name": _machine_name(device), "cpus": os.cpu_count()},
        "versions": _versions(),
        "revision": _revision(),
        "cpu_time_s": round(sum(os.times()[:4]), 3),  # with the start of the process and with its children
        "peak_memory_bytes": peak_memory_since_start(),
        "peak_gpu_memory_bytes": sys.modules["torch"].cuda.max_memory_allocated() if device == "cuda" else None,
    }


def _machine_name(device: str) -> str:
    """Return the name of the machine; on a CPU with the instructions that torch and, if limited, oneDNN compute with.

    Processors of one name can differ in their instructions, and then in the last digits of what they compute.
    """
    name = machine_name(device)
    if device == "cuda" or "torch" not in sys.modules:
        return name
    instructions, limit = sys.modules["torch"].backends.cpu.get_cpu_capability(), os.environ.get("ONEDNN_MAX_CPU_ISA")
    return f"{name} with {instructions}, oneDNN {limit}" if limit else f"{name} with {instructions}"


def code_of(job: Job) -> str | None:
    """Return the digest of a job's code; None if its module is not there, which `execute` reports."""
    try:
        return job.code
    except ModuleNotFoundError:
        return None


def _versions() -> dict[str, str | None]:
    def version(package: str) -> str | None:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    return {"python": platform.python_version()} | {package: version(package) for package in PACKAGES}


def _revision() -> str | None:
    """Return the git revision of the package, with `-dirty` if it has changes; None outside of its repository."""

    def git(*arguments: str) -> str:
        command = ("git", "-C", str(Path(__file__).parent), *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", "..") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
