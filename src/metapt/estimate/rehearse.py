"""The rehearsal of a job in a process of its own: `python -m metapt.estimate.rehearse`, its request on stdin."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from metapt.errors import MachineError
from metapt.execute import execute
from metapt.jobs import Job, Json
from metapt.machine import THREAD_VARIABLES
from metapt.training.rehearsal import Rehearsal, TooSlow, memory, rehearsed

SLOW = 10.0
"""Seconds of a step on a CPU from which smaller minibatches are taken instead."""
PART = 8
"""So many times smaller they are."""


@dataclass(frozen=True)
class Rehearsed:
    """What a job was measured to take.

    Attributes:
        start_seconds: from the start of the process until its modules are imported: CPU time, on a GPU wall time.
        work_seconds: after that, in all threads.
        memory_bytes: largest resident set of the process.
        gpu_memory_bytes: 0 without a GPU.
        outputs: name -> the file that the rehearsal left.
        disk_bytes: of outputs, record and log.
        extrapolated: whether it computed on a part of the data, or on smaller minibatches.
        loops: label, steps taken, steps left out and seconds per step of each loop.
    """

    start_seconds: float
    work_seconds: float
    memory_bytes: float
    gpu_memory_bytes: float
    outputs: dict[str, str]
    disk_bytes: float
    extrapolated: bool
    loops: list[Json]


def rehearse(
    job: Job,
    inputs: Mapping[str, str],
    folder: Path,
    device: str,
    allowance: float,
    share: float = 1.0,
    slow: bool = False,
) -> Rehearsed:
    """Run a job in a process of its own, a few steps of each loop.

    Args:
        job: the job.
        inputs: name -> file to read instead.
        folder: for what it leaves.
        device: `cpu` or `cuda`.
        allowance: seconds, see `Rehearsal`.
        share: of the real data that the inputs hold; what comes after the imports takes so many times longer.
        slow: whether its steps are known to be slow on a CPU, so that it takes smaller minibatches at once.

    Raises:
        MachineError: the job broke off, with the last line of its log.
    """
    on_cpu = device == "cpu"
    parts = PART if slow and on_cpu and _divisible(job.config) else 1
    changes: Json = {"checkpoint": f"{folder}/checkpoint.pt"} if "checkpoint" in job.config else {}
    rehearsal = dataclasses.replace(
        job,
        config=(_divided(job.config) if parts > 1 else job.config) | changes,
        inputs=dict(inputs),
        outputs={name: f"{folder}/{Path(path).name}" for name, path in job.outputs.items()},
        record=f"{folder}/run.json",
        log=f"{folder}/log.txt",
    )
    slowest = SLOW if on_cpu and parts == 1 and _divisible(job.config) else None
    request = {"job": dataclasses.asdict(rehearsal), "device": device, "allowance": allowance, "slowest": slowest}
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "metapt.estimate.rehearse"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=os.environ | dict.fromkeys(THREAD_VARIABLES, str(job.threads)),
    )
    if done.returncode:
        last = (
            done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}, as when memory is short"]
        )[-1]
        raise MachineError(f"{job.name} breaks off when it is tried: {last}")
    seen = json.loads(done.stdout.splitlines()[-1])
    if seen["too_slow"]:
        return rehearse(job, inputs, folder, device, allowance, share, slow=True)
    return _rehearsed(rehearsal, seen, share, parts)


def _rehearsed(job: Job, seen: Json, share: float, parts: int) -> Rehearsed:
    """Return what the measurements mean for the whole data and whole minibatches.

    In PT and FT, minibatches that are smaller are as many times more. A study takes as many of them as before.
    """
    longer = parts if job.stage == "study" else 1

    start, opened, end = seen["start"], seen["opened"], seen["end"]
    work = (opened - start + longer * (end - opened + seen["left_out"])) / share

    def peak(start: float, opened: float, opening_peak: float, peak: float) -> float:
        held = start + (opened - start) / share
        return max(start + (opening_peak - start) / share, held + parts * max(0.0, peak - opened))

    cuda = seen["device"] == "cuda"
    process = (seen["start_bytes"], seen["opened_bytes"], seen["opening_peak_bytes"], seen["peak_bytes"])
    host = (seen["start_bytes"], seen["peak_bytes"], seen["peak_bytes"], seen["peak_bytes"])
    files = [Path(path) for path in (*job.outputs.values(), job.record, job.log)]
    return Rehearsed(
        start_seconds=start,
        work_seconds=work,
        memory_bytes=peak(*host) if cuda else peak(*process),
        gpu_memory_bytes=peak(0, seen["opened_bytes"], seen["opening_peak_bytes"], seen["gpu_peak_bytes"])
        if cuda
        else 0,
        outputs=job.outputs,
        disk_bytes=sum(path.stat().st_size for path in files if path.is_file()),
        extrapolated=share < 1 or parts > 1,
        loops=seen["loops"],
    )


def _divisible(config: Any) -> bool:
    """Return whether all minibatches of a job have a size in its config, so that they can be made smaller."""
    if isinstance(config, dict):
        own = config.get("batch_size", 0) is not None and config.get("folds") is None
        return own and all(map(_divisible, config.values()))
    return True


def _divided(config: Any) -> Any:
    """Return a job's config with smaller minibatches."""
    if not isinstance(config, dict):
        return config
    return {key: max(1, value // PART) if key == "batch_size" else _divided(value) for key, value in config.items()}


def _main(request: Json) -> Json:
    """Rehearse the job of a request and return the measurements."""
    job, device = Job(**request["job"]), request["device"]
    cuda = device == "cuda"
    rehearsal = Rehearsal(device, request["allowance"], request["slowest"] or math.inf)
    begin = time.monotonic() if cuda else 0.0
    import_module(f"metapt.{job.entry}")
    start, start_bytes = rehearsal.clock() - begin, memory("cpu")[0]
    too_slow = False
    try:
        with rehearsed(rehearsal):
            if execute(job, gpus=int(cuda)):
                sys.exit(1)
    except TooSlow:
        too_slow = True
    end = rehearsal.clock()
    return {
        "device": device,
        "too_slow": too_slow,
        "start": start,
        "opened": (end if rehearsal.opened is None else rehearsal.opened) - begin,
        "end": end - begin,
        "left_out": rehearsal.left_out,
        "start_bytes": start_bytes,
        "opened_bytes": rehearsal.opened_bytes,
        "opening_peak_bytes": rehearsal.opening_peak_bytes,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "gpu_peak_bytes": memory(device)[1] if cuda else 0,
        "loops": [dataclasses.asdict(loop) for loop in rehearsal.loops],
    }


if __name__ == "__main__":
    print(json.dumps(_main(json.load(sys.stdin))))
