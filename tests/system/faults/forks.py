"""Run jobs in processes that can be killed: `python forks.py`, one request per line of stdin, one answer per line.

The process imports torch once and forks a child for each job, so that an attempt costs no imports. A child may be
killed with SIGKILL after a time or at a checkpoint, and may meet faults of `FAULTS`.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

import metapt.training.meta as meta_loop
from metapt.domains.ecg.problem import SimclrProblem
from metapt.engine.execute import execute
from metapt.engine.jobs import Job
from metapt.training.checkpoint import Checkpoint
from metapt.training.interruption import Every

POLL = 0.001
ENTRIES = (
    *(f"metapt.domains.ecg.{name}" for name in ("data.prepare", "finetune", "pretrain")),
    *(f"metapt.domains.mnist.experiments.{name}.run" for name in ("bptt", "example_weighting", "rotation_mean")),
    *("metapt.domains.ppi.pretrain", "metapt.fetching"),
)


def checkpoint_always() -> None:
    """A checkpoint after each step, where it is every minute else."""
    Every.__call__ = lambda self: True  # type: ignore[method-assign]


def killed_at(number: int) -> None:
    """The process kills itself when it has written so many checkpoints."""
    whole, saves = Checkpoint.save, itertools.count(1)

    def save(self: Checkpoint, state: dict[str, Any], *processes: Any) -> None:
        whole(self, state, *processes)
        if next(saves) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoint.save = save  # type: ignore[method-assign]


def told_to_end(number: int, at: int) -> None:
    """The process sends itself a signal when it looks that often whether a checkpoint is due."""
    whole, looks = Every.__call__, itertools.count(1)

    def due(self: Every) -> bool:
        if next(looks) == at:
            os.kill(os.getpid(), number)
        return whole(self)

    Every.__call__ = due  # type: ignore[method-assign]


def jumping_clock() -> None:
    """The wall clock jumps by up to three years at each look."""
    real, choose = time.time, random.Random(0)
    time.time = lambda: real() + choose.uniform(-1e8, 1e8)


def one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def nan_loss() -> None:
    """The PT loss of the fifth PT step is not a number, nor are those after it."""
    whole, steps = SimclrProblem.pretrain_loss, itertools.count()

    def broken(self: SimclrProblem, pretrained: Any, meta: Any, batch: Any) -> torch.Tensor:
        loss = whole(self, pretrained, meta, batch)
        is_step = not any(value.requires_grad for value in meta.values())  # else it is a hypergradient's
        return loss * math.nan if is_step and next(steps) >= 4 else loss

    SimclrProblem.pretrain_loss = broken  # type: ignore[method-assign]


def _nan_hypergradients(which: Callable[[int], bool]) -> None:
    whole, calls = meta_loop.hypergradient, itertools.count()

    def broken(*arguments: Any, **words: Any) -> Any:
        result = whole(*arguments, **words)
        if not which(next(calls)):
            return result
        return result._replace(gradient={name: value * math.nan for name, value in result.gradient.items()})

    meta_loop.hypergradient = broken


def one_nan_hypergradient() -> None:
    _nan_hypergradients(lambda call: call == 1)


def nan_hypergradients() -> None:
    _nan_hypergradients(lambda call: True)


FAULTS = {
    fault.__name__: fault
    for fault in (checkpoint_always, jumping_clock, one_core, nan_loss, one_nan_hypergradient, nan_hypergradients)
}


def start(job: dict[str, Any], faults: list[str], kill_at: int | None, told: list[int] | None) -> int:
    child = os.fork()
    if child:
        return child
    errors = os.open(job.pop("stderr"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    status = 70
    try:
        for fault in faults:
            FAULTS[fault]()
        if kill_at is not None:
            killed_at(kill_at)
        if told is not None:
            told_to_end(*told)
        status = execute(Job(**job))
        sys.stderr.flush()
    finally:
        os._exit(status)


def ended(children: list[int], kill_after: float | None) -> list[int]:
    """Waits for the children, kills them when their time has come; their statuses, negative after a signal."""
    began = time.monotonic()
    statuses: dict[int, int] = {}
    while len(statuses) < len(children):
        for child in children:
            if child not in statuses:
                found, status = os.waitpid(child, os.WNOHANG)
                if found:
                    statuses[child] = os.waitstatus_to_exitcode(status)
                elif kill_after is not None and time.monotonic() - began >= kill_after:
                    os.kill(child, signal.SIGKILL)
                    statuses[child] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(POLL)
    return [statuses[child] for child in children]


def main() -> None:
    for name in ENTRIES:  # imported here once, so that no child has to
        import_module(name)
    torch.set_num_threads(1)
    torch.optim.Adam([torch.zeros(1)])  # imports what torch would import in each child
    for line in sys.stdin:
        request = json.loads(line)
        began = time.monotonic()
        children = [start(job, *(request[name] for name in ("faults", "kill_at", "told"))) for job in request["jobs"]]
        statuses = ended(children, request["kill_after"])
        print(json.dumps({"statuses": statuses, "seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main()
