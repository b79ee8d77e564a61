"""Stages: one `run(config, inputs, outputs, machine)` per rule, and `execute`, which wraps each of them.

A stage gets nothing else, so that Snakemake, `metapt run RUN.json` and a test run it alike.
"""

from __future__ import annotations

import errno
import logging
import os
import pkgutil
import platform
import resource
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from metapt import records
from metapt.digest import code_digest
from metapt.errors import ConfigError, DataError, MachineError, MetaptError, redacted
from metapt.files import sha256
from metapt.training.interruption import noticed

# Threads that spin while they wait slow down every other job on the machine; must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

log = logging.getLogger("metapt")

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Read by the libraries when they are first imported; Snakemake sets them to the threads of the rule, which may be more."""

FROM_OUTSIDE = ("prepare",)
"""Stages whose inputs a user may have put there, so that there is no record of them."""

PACKAGES = ("metapt", "torch", "torch-geometric", "numpy", "scipy", "scikit-learn", "pandas", "matplotlib")


@dataclass(frozen=True)
class Machine:
    """What a stage computes on: torch device (`cpu` or `cuda`) and number of CPU threads."""

    device: str = "cpu"
    threads: int = 1


@dataclass(frozen=True)
class Job:
    """One run of a stage: paths are as they were given, relative ones to the working directory.

    `gpu` is the number of GPUs that the scheduler gave; with `require_gpu`, 0 is an error instead of a run on the CPU.
    `code` is the digest of the job's code as the plan knows it (another version of Python gives another one); computed if None.
    """

    stage: str
    config: dict[str, Any]
    inputs: dict[str, Path] = field(default_factory=dict)
    outputs: dict[str, Path] = field(default_factory=dict)
    threads: int = 1
    gpu: int = 0
    require_gpu: bool = False
    log: Path | None = None
    code: str | None = None


def execute(job: Job) -> int:
    """Run a job, log it to `job.log` and stderr, and leave a record in `job.outputs["run"]`, which the stage itself does not see.

    Inputs must be what their producers have left, as the records beside them say (see `metapt.records`).

    A job that keeps a checkpoint saves it on SIGTERM or SIGUSR1 and ends with status 1, which a scheduler may answer with a
    second attempt; any other job ends at once.

    Returns:
        Exit status: 0, or 1 after an error, which is logged as one sentence where it is a `MetaptError`.
    """
    handlers: list[logging.Handler] = []
    state, device, wall_time = "done", "cpu", 0.0
    sums: dict[str, dict[str, str]] = {"inputs": {}, "outputs": {}}
    try:
        _start_logging(job.log, handlers)
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(job.threads)))
        run = _stage(job.stage)
        device = _device(job)
        sums["inputs"] = _checked_inputs(job)
        outputs = {name: path for name, path in job.outputs.items() if name != "run"}
        start = time.monotonic()
        try:
            with noticed() if "checkpoint" in job.config else nullcontext():
                run(job.config, job.inputs, outputs, Machine(device, job.threads))
        finally:
            wall_time = time.monotonic() - start
        sums["outputs"] = {name: sha256(path) for name, path in outputs.items() if path.is_file()}
    except MetaptError as error:
        state = f"error: {error}"
        log.error(state)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            state = f"error: no room to write {error.filename}: make some on that disk, or name a folder elsewhere in the config."
            log.error(state)
        else:
            state = f"error: {error!r}"
            log.exception("error: the stage %s broke off", job.stage)
    try:
        if "run" in job.outputs:
            records.write(job.outputs["run"], _record(job, state, device, wall_time, sums))
    except MetaptError as error:
        state = f"error: {error}"
        log.error(state)
    finally:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
    return 0 if state == "done" else 1


def _stage(name: str) -> Any:
    legal = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if name not in legal:
        raise ConfigError(f"there is no stage {name!r}; legal: {', '.join(legal)}.")
    return import_module(f"{__name__}.{name}").run


def _device(job: Job) -> str:
    """The torch device for a job.

    Raises:
        MachineError: a GPU was asked for and torch sees none, or `require_gpu` is set and the scheduler gave none.
    """
    if job.gpu == 0:
        if job.require_gpu:
            raise MachineError(
                "the config says require_gpu: true, but the scheduler gave this job no GPU: allow one "
                "(snakemake --resources gpu=1), or set require_gpu: false to compute on the CPU."
            )
        return "cpu"
    import torch

    if not torch.cuda.is_available():
        raise MachineError(
            "this job was given a GPU, but torch sees none here: run it where nvidia-smi lists one with a CUDA build of torch, "
            "or compute on the CPU (require_gpu: false in the config and snakemake --resources gpu=0)."
        )
    return "cuda"


def _checked_inputs(job: Job) -> dict[str, str]:
    """The SHA-256 of each input.

    Raises:
        DataError: an input is missing, is not what its producer left, or has no record although no user could have put it there.
    """
    sums: dict[str, str] = {}
    unknown = []
    for name, path in job.inputs.items():
        if not path.exists():
            raise DataError(f"the input {name!r}, {path}, is not there (looked for from {Path.cwd()}).")
        if not path.is_file() and not path.is_dir():
            raise DataError(f"the input {name!r}, {path}, is a pipe or a device, not a file.")
        found = records.checked(path)
        if found is None and job.stage not in FROM_OUTSIDE:
            raise DataError(
                f"whether {path} is whole can't be told: no run.json beside it holds its SHA-256. "
                "Remove it, so that the workflow makes it again and keeps a record of it."
            )
        if found is None:
            unknown.append(str(path))
        sums[name] = sha256(path) if found is None else found
    if unknown:
        log.warning(
            "no run.json beside these files holds their SHA-256, so that they are taken as they are: %s", ", ".join(unknown)
        )
    return sums


class _Formatter(logging.Formatter):
    """Lines without the passwords of addresses."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Lines on stderr that leave tqdm's progress bars in one piece."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        tqdm.write(self.format(record), file=sys.stderr)


def _start_logging(path: Path | None, handlers: list[logging.Handler]) -> None:
    """Log to stderr and to `path`, by `handlers`, to which they are added. Raises MachineError where there can be no log."""
    log.setLevel(logging.INFO)
    log.propagate = False
    _add(_Stderr(), handlers)
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _add(logging.FileHandler(path, mode="w", encoding="utf-8"), handlers)
        except OSError as error:
            raise MachineError(
                f"{path} can't be written ({error.strerror}): give this user the right and the room to write there, or name "
                "another folder in the config."
            ) from error


def _add(handler: logging.Handler, handlers: list[logging.Handler]) -> None:
    handler.setFormatter(_Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    handlers.append(handler)


def _record(job: Job, state: str, device: str, wall_time: float, sums: dict[str, dict[str, str]]) -> dict[str, Any]:
    return {
        "stage": job.stage,
        "config": job.config,
        "code": job.code or _code(job),
        "inputs": {name: str(path) for name, path in job.inputs.items()},
        "outputs": {name: str(path) for name, path in job.outputs.items()},
        "sha256": sums,
        "machine": {"device": device, "threads": job.threads, "name": machine_name(device), "cpus": os.cpu_count()},
        "versions": _versions(),
        "revision": _revision(),
        "wall_time_s": round(wall_time, 3),
        "cpu_time_s": round(sum(os.times()[:4]), 3),  # of the process, its start and its children too
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "peak_gpu_memory_bytes": sys.modules["torch"].cuda.max_memory_allocated() if device == "cuda" else None,
        "state": state,
    }


def _code(job: Job) -> str | None:
    """The digest of the code that this job runs."""
    from metapt.registry import entry

    try:
        module = entry(job.stage, job.config)
        return None if module is None else code_digest(module)
    except (KeyError, ModuleNotFoundError):  # the stage or its config is wrong, which is the job's error
        return None


def machine_name(device: str) -> str:
    """Of the GPU, or of the processor."""
    if device == "cuda":
        return str(sys.modules["torch"].cuda.get_device_name())
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _versions() -> dict[str, str | None]:
    def version(package: str) -> str | None:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    return {"python": platform.python_version()} | {package: version(package) for package in PACKAGES}


def _revision() -> str | None:
    """The git revision of this package's source, `-dirty` where it has been changed since; None outside its repository."""

    def git(*arguments: str) -> str:
        command = ("git", "-C", str(Path(__file__).parent), *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", "..") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
