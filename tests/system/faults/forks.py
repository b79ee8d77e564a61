"""Run jobs in processes that can be killed: `python forks.py`, one request per line of stdin, one answer per line.

The process imports torch once and forks a child for each job, so that an attempt costs no imports. A child may be
killed with SIGKILL after a time, and may meet a fault, one of `FAULTS`.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import metapt.domains.ecg.data.prepare
import metapt.domains.ecg.finetune
import metapt.domains.ecg.pretrain
import metapt.domains.ppi.pretrain
import metapt.fetching
import metapt.training.meta as meta_loop
from metapt.domains.ecg.problem import SimclrProblem
from metapt.engine.execute import execute
from metapt.engine.jobs import Job
from metapt.training.checkpoint import Checkpoint
from metapt.training.interruption import Every

POLL = 0.001


def checkpoint_always() -> None:
    """A checkpoint after each step, where it is every minute else."""
    Every.__call__ = lambda self: True  # type: ignore[method-assign]


def impatient() -> None:
    """Servers are waited for as long as tests can."""
    metapt.fetching.TIMEOUT, metapt.fetching.PAUSES = 0.5, (0.01,)


def killed_at_fourth_checkpoint() -> None:
    """The process kills itself when a fourth checkpoint is written."""
    whole, saves = Checkpoint.save, iter(range(10**9))

    def save(self: Checkpoint, state: dict[str, Any], *processes: Any) -> None:
        whole(self, state, *processes)
        if next(saves) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoint.save = save  # type: ignore[method-assign]


def jumping_clock() -> None:
    """The wall clock jumps by up to three years at each look."""
    real, choose = time.time, random.Random(0)
    time.time = lambda: real() + choose.uniform(-1e8, 1e8)


def one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def nan_loss() -> None:
    """The PT loss of the fifth PT step is not a number, nor are those after it."""
    whole, steps = SimclrProblem.pretrain_loss, iter(range(10**9))

    def broken(self: SimclrProblem, pretrained: Any, meta: Any, batch: Any) -> torch.Tensor:
        loss = whole(self, pretrained, meta, batch)
        is_step = not any(value.requires_grad for value in meta.values())  # else it is a hypergradient's
        return loss * math.nan if is_step and next(steps) >= 4 else loss

    SimclrProblem.pretrain_loss = broken  # type: ignore[method-assign]


def _nan_hypergradients(which: Callable[[int], bool]) -> None:
    whole, calls = meta_loop.hypergradient, iter(range(10**9))

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


FAULTS = (
    checkpoint_always,
    impatient,
    killed_at_fourth_checkpoint,
    jumping_clock,
    one_core,
    nan_loss,
    one_nan_hypergradient,
    nan_hypergradients,
)


def start(request: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    errors = os.open(request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    status = 70
    try:
        for fault in FAULTS:
            if fault.__name__ in request["faults"]:
                fault()
        status = execute(Job(**request["job"]))
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
    torch.set_num_threads(1)
    torch.optim.Adam([torch.zeros(1)])  # imports what torch would import in each child
    for line in sys.stdin:
        requests = json.loads(line)
        began = time.monotonic()
        statuses = ended([start(request) for request in requests["jobs"]], requests["kill_after"])
        print(json.dumps({"statuses": statuses, "seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main()
