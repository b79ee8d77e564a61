"""How long the jobs of a config will take, and what memory and disk they need.

One training of each kind runs on data of the real shapes, a few steps of each loop (see `metapt.training.rehearsal`).
The others of the kind, which differ from it in seeds, learning rates and the like, are taken to need the same.
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
from metapt.estimate.rehearse import Need, rehearse
from metapt.jobs import Job
from metapt.machine import machine_name
from metapt.plan import Plan

BUDGET = 80.0
"""Seconds of the measured steps on a CPU core or a GPU, about; starts of processes and reading of data come on top."""

NO_MATTER = re.compile(
    r"arm|seed|checkpoint|setting|meta_size|split|initial|mean|(\w+_)?lr|l2|step_size|meta_optimizer|meta_settings"
    r"|meta_groups|explosion_factor|clip_norm|average_decay|factor|range|permuted"
)
"""Keys of a job's config on which its time and memory hardly depend."""

SUMMARY = Need(start=0.6, work=1.1, memory=150e6, disk=500e3)
COLLECT = Need(start=0.5, work=0.1, memory=150e6, disk=50e3)
DOWNLOAD = 1e-8  # seconds per byte
RUN_BYTES = 40e3  # tables, log and record of a training; as the numbers above, those of the default workflow


@dataclass(frozen=True)
class Requirements:
    """What the jobs of a config take.

    Needs are by name of the job; the device is that of trainings; seconds are the wall time of the measurements.
    """

    plan: Plan
    needs: dict[str, Need]
    machine: str
    device: str
    measuring_seconds: float

    def experiment(self, name: str) -> list[str]:
        """Return the names of the jobs behind an experiment, without those of the data."""
        needed = self.plan.needed(self.plan.summaries[name])
        return [job.name for job in needed if job.stage not in ("download", "simulate", "prepare")]


def estimate(config: Config, device: str, sources: Mapping[str, Any], budget: float = BUDGET) -> Requirements:
    """Measure a training of each kind on a device, within a `BUDGET`, and return what all jobs of a config take.

    All other jobs compute on the CPU. Raises MachineError if there is no such device, or a job breaks off.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise MachineError("torch sees no GPU here: measure where nvidia-smi lists one, or with --device cpu.")
    begin, plan = time.monotonic(), Plan(config, sources)
    with tempfile.TemporaryDirectory(prefix="metapt-estimate-") as folder:
        trials = Trials(plan, Path(folder), device, budget)
        jobs = tqdm(plan.jobs.values(), "jobs", file=sys.stderr, disable=None, leave=False)
        needs = {job.name: trials.need(job) for job in jobs}
    machine = f"{machine_name(device)}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    return Requirements(plan, needs, machine, device, time.monotonic() - begin)


def kind(job: Job) -> str:
    """Return what a job's time and memory depend on, as text: equal for jobs of which one is measured for all."""

    def shape(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kept = {key: shape(each) for key, each in value.items() if not NO_MATTER.fullmatch(key)}
        return list(kept.values()) if len(kept) == 1 else kept  # the only arm goes by any name

    names = sorted(re.sub(r"[^/]*\d[^/]*", "", name) for name in job.inputs)
    return json.dumps([job.stage, job.entry, job.threads, shape(job.config), names], sort_keys=True)


class Trials:
    """Rehearsals of a plan's jobs, which leave their files in `folder`. See `estimate`."""

    def __init__(self, plan: Plan, folder: Path, device: str, budget: float) -> None:
        self.plan, self.folder, self.device = plan, folder, device
        kinds: dict[str, list[Job]] = {}
        for job in plan.jobs.values():
            kinds.setdefault(kind(job) if job.trains else job.name, []).append(job)
        self._chosen: dict[
            str, Job
        ] = {}  # name of a job -> the one that is measured for its kind, with the median FT set
        for alike in kinds.values():
            ordered = sorted(alike, key=lambda job: job.config.get("meta_size") or 0)
            self._chosen |= dict.fromkeys((job.name for job in alike), ordered[len(ordered) // 2])
        self._allowance = budget / (4 * len(kinds))  # a job has about four kinds of steps
        self._slow: set[str] = set()  # entry modules that take smaller minibatches
        self._done: dict[str, Need] = {}

    def need(self, job: Job) -> Need:
        """Return what a job takes."""
        if job.stage == "download":
            size = self._downloaded(job)
            return replace(COLLECT, work=DOWNLOAD * size, disk=size)
        if not job.trains and job.stage not in ("simulate", "prepare"):
            return COLLECT if job.stage in ("collect", "page") else SUMMARY
        found = self._rehearsed(job)
        if source := self._size(job):
            return replace(found, work=source["prepare_seconds"], disk=found.disk / source["share"])
        return replace(found, disk=max(RUN_BYTES, found.disk)) if job.trains else found

    def _rehearsed(self, job: Job) -> Need:
        """Rehearse a job's kind, after the jobs that it waits for, and return what it takes."""
        job = self._chosen[job.name]
        if job.name not in self._done:
            absent = [each for each in self.plan.before(job) if not self._there(each)]
            share = min((self._size(each).get("share", 1.0) for each in absent), default=1.0)
            standin = bool(self._size(job))
            found = rehearse(
                replace(job, entry=self._standin(job)) if standin else job,
                {} if standin else {name: self._file(path) for name, path in job.inputs.items()},
                self.folder / job.name,
                self.device if job.trains else "cpu",
                self._allowance,
                share,
                job.entry in self._slow,
            )
            if found.extrapolated and share == 1:
                self._slow.add(job.entry)
            self._done[job.name] = found
        return self._done[job.name]

    def _file(self, path: str) -> str:
        """Return the file to read as an input: prepared data that are there, else what a rehearsal has left."""
        maker = self.plan.maker(path)
        if self._there(maker):
            return path
        name = next(name for name, each in maker.outputs.items() if each == path)
        return self._rehearsed(maker).outputs[name]

    def _there(self, job: Job) -> bool:
        """Return whether a job has prepared data."""
        return job.stage == "prepare" and records.stale(Path(job.record), job.config, job.code, job.inputs) is None

    def _size(self, job: Job) -> dict[str, float]:
        """Return the size of the source that a job prepares from downloaded files; empty for other jobs."""
        if job.stage != "prepare" or all(each.stage != "download" for each in self.plan.before(job)):
            return {}
        return dict(import_module(f"metapt.{self._standin(job)}").size(job.config))

    def _standin(self, job: Job) -> str:
        return f"{job.entry.rpartition('.')[0]}.standin"

    def _downloaded(self, job: Job) -> float:
        """Return the bytes of a download; where its publisher names none, an equal part of its source's."""
        files = job.config["source"].get("files", {})
        named = sum(files[Path(path).name].get("size", 0) for path in job.outputs.values() if Path(path).name in files)
        user = next(each for each in self.plan.jobs.values() if job in self.plan.before(each))
        return float(named or self._size(user)["raw_bytes"] / len(user.inputs))
