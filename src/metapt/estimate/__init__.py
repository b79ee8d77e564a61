"""How long a config's jobs will take, and what memory and disk they need, from a short calibration on the machine at hand.

The jobs are those that the workflow runs, each made of steps that its domain names (`metapt.{domain}.costs`); a few real steps of
each kind are timed, and what is left is addition.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

import torch

from metapt.config import Config, experiments
from metapt.errors import MachineError
from metapt.estimate.calibrate import Start, Timing, calibrate, start
from metapt.estimate.work import OPEN, SUMMARY_SECONDS, Costs, Run
from metapt.stages import machine_name

BUDGET = 80.0
"""Seconds, of a CPU core or a GPU, that the timed steps take, about; what they are made ready with comes on top."""
KEPT = 1.15
"""Memory of a job over the sum of its parts, as seen in whole runs: the allocator keeps freed pieces."""
KEPT_BY_THREADS = 2.2
"""Memory of one of several threads over that of its steps, as seen in whole runs: each keeps freed pieces of its own."""
PLAIN_START = 0.5
"""Seconds before a job begins its work that doesn't train, and so doesn't load the optimisers."""


@dataclass(frozen=True)
class Need:
    """What a job takes.

    Attributes:
        seconds: wall time, start-up included.
        core_seconds: of a CPU; of a GPU where `gpu`.
        work_share: of the time that is not start-up.
        gpu: whether it computes on a GPU.
        memory_bytes: of the process, peak.
        gpu_memory_bytes: peak; 0 without a GPU.
        scaled: whether a step's time was extrapolated from a part of its real size.
    """

    seconds: float
    core_seconds: float
    work_share: float
    gpu: bool
    memory_bytes: float
    gpu_memory_bytes: float
    scaled: bool


@dataclass(frozen=True)
class Estimate:
    """The jobs of a config and what they take.

    Attributes:
        runs: each job once, by name.
        needs: by the same names.
        experiments: experiment -> names of its jobs; a job may serve several. The data's are in no experiment.
        timings: domain and step -> what a step takes.
        starts: domain -> what a process takes before its work begins.
        machine, device: of the calibration.
        calibration_seconds: wall time.
    """

    runs: dict[str, Run]
    needs: dict[str, Need]
    experiments: dict[str, list[str]]
    timings: dict[str, Timing]
    starts: dict[str, Start]
    machine: str
    device: str
    calibration_seconds: float


def estimate(config: Config, device: str, sources: Mapping[str, Any], budget: float = BUDGET) -> Estimate:
    """Calibrates and adds up.

    Args:
        config: a validated one.
        device: `cpu` or `cuda`; of training jobs, while all others compute on the CPU.
        sources: the content of sources.yaml.
        budget: of the calibration, see `BUDGET`.

    Raises:
        MachineError: there is no such device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise MachineError("torch sees no GPU here: calibrate where nvidia-smi lists one, or with --device cpu.")
    begin = time.monotonic()
    by_experiment, runs = planned(config, sources)
    domains = list(dict.fromkeys(name.split("_", 1)[0] for name in by_experiment))
    steps = {
        f"{domain}: {step.name}": step for domain in domains for step in costs_of(domain).steps(getattr(config, domain), device)
    }
    used = {_key(run, step) for run in runs.values() for step in run.steps}
    starts = {domain: start(domain, device) for domain in domains}
    timings = calibrate({name: step for name, step in steps.items() if name in used}, device, budget)
    return Estimate(
        runs=runs,
        needs={name: need(run, timings, _start_of(run, starts), device) for name, run in runs.items()},
        experiments=by_experiment,
        timings=timings,
        starts=starts,
        machine=f"{machine_name(device)}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        device=device,
        calibration_seconds=time.monotonic() - begin,
    )


def costs_of(domain: str) -> Costs:
    """A domain's module `costs`."""
    return cast(Costs, import_module(f"metapt.domains.{domain}.costs"))


def planned(config: Config, sources: Mapping[str, Any]) -> tuple[dict[str, list[str]], dict[str, Run]]:
    """Experiment -> names of its jobs, and all jobs by name, the data's too. `sources` as in `estimate`."""
    raw_bytes = {
        name: sum(file["size"] for file in source["files"].values())
        for name, source in sources.items()
        if source.get("files") and all("size" in file for file in source["files"].values())
    }
    by_experiment: dict[str, list[str]] = {}
    runs: dict[str, Run] = {}
    for name in experiments(config):
        domain, experiment = name.split("_", 1)
        section = getattr(config, domain)
        found = costs_of(domain).runs(section, experiment)
        by_experiment[name] = [run.name for run in found]
        runs |= {run.name: run for run in [*costs_of(domain).data_runs(section, raw_bytes), *found]}
    collected = Run("report", "tables and figures", seconds=SUMMARY_SECONDS, trains=False, after=tuple(runs))
    return by_experiment, runs | {collected.name: collected}


def need(run: Run, timings: Mapping[str, Timing], process: Start, device: str) -> Need:
    """What a job takes, of the timings by domain and step."""
    gpu = run.trains and device == "cuda"
    parts = {step: timings[_key(run, step)] for step in run.steps}
    work = run.seconds + max(0.0, sum(count * parts[step].seconds for step, count in run.steps.items()))
    begin = process.seconds if run.trains else PLAIN_START
    wall = begin + work / (1 if gpu else run.threads)  # threads share a GPU
    peak = run.threads * max([part.peak_bytes for step, part in parts.items() if step != OPEN], default=0.0)
    opening = parts[OPEN].peak_bytes if OPEN in parts else 0.0
    host = process.peak_bytes + run.held_bytes
    kept = peak * (KEPT_BY_THREADS if run.threads > 1 else 1)
    return Need(
        seconds=wall,
        core_seconds=begin + work,
        work_share=1 - begin / wall,
        gpu=gpu,
        memory_bytes=KEPT * (host if gpu else max(host + kept, process.peak_bytes + opening)),
        gpu_memory_bytes=max(run.held_bytes + peak, opening) if gpu else 0.0,
        scaled=any(part.share < 1 for part in parts.values()),
    )


def wall_time(found: Estimate, names: Iterable[str], cores: int, gpus: int) -> float:
    """Seconds until jobs are done that start as soon as they can, the longest first, on so many cores and GPUs.

    Jobs that are waited for and not among `names` are taken as done.
    """
    waiting = sorted(names, key=lambda name: -found.needs[name].seconds)
    done_at: dict[str, float] = {}
    running: list[tuple[float, str]] = []
    chosen, now = set(waiting), 0.0
    while waiting or running:
        for name in list(waiting):
            used = [_places(found, other, cores, gpus) for _, other in running]
            threads, gpu = _places(found, name, cores, gpus)
            free = sum(each for each, _ in used) + threads <= cores and sum(each for _, each in used) + gpu <= gpus
            if free and all(other in done_at for other in found.runs[name].after if other in chosen):
                running.append((now + found.needs[name].seconds, name))
                waiting.remove(name)
        running.sort()
        now, name = running.pop(0)
        done_at[name] = now
    return now


def _places(found: Estimate, name: str, cores: int, gpus: int) -> tuple[int, int]:
    """Cores and GPUs that a job occupies."""
    run = found.runs[name]
    return cores if run.alone else min(cores, run.threads), min(gpus, int(found.needs[name].gpu))


def _start_of(run: Run, starts: Mapping[str, Start]) -> Start:
    """Jobs of no domain start like any."""
    return starts.get(run.name.split("/", 1)[0], next(iter(starts.values())))


def _key(run: Run, step: str) -> str:
    return f"{run.name.split('/', 1)[0]}: {step}"
