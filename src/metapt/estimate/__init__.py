"""How long the jobs of a config will take, and what memory and disk they need.

One job of each kind runs its entry module on data of the real shapes, a few steps of each loop (see `metapt.training.rehearsal`).
The other jobs of the kind, which differ from it in seeds, learning rates and the like, are taken to need the same.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tqdm import tqdm

from metapt import records
from metapt.config import Config
from metapt.errors import MachineError
from metapt.estimate.rehearse import Rehearsed, rehearse
from metapt.jobs import Job
from metapt.machine import machine_name
from metapt.plan import Plan

BUDGET = 80.0
"""Seconds that the measured steps take on a CPU core or a GPU, about; starts of processes and reading of data come on top."""

NO_MATTER = re.compile(
    r"arm|seed|checkpoint|setting|meta_size|split|initial|mean|(\w+_)?lr|l2|step_size|meta_optimizer|meta_settings|meta_groups"
    r"|explosion_factor|clip_norm|average_decay|factor|range|permuted"
)
"""Keys of a job's config on which its time and memory hardly depend."""

START_SECONDS, START_BYTES = 0.6, 150e6
"""CPU time and memory of a job that does not train, before its work; as those below, of the default workflow."""
SUMMARY_SECONDS, SUMMARY_BYTES = 1.1, 500e3
DOWNLOAD_SECONDS_PER_BYTE = 1e-8
RUN_BYTES = 40e3
"""Tables, log and record of a training whose rehearsal ends before it writes them."""


@dataclass(frozen=True)
class Need:
    """What a job takes.

    Attributes:
        seconds: wall time, with as many cores as it has threads.
        core_seconds: of a CPU; of a GPU where `gpu`.
        work_share: part of the time that is not start-up.
        gpu: whether it computes on a GPU.
        memory_bytes: largest resident set of the process.
        gpu_memory_bytes: 0 without a GPU.
        disk_bytes: of what it leaves.
        extrapolated: see `Rehearsed`.
    """

    seconds: float
    core_seconds: float
    work_share: float
    gpu: bool = False
    memory_bytes: float = START_BYTES
    gpu_memory_bytes: float = 0.0
    disk_bytes: float = 0.0
    extrapolated: bool = False


@dataclass(frozen=True)
class Estimate:
    """The jobs of a config and what they take.

    Attributes:
        plan: the jobs.
        needs: of each job, by name.
        rehearsals: name of a job -> what was measured.
        machine: where.
        device: of trainings.
        seconds: wall time of all measurements.
    """

    plan: Plan
    needs: dict[str, Need]
    rehearsals: dict[str, Rehearsed]
    machine: str
    device: str
    seconds: float

    def experiment(self, name: str) -> list[str]:
        """Return the names of the jobs behind an experiment, without those of the data."""
        needed = self.plan.needed(self.plan.summaries[name])
        return [job.name for job in needed if job.stage not in ("download", "simulate", "prepare")]


def estimate(config: Config, device: str, sources: Mapping[str, Any], budget: float = BUDGET) -> Estimate:
    """Measure one job of each kind and say what all jobs take.

    Args:
        config: a validated config.
        device: `cpu` or `cuda`; of trainings, while all others compute on the CPU.
        sources: the content of sources.yaml.
        budget: see `BUDGET`.

    Raises:
        MachineError: there is no such device, or a job breaks off.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise MachineError("torch sees no GPU here: measure where nvidia-smi lists one, or with --device cpu.")
    begin, plan = time.monotonic(), Plan(config, sources)
    with tempfile.TemporaryDirectory(prefix="metapt-estimate-") as folder:
        trials = _Trials(plan, Path(folder), device, budget)
        needs = {
            job.name: trials.need(job)
            for job in tqdm(plan.jobs.values(), "jobs", file=sys.stderr, disable=None, leave=False)
        }
    machine = f"{machine_name(device)}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    return Estimate(plan, needs, trials.done, machine, device, time.monotonic() - begin)


def kind(job: Job) -> str:
    """Return what a job's time and memory depend on, as text: equal for jobs of which one is measured for all."""

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {key: shape(each) for key, each in value.items() if not NO_MATTER.fullmatch(key)}
            return list(kept.values()) if len(kept) == 1 else kept  # a single arm goes by any name
        return value

    names = sorted(re.sub(r"[^/]*\d[^/]*", "", name) for name in job.inputs)
    return json.dumps([job.stage, job.entry, job.threads, shape(job.config), names], sort_keys=True)


class _Trials:
    """Rehearsals of the kinds of jobs of a plan.

    Attributes:
        done: name of a job -> its rehearsal.
    """

    def __init__(self, plan: Plan, folder: Path, device: str, budget: float) -> None:
        self.plan, self.folder, self.device = plan, folder, device
        self.done: dict[str, Rehearsed] = {}
        kinds: dict[str, list[Job]] = {}
        for job in plan.jobs.values():
            if job.trains:
                kinds.setdefault(kind(job), []).append(job)
        self._chosen: dict[str, Job] = {}
        for alike in kinds.values():
            ordered = sorted(alike, key=lambda job: job.config.get("meta_size") or 0)
            self._chosen |= dict.fromkeys((job.name for job in alike), ordered[len(ordered) // 2])
        self._allowance = budget / (4 * max(1, len(kinds)))  # a job has about four kinds of steps
        self._slow: set[str] = set()

    def need(self, job: Job) -> Need:
        """Return what a job takes; rehearse one of its kind if that has not been done."""
        match job.stage:
            case "download":
                size = sum(
                    file.get("size", 0) for file in job.config["source"].get("files", {}).values()
                ) or self._raw_bytes(job)
                return _need(DOWNLOAD_SECONDS_PER_BYTE * size, disk_bytes=size)
            case "summarise" | "collect":
                return _need(SUMMARY_SECONDS, disk_bytes=SUMMARY_BYTES)
            case "prepare" if self._standin(job) is not None:
                size = self._size(job)
                return _need(size["prepare_seconds"], disk_bytes=self._rehearsed(job).disk_bytes / size["share"])
        tried, gpu = self._rehearsed(job), self.device == "cuda" and job.trains
        work = tried.work_seconds
        seconds = tried.start_seconds + work / job.threads
        return Need(
            seconds=seconds,
            core_seconds=seconds if gpu else tried.start_seconds + work,
            work_share=1 - tried.start_seconds / seconds,
            gpu=gpu,
            memory_bytes=tried.memory_bytes,
            gpu_memory_bytes=tried.gpu_memory_bytes,
            disk_bytes=max(RUN_BYTES, tried.disk_bytes) if job.trains else tried.disk_bytes,
            extrapolated=tried.extrapolated,
        )

    def _rehearsed(self, job: Job) -> Rehearsed:
        """Return the rehearsal of a job's kind; the jobs that it waits for are rehearsed before it."""
        job = self._chosen.get(job.name, job)
        if job.name not in self.done:
            standin = self._standin(job)
            inputs = {} if standin else {name: self._file(path) for name, path in job.inputs.items()}
            share = 1.0
            for before in self.plan.before(job):
                if before.stage == "prepare" and not self._there(before) and self._standin(before):
                    share = self._size(before)["share"]
            device = self.device if job.trains else "cpu"
            self.done[job.name] = rehearse(
                replace(job, entry=standin) if standin else job,
                inputs,
                self.folder / job.name,
                device,
                self._allowance,
                share,
                job.entry in self._slow,
            )
            if share == 1 and self.done[job.name].extrapolated:
                self._slow.add(job.entry)
        return self.done[job.name]

    def _file(self, path: str) -> str:
        """Return the file to read in place of an input: prepared data that are there, else what a rehearsal has left."""
        maker = self.plan.maker(path)
        if maker.stage == "prepare" and self._there(maker):
            return path
        if path == maker.record:
            raise AssertionError(f"{path}: only summaries read records")
        names = {each: name for name, each in maker.outputs.items()}
        return self._rehearsed(maker).outputs[names[path]]

    def _there(self, job: Job) -> bool:
        """Return whether a job has been done."""
        return records.stale(Path(job.record), job.config, job.code, job.inputs) is None

    def _standin(self, job: Job) -> str | None:
        """Return the module that makes a stand-in of what a job prepares from downloaded files; None for other jobs."""
        downloaded = any(before.stage == "download" for before in self.plan.before(job))
        return f"{job.entry.rpartition('.')[0]}.standin" if job.stage == "prepare" and downloaded else None

    def _size(self, job: Job) -> dict[str, float]:
        size: dict[str, float] = import_module(f"metapt.{self._standin(job)}").size(job.config)
        return size

    def _raw_bytes(self, job: Job) -> float:
        """Return the bytes of a download whose publisher names no size."""
        for user in self.plan.jobs.values():
            downloads = [before for before in self.plan.before(user) if before.stage == "download"]
            if user.stage == "prepare" and job in downloads:
                return self._size(user)["raw_bytes"] / len(downloads)
        return 0.0


def _need(work: float, *, disk_bytes: float) -> Need:
    """Return the need of a job that does not train."""
    seconds = START_SECONDS + work
    return Need(seconds, seconds, work / seconds, disk_bytes=disk_bytes)
