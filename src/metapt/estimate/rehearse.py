"""The rehearsal of a job in a process of its own: `python -m metapt.estimate.rehearse`, its request on stdin."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from metapt import process_memory
from metapt.errors import MachineError
from metapt.execute import execute
from metapt.jobs import Files, Job, Json
from metapt.machine import THREAD_VARIABLES
from metapt.training.rehearsal import Rehearsal, TooSlow, memory, rehearsed

SLOW, PART, SMALLEST = 10.0, 16, 8
"""Time of a step on a CPU, in seconds, above which minibatches are made smaller; the largest factor; the least size."""

FOLD = 10
"""Labelled examples of a fold, with which each fold can be expected to have both labels of a class."""


@dataclass(frozen=True)
class Need:
    """What a job takes."""

    start: float  # seconds until its modules are imported
    work: float  # seconds after that, in all threads; on a GPU wall time
    memory: float  # bytes of the largest resident set
    disk: float  # bytes of what it leaves
    threads: int = 1  # CPU threads that share the work
    gpu: bool = False  # whether it computes on a GPU
    gpu_memory: float = 0.0  # bytes
    extrapolated: bool = False  # whether a part of the data was measured, or smaller minibatches
    outputs: Files = field(default_factory=dict)  # of the rehearsal: name -> file
    loops: list[Json] = field(default_factory=list)  # of the rehearsal: its measurements (see `LoopTime`)

    @property
    def seconds(self) -> float:
        """Return the wall time with as many cores as threads."""
        return self.start + self.work / self.threads

    @property
    def core_seconds(self) -> float:
        """Return the time of all cores, or of the GPU."""
        return self.seconds if self.gpu else self.start + self.work


def rehearse(
    job: Job, inputs: Files, folder: Path, device: str, allowance: float, share: float = 1.0, small: bool = False
) -> Need:
    """Run a job in a process of its own, a few steps of each loop, and return what the whole job takes.

    `inputs` are read instead of its own, and `share` is that of the real data that they hold: what follows the imports
    takes so many times longer. What it leaves goes to `folder`. With `small`, minibatches are smaller, if the job's
    config has their size. `device` and `allowance`: see `Rehearsal`. Raises MachineError if the job broke off.
    """
    config = json.dumps(job.config)
    most = _parts(config) if device == "cpu" else 1
    parts = most if small else 1
    checkpoint = {"checkpoint": f"{folder}/checkpoint.pt"} if "checkpoint" in job.config else {}
    rehearsal = dataclasses.replace(
        job,
        config=json.loads(_divided(config, parts)) | checkpoint,
        inputs=inputs,
        outputs={name: f"{folder}/{Path(path).name}" for name, path in job.outputs.items()},
        record=f"{folder}/run.json",
        log=f"{folder}/log.txt",
    )
    slowest = SLOW if most > parts else None
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "metapt.estimate.rehearse"],
        input=json.dumps([dataclasses.asdict(rehearsal), device, allowance, slowest]),
        capture_output=True,
        text=True,
        env=os.environ | dict.fromkeys(THREAD_VARIABLES, str(job.threads)),
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}, as where memory is short"])[-1]
        raise MachineError(
            f"{job.name} breaks off when a few of its steps are tried: {last}. `metapt run` shows the whole error."
        )
    seen = json.loads(done.stdout.splitlines()[-1])
    if seen["too_slow"]:
        return rehearse(job, inputs, folder, device, allowance, share, small=True)
    # PT and FT take as many times more of the smaller minibatches; a study takes as many as before.
    longer = parts if job.stage == "study" else 1
    work = seen["opened"] - seen["start"] + longer * (seen["end"] - seen["opened"] + seen["left_out"])
    peak = _peak(seen["memory"], share, parts)
    files = [Path(path) for path in (*rehearsal.outputs.values(), rehearsal.record, rehearsal.log)]
    return Need(
        start=seen["start"],
        work=work / share,
        memory=seen["process_bytes"] if device == "cuda" else peak,
        disk=sum(path.stat().st_size for path in files if path.is_file()),
        threads=job.threads,
        gpu=device == "cuda",
        gpu_memory=peak if device == "cuda" else 0.0,
        extrapolated=share < 1 or parts > 1,
        outputs=rehearsal.outputs,
        loops=seen["loops"],
    )


def _peak(seen: dict[str, int], share: float, parts: int) -> float:
    """Return the peak of memory: the data matter until the first loop begins, the minibatches after that."""
    held = (seen["opened"] - seen["start"]) / share + parts * max(0, seen["peak"] - seen["opened"])
    return seen["start"] + max(held, (seen["opening_peak"] - seen["start"]) / share)


def _parts(config: str) -> int:
    """Return how many times smaller a config's minibatches can be; 1 where one of them is all data, or small."""
    sizes = re.findall(r'"batch_size": (\w+)', config)
    return 1 if not sizes or "null" in sizes else min(PART, max(1, min(map(int, sizes)) // SMALLEST))


def _divided(config: str, parts: int) -> str:
    """Return a config with smaller minibatches.

    A head that is fitted on folds of all labelled examples takes fewer of them, which are the same part of a minibatch,
    unless that leaves a fold with less than `FOLD` examples.
    """
    folds = max((int(count) for count in re.findall(r'"folds": (\d+)', config)), default=0)

    def divided(found: re.Match[str]) -> str:
        size = int(found[2])
        least = FOLD * folds if found[1] == "meta_size" else 1
        return f'"{found[1]}": {max(min(size, least), size // parts)}'

    keys = "batch_size|meta_size" if folds else "batch_size"
    return re.sub(rf'"({keys})": (\d+)', divided, config)


def _main(job: Job, device: str, allowance: float, slowest: float | None) -> Json:
    """Rehearse a job and return the measurements."""
    rehearsal = Rehearsal(device, allowance, slowest or math.inf)
    begin = 0.0 if device == "cpu" else time.monotonic()
    import_module(f"metapt.{job.entry}")
    if job.trains:  # what torch loads when it is first used is part of the start
        import torch

        weight = torch.zeros(1, device=device, requires_grad=True)
        weight.sum().backward()  # type: ignore[no-untyped-call]
    start, start_bytes = rehearsal.clock() - begin, memory(device)[0]
    too_slow = False
    try:
        with rehearsed(rehearsal):
            if execute(job, gpus=int(device == "cuda")):
                sys.exit(1)
    except TooSlow:
        too_slow = True
    end = rehearsal.clock() - begin
    process_bytes = process_memory.peak_since_start()
    peak = process_bytes if device == "cpu" else memory(device)[1]
    opened = rehearsal.opened or (end + begin, start_bytes, peak)
    return {
        "too_slow": too_slow,
        "start": start,
        "opened": opened[0] - begin,
        "end": end,
        "left_out": rehearsal.left_out,
        "memory": {"start": start_bytes, "opened": opened[1], "opening_peak": opened[2], "peak": peak},
        "process_bytes": process_bytes,
        "loops": [dataclasses.asdict(loop) for loop in rehearsal.loops],
    }


if __name__ == "__main__":
    request = json.load(sys.stdin)
    print(json.dumps(_main(Job(**request[0]), *request[1:])))
