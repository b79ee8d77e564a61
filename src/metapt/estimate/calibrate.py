"""Timing of steps on the machine at hand, within a budget."""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from tqdm import tqdm

from metapt.errors import MachineError
from metapt.estimate.work import Step
from metapt.stages import THREAD_VARIABLES
from metapt.training.measure import Measured

_ENOUGH = 2.0  # seconds; a step that takes longer is taken once
_REPEATS = 5
_SHORT = 0.5  # seconds, which the calls at the smallest share may take


@dataclass(frozen=True)
class Timing:
    """What a whole step takes.

    Attributes:
        seconds: core-seconds (which other jobs on the machine hardly change); on a GPU, wall time.
        peak_bytes: memory above what was in use before, of the GPU on a GPU.
        share: of the real size at which it was measured; less than 1 says that both were extrapolated.
    """

    seconds: float
    peak_bytes: float
    share: float


@dataclass(frozen=True)
class Start:
    """What a job takes before its work begins: core-seconds, and the memory of the process, bytes."""

    seconds: float
    peak_bytes: float


@dataclass(frozen=True)
class _Taken:
    seconds: float
    peak_bytes: float


def start(domain: str, device: str) -> Start:
    """Starts a process that imports what a domain's stages import.

    Raises:
        MachineError: it can't.
    """
    load = f"import metapt.stages, metapt.{domain}.domain, metapt.{domain}.problem, torch"
    use = f"torch.optim.Adam([torch.zeros(1, device='{device}', requires_grad=True)])"  # which imports more of torch
    unit = 1 if sys.platform == "darwin" else 1024
    show = f"import resource, time; print(time.process_time(), {unit} * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    done = subprocess.run(
        [sys.executable, "-c", f"{load}; {use}; {show}"],
        capture_output=True,
        text=True,
        env=os.environ | dict.fromkeys(THREAD_VARIABLES, "1"),
    )
    if done.returncode:
        raise MachineError(f"a process that imports the modules of {domain} fails here: {done.stderr.strip().splitlines()[-1]}")
    return Start(*map(float, done.stdout.split()))


def calibrate(steps: dict[str, Step], device: str, budget: float) -> dict[str, Timing]:
    """Times each step, at its real size where the budget allows.

    Each is first taken at its smallest share. Then those that have a smaller one are taken at a larger, the cheapest first, so
    that what it leaves of its part of the budget is the others'.

    Args:
        steps: by the name under which they are known.
        device: `cpu` (one thread) or `cuda`.
        budget: core-seconds, on a GPU seconds; kept as far as twice the smallest shares allow.
    """
    clock = _clock(device)
    begin, threads = clock(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        first, found = {}, {}
        with tqdm(total=len(steps), file=sys.stderr, disable=None, dynamic_ncols=True, leave=False) as bar:
            for name, step in steps.items():
                bar.set_description(name)
                first[name] = _steady(step.prepare(step.smallest), device, _SHORT)
                bar.update()
            parts = [name for name, step in steps.items() if step.smallest < 1]
            bar.reset(len(parts))
            for done, name in enumerate(sorted(parts, key=lambda each: first[each].seconds / steps[each].smallest)):
                bar.set_description(f"{name}, at its size")
                found[name] = _whole(steps[name], device, first[name], (budget - clock() + begin) / (len(parts) - done))
                bar.update()
    finally:
        torch.set_num_threads(threads)
    return {name: found.get(name) or Timing(first[name].seconds, first[name].peak_bytes, 1.0) for name in steps}


def _whole(step: Step, device: str, first: _Taken, allowance: float) -> Timing:
    """The step at the largest share that the allowance has room for, at least twice the smallest; `first`: at the smallest.

    Where that is less than 1, what the whole takes lies on the line through both: a part of a step, the optimiser's say, does not
    grow with the share.
    """
    share = allowance * step.smallest / (2 * max(first.seconds, 1e-6))  # a warm-up and what counts
    share = min(1.0, max(share, 2 * step.smallest))
    taken = _steady(step.prepare(share), device, allowance)

    def whole(small: float, large: float) -> float:
        slope = (large - small) / (share - step.smallest)
        return min(large / share, large + max(0.0, slope) * (1 - share))

    return Timing(whole(first.seconds, taken.seconds), whole(first.peak_bytes, taken.peak_bytes), share)


def _steady(work: Callable[[], object], device: str, allowance: float) -> _Taken:
    """The median of a few calls after a warm-up, as far as the allowance goes, and the highest peak."""
    _give_back()
    taken = [_once(work, device)]
    if taken[0].seconds < _ENOUGH or device == "cuda":  # where a first call loads kernels
        repeats = max(1, min(_REPEATS, int(allowance / max(taken[0].seconds, 1e-6)) - 1))
        taken += [_once(work, device) for _ in range(repeats)]
    # What the warm-up took of memory may have stayed with the process.
    peak = max(each.peak_bytes for each in taken)
    return _Taken(statistics.median(each.seconds for each in taken[1:] or taken), peak)


def _once(work: Callable[[], object], device: str) -> _Taken:
    clock = _clock(device)
    with Measured(device) as measured:
        begin = clock()
        work()
        seconds = clock() - begin
    return _Taken(measured.seconds if measured.on_gpu else seconds, measured.peak_bytes)


def _clock(device: str) -> Callable[[], float]:
    """Core-seconds don't grow when other jobs take the cores; a GPU's time is waited for."""
    return time.process_time if device == "cpu" else time.monotonic


def _give_back() -> None:
    """Freed memory to the system, where it can be told to: else it hides what the warm-up takes."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
