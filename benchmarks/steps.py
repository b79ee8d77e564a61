"""Steps that are timed in turn, and a table that shows each row as soon as it is measured.

A row of a step has three more columns on a GPU: the time until Python has queued the step (with the waits of the step
itself), the GPU's own time, and the number of kernels. For its own time the GPU is kept busy until the step is queued.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor

from limit import Limit, Step, flop, moved
from metapt.hypergrad.layers.precision import computing_in
from metapt.machine import keep_freed_memory, machine_name
from metapt.training.capture import CALLS_BEFORE
from metapt.twostage.finetuning import Transfer

PERIOD = 10
"""PT steps and a meta-update."""
_CYCLES = 2e9
"""A second of a GPU has at most so many."""


class Table:
    """A table in Markdown, printed row by row.

    Args:
        arguments: of the command: `rounds`, `threads`, `device`, `precision` and, to keep the rows, `json`.
        group: title of the first column.
    """

    def __init__(self, arguments: argparse.Namespace, group: str) -> None:
        self.arguments, self.on_gpu = arguments, arguments.device == "cuda"
        self._rows: list[dict[str, Any]] = []
        torch.set_num_threads(arguments.threads)
        keep_freed_memory()
        print(f"- command: python {shlex.join(sys.argv)}")
        print(
            f"- machine: {machine_name(arguments.device)}, {os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}"
        )
        print(f"- {arguments.threads} threads, {arguments.rounds} rounds; torch {torch.__version__}\n")
        titles = [group, "what", "median (min-max)", "at most"]
        titles += ["queued, s", "GPU, s", "kernels"] if self.on_gpu else []
        print(f"| {' | '.join(titles)} |\n|{' --- |' * len(titles)}", flush=True)

    def row(self, group: object, what: str, values: list[float], bar: str = "", step: Step | None = None) -> None:
        """Show values of all rounds, and what they should be at most; on a GPU, more about the step."""
        texts = [str(group), what, f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})", bar]
        queued, own, kernels = on_gpu(step) if step and self.on_gpu else (None, None, None)
        if self.on_gpu:
            texts += ["" if value is None else f"{value:.3g}" for value in (queued, own)] + [str(kernels or "")]
        print(f"| {' | '.join(texts)} |", flush=True)
        more = {"queued_s": queued, "gpu_s": own, "kernels": kernels}
        self._rows.append({"group": group, "what": what, "values": values} | more)
        if self.arguments.json:
            self.arguments.json.write_text(json.dumps(self._rows, indent=1))

    def in_turn(self, *steps: Step) -> list[list[float]]:
        """Return the seconds of each step in each round. The steps take turns, after a warm-up."""
        for step in steps:
            step()
        turns = [[self.seconds(step) for step in steps] for _ in range(self.arguments.rounds)]
        return [list(values) for values in zip(*turns, strict=True)]

    def alone(self, function: Callable[..., float], *arguments: Any) -> float:
        """Return `function(*arguments)`; on a CPU of a process of its own that returns freed tensors to the system."""
        if self.on_gpu:
            return function(*arguments)
        os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(function, arguments)

    def seconds(self, step: Step) -> float:
        """Return the wall time of a step."""
        gc.collect()
        synchronise = torch.cuda.synchronize if self.on_gpu else lambda: None
        synchronise()
        start = time.perf_counter()
        step()
        synchronise()
        return time.perf_counter() - start


def on_gpu(step: Step) -> tuple[float, float, int]:
    """Return the time until a step is queued, the GPU's own time, both in seconds, and the number of kernels."""
    gc.collect()
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    queued = time.perf_counter() - start
    torch.cuda.synchronize()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(_CYCLES * queued))
    first.record()
    step()
    last.record()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    return queued, first.elapsed_time(last) / 1e3, sum(map(_is_kernel, profile.events() or []))


def _is_kernel(event: Any) -> bool:
    """Return whether a profiler's event is a kernel, not a copy, a wait or a name of several kernels."""
    other = event.name.startswith(("Mem", "Context", "Stream", "Event")) or getattr(event, "is_user_annotation", False)
    return event.device_type == torch.autograd.DeviceType.CUDA and not other


def step_rows(table: Table, group: object, steps: dict[str, Step], parameters: Iterable[Tensor], bar: str) -> None:
    """Measure a plain PT step, in all precisions that there are, meta-updates and an FT step.

    Args:
        table: takes the rows.
        group: the first column.
        steps: "plain" (on a GPU also "plain, tf32" and "plain, bfloat16"), "bare" (the encoder's forward and backward
            pass), "neumann", "identity", "recomputed", "reused" with "along", the PT step that follows it, "finetune";
            some of them also "captured".
        parameters: those that PT trains.
        bar: what the plain PT step over its counted limit should be at most.
    """
    precision, plain = table.arguments.precision, steps["plain"]
    seconds, bare = table.in_turn(plain, steps["bare"])
    table.row(group, f"plain PT step, {precision}, s", seconds, step=plain)
    for name in ("tf32", "bfloat16"):
        if other := steps.get(f"plain, {name}"):
            table.row(group, f"plain PT step, {name}, s", *table.in_turn(other), step=other)
    table.row(group, "bare encoder, forward and backward, s", bare)
    table.row(group, "plain PT step / bare encoder", ratios(seconds, bare), "1.15")
    work, state = flop(plain), moved(parameters)
    limit = Limit(torch.bfloat16 if precision == "bfloat16" else torch.float32, table.arguments.device)
    seconds, least = [], []
    for _ in range(table.arguments.rounds):
        seconds.append(table.seconds(plain))
        with computing_in(precision, torch.device(table.arguments.device)):
            least.append(limit.seconds(work, state))
    table.row(group, "plain PT step, GFLOP/s", [work / 1e9 / each for each in seconds])
    table.row(group, "plain PT step / its counted limit", ratios(seconds, least), bar)
    for name, what, most in (("neumann", "Neumann 1", "1.50"), ("identity", "identity", "1.27")):
        seconds, update = table.in_turn(plain, steps[name])
        table.row(group, f"meta-update, {what}, s", update, step=steps[name])
        table.row(group, f"meta / plain per {PERIOD} PT steps, {what}", period(ratios(update, seconds)), most)
        table.row(group, "the same by counted FLOP", period([flop(steps[name]) / work]))
    seconds, reused, along = table.in_turn(plain, steps["reused"], steps["along"])
    table.row(group, "meta-update, Neumann 1, whose PT gradient is reused, s", reused, step=steps["reused"])
    both = [update + step for update, step in zip(reused, along, strict=True)]
    saved = [value - 1 / PERIOD for value in period(ratios(both, seconds))]
    table.row(group, f"meta / plain per {PERIOD} PT steps, Neumann 1, gradient reused", saved, "1.40")
    once, again = table.in_turn(steps["neumann"], steps["recomputed"])
    table.row(group, "meta-update, Neumann 1, recomputed, s", again, step=steps["recomputed"])
    table.row(group, "meta-update, recomputed / Neumann 1", ratios(again, once), "1.2")
    table.row(group, "FT step, s", *table.in_turn(steps["finetune"]), step=steps["finetune"])
    for name, what in (("plain", "plain PT step"), ("neumann", "meta-update, Neumann 1"), ("finetune", "FT step")):
        if step := steps.get(f"{name}, captured"):
            for _ in range(CALLS_BEFORE + 2):  # the first step of a trainer, and the first replay, are longer
                step()
            seconds, captured = table.in_turn(steps[name], step)
            table.row(group, f"{what}, captured, s", captured, step=step)
            table.row(group, f"{what}, captured / not", ratios(captured, seconds))


def memory_rows(table: Table, group: object, peak: Callable[[str], float], others: Iterable[str] = ()) -> None:
    """Measure peak memory; `peak` returns that of a step in GB."""
    seen = {name: peak(name) for name in ("plain", "neumann")}
    table.row(group, "peak memory, plain PT step, GB", [seen["plain"]])
    table.row(group, "peak memory, meta-update, Neumann 1 / plain", [seen["neumann"] / seen["plain"]])
    table.row(group, "peak memory, meta-update, recomputed / plain", [peak("recomputed") / seen["plain"]], "2.0")
    for name in ("identity", *others):
        table.row(group, f"peak memory, {name} / plain", [peak(name) / seen["plain"]])


def finetune_step(transfer: Transfer) -> Step:
    """Return a step of FT of a whole network on the first minibatch of an epoch."""
    return lambda: transfer.step(next(transfer.minibatches()))


def ratios(top: list[float], bottom: list[float]) -> list[float]:
    """Return the ratios of times in the same round."""
    return [a / b for a, b in zip(top, bottom, strict=True)]


def period(updates: list[float]) -> list[float]:
    """Return the time of a period over that of its PT steps, for meta-updates in units of a PT step."""
    return [1 + update / PERIOD for update in updates]
