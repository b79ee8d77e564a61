"""How long the jobs of a config will take, and what memory and disk they need: `metapt estimate`.

One training of each kind runs on data of the real shapes, in a process of its own (`python -m metapt.engine.estimate`),
where each loop takes a few of its steps. The others of the kind, which differ from it in seeds, learning rates and the
like, are taken to need the same. The jobs know nothing of it: `Loops` replaces what their loops count by.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

from metapt.engine import records
from metapt.engine.execute import execute, settings_for
from metapt.engine.jobs import Files, Job, RawData
from metapt.engine.plan import Plan
from metapt.errors import MachineError
from metapt.files import readable
from metapt.machine import THREAD_VARIABLES, memory_in_use, peak_memory_since_start

NO_MATTER = re.compile(
    r"arm|seed|checkpoint|setting|meta_size|split|initial|mean|(\w+_)?lr|l2|step_size|meta_optimizer|meta_settings"
    r"|meta_groups|explosion_factor|clip_norm|average_decay|factor|range"
)
"""Keys of a job's config on which its time and memory hardly depend."""
DATA = {"download": "raw data", "simulate": "raw data", "prepare": "prepared data"}  # stages of the data
MOST_STEPS, LONG = 8, 3.0  # steps of a loop; seconds of a first step after which there is no second one


@dataclass(frozen=True)
class Need:
    """What a job takes: seconds of wall time and of all cores (0 on a GPU), and bytes."""

    seconds: float
    core_seconds: float
    memory: float  # the largest resident set
    disk: float  # what it leaves
    gpu_memory: float = 0.0


OTHER = Need(1.7, 1.7, 150e6, 500e3)  # a job that makes tables and figures, or a download, whose bytes count elsewhere


class Loops:
    """The loops of the job in this process, of which a few steps are taken.

    Time is wall time where `device` is `cuda`. On a CPU it is CPU time, which other jobs on the machine hardly change:
    of the process in the main thread, of the thread in others. A loop takes no further step after `allowance` seconds,
    except a second one where the first was not `LONG`.
    """

    def __init__(self, device: str, allowance: float) -> None:
        self.device, self.allowance = device, allowance
        self.opened: int | None = None  # memory in use when the first loop began
        self.left_out: defaultdict[int, float] = defaultdict(float)  # seconds of steps that were left out, by thread

    def few(self, numbers: Sequence[Any], time_limit: float = math.inf) -> Iterator[Any]:
        """Yield the first few of `numbers`, and count the seconds of the others as left out.

        Each counts the mean of those that were taken, without the first one if there are others; a step of an outer
        loop takes as long as if all steps of the loops inside it were taken. After `time_limit` (s) none begins.
        """
        self.opened = self.memory()[0] if self.opened is None else self.opened
        start, seconds = self.clock(), list[float]()
        for number in numbers:
            begin = self.whole()
            yield number
            seconds.append(self.whole() - begin)
            spent = self.clock() - start
            if len(seconds) == MOST_STEPS or (spent > self.allowance and (len(seconds) > 1 or spent > LONG)):
                break
        left = (len(numbers) - len(seconds)) * fmean(seconds[1:] or seconds or [0.0])
        self.left_out[threading.get_ident()] += min(left, max(0.0, time_limit - sum(seconds)))

    def replace(self) -> None:
        """Let loops take a few steps: those that show progress, minibatches of FT epochs, and chunks of examples.

        It comes before the modules that use them are imported. Algorithm 2 takes steps before and after its warm-up. A
        recorder observes at every step, of which its share is counted.
        """
        import torch

        from metapt.training import progress

        def steps(first: int, last: int, *_: Any, time_limit: float | None = None, **__: Any) -> Iterator[int]:
            return self.few(range(first, last), math.inf if time_limit is None else time_limit)

        progress.steps = steps
        from metapt.training.meta import MetaPretraining
        from metapt.training.recorder import Recorder
        from metapt.twostage import heads

        def iterations(loop: MetaPretraining, *_: Any) -> Iterator[int]:
            first, warmup = loop.iteration, loop.settings.warmup
            for part in (range(first, warmup), range(max(first, warmup), loop.settings.iterations)):
                for loop.iteration in self.few(part):
                    yield loop.iteration

        def in_chunks(function: Any, items: torch.Tensor, size: int) -> torch.Tensor:
            rows = torch.cat([function(chunk) for chunk in self.few(torch.split(items, size))])
            return rows[torch.arange(len(items), device=rows.device) % len(rows)]

        def record(recorder: Recorder, step: int, observe: Any = Recorder.__call__) -> None:
            begin = self.whole()
            observe(recorder, step * recorder.every)
            self.left_out[threading.get_ident()] -= (self.whole() - begin) * (1 - 1 / recorder.every)

        minibatches = heads.minibatches
        heads.minibatches = lambda *given: self.few(list(minibatches(*given)))
        heads.in_chunks, MetaPretraining.iterations, Recorder.__call__ = in_chunks, iterations, record  # type: ignore

    def clock(self) -> float:
        """Return the present time, seconds."""
        if self.device == "cpu":
            return time.process_time() if threading.current_thread() is threading.main_thread() else time.thread_time()
        sys.modules["torch"].cuda.synchronize()
        return time.monotonic()

    def whole(self) -> float:
        """Return the time that it would be if no step of this thread had been left out."""
        return self.clock() + self.left_out[threading.get_ident()]

    def memory(self) -> tuple[int, int]:
        """Return memory in use and its maximum so far, bytes: of the process, or of the GPU."""
        if self.device == "cpu":
            return memory_in_use(), peak_memory_since_start()
        cuda = sys.modules["torch"].cuda
        return cuda.memory_allocated(), cuda.max_memory_allocated()


def take(job: Job, device: str, allowance: float, share: float) -> Need:
    """Run a job in this process, a few steps of each loop, and return what the whole job takes.

    Its inputs hold a `share` of the real data: what follows the imports takes as many times longer, and so do the data
    of memory, which are there when the first loop begins. `device` and `allowance`: see `Loops`.
    """
    loops, gpu = Loops(device, allowance), device == "cuda"
    begin = time.monotonic() if gpu else 0.0
    if job.trains:  # what torch loads when it is first used is part of the start
        loops.replace()
        sys.modules["torch"].zeros(1, device=device, requires_grad=True).sum().backward()
    import_module(f"metapt.{job.entry}")
    start, before = loops.clock() - begin, loops.memory()[0]
    if execute(job, gpus=int(gpu)):
        sys.exit(1)
    work, peak = (loops.clock() - begin - start + sum(loops.left_out.values())) / share, loops.memory()[1]
    opened = peak if loops.opened is None else loops.opened
    memory = before + (opened - before) / share + max(0, peak - opened)
    return Need(
        seconds=start + work / job.threads,
        core_seconds=0.0 if gpu else start + work,
        memory=peak_memory_since_start() if gpu else memory,
        disk=sum(path.stat().st_size for path in map(Path, job.outputs.values())),
        gpu_memory=memory if gpu else 0.0,
    )


def measure(job: Job, inputs: Files, folder: Path, device: str, allowance: float, share: float = 1.0) -> Need:
    """Return what `take` finds in a process of its own for a job that reads `inputs`; its outputs go to `folder`.

    Raises MachineError if the job breaks off.
    """
    config = job.config | ({"checkpoint": f"{folder}/checkpoint.pt"} if job.config.get("checkpoint") else {})
    outputs = {name: f"{folder}/{Path(path).name}" for name, path in job.outputs.items()}
    trial = replace(job, config=config, inputs=inputs, outputs=outputs, record=f"{folder}/run.json", log="")
    folder.mkdir(parents=True, exist_ok=True)
    request = json.dumps([asdict(trial), device, allowance, share])
    command = [sys.executable, "-m", "metapt.engine.estimate"]
    threads = dict.fromkeys(THREAD_VARIABLES, str(job.threads))
    done = subprocess.run(command, input=request, capture_output=True, text=True, env=os.environ | threads)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}, as where memory is short"])[-1]
        raise MachineError(
            f"{job.name} breaks off when a few of its steps are tried: {last}. `metapt run` shows the whole error."
        )
    return Need(**json.loads(done.stdout.splitlines()[-1]))


def grouped(plan: Plan, key: Callable[[Job], str]) -> dict[str, list[str]]:
    """Return the names of the jobs with each key."""
    keys = {name: key(job) for name, job in plan.jobs.items()}
    return {each: [name for name in keys if keys[name] == each] for each in dict.fromkeys(keys.values())}


def kind(job: Job) -> str:
    """Return what a job's time and memory depend on, as text: equal for jobs of which one is measured for all."""

    def shape(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kept = {key: shape(each) for key, each in value.items() if not NO_MATTER.fullmatch(key)}
        return list(kept.values()) if len(kept) == 1 else kept  # the only arm goes by any name

    names = sorted(re.sub(r"[^/]*\d[^/]*", "", name) for name in job.inputs)
    alike = json.dumps([job.stage, job.entry, job.threads, shape(job.config), names], sort_keys=True)
    return alike if job.trains else job.name


def estimate(plan: Plan, folder: Path, device: str, budget: float) -> dict[str, Need]:
    """Measure a training of each kind on a device, and return what each job of a plan takes, by name.

    The steps take `budget` seconds, about, and leave files in `folder`. Other jobs compute on the CPU. Prepared data
    that are there are read; random data stand in for what is not downloaded. Raises MachineError if a job breaks off.
    """
    kinds = grouped(plan, kind)
    chosen = {name: names[len(names) // 2] for names in kinds.values() for name in names}  # the middle one of its kind
    allowance = budget / (4 * len(kinds))  # a job has about four loops

    def standin(job: Job) -> tuple[str, RawData] | None:
        """Return the entry module of the stand-in for what a job prepares from downloaded files, and what that is."""
        if job.stage != "prepare" or all(each.stage != "download" for each in plan.before(job)):
            return None
        entry = f"{job.entry.rpartition('.')[0]}.standin"
        module = import_module(f"metapt.{entry}")
        return entry, module.raw_data(settings_for(module.run, job))

    @cache
    def measured(name: str) -> Need:
        job, inputs, share = plan.jobs[name], dict(plan.jobs[name].inputs), 1.0
        if other := standin(job):
            return measure(replace(job, entry=other[0]), {}, folder / name, "cpu", 0.0)
        for key, path in job.inputs.items():
            maker = plan.maker(path)
            stale = records.stale(Path(maker.record), maker.config, plan.code(maker), maker.inputs)
            if maker.stage != "prepare" or stale or not Path(path).exists():
                measured(chosen[maker.name])
                inputs[key] = f"{folder}/{chosen[maker.name]}/{Path(path).name}"
                share = min(share, other[1].share) if (other := standin(maker)) else share
        return measure(job, inputs, folder / name, device if job.trains else "cpu", allowance, share)

    def need(job: Job) -> Need:
        if not job.trains and job.stage not in ("simulate", "prepare"):
            return OTHER
        found = measured(chosen[job.name])
        if other := standin(job):
            raw = other[1]
            disk = found.disk / raw.share + raw.size
            found = replace(found, seconds=raw.seconds, core_seconds=raw.seconds, disk=disk)
        return found

    return {job.name: need(job) for job in plan.jobs.values()}


def title(job: Job) -> str:
    """Return the kind of a job in words: the stage, and of trainings the domain."""
    if not job.trains:
        return DATA.get(job.stage, "tables and figures")
    study = job.entry.removesuffix(".run").rpartition(".")[2].replace("_", " ")
    words = {"pretrain": "PT", "finetune": "FT"}.get(job.stage, study)
    return f"{job.config['domain'].upper()} {words}"


def text(plan: Plan, needs: Mapping[str, Need], cores: int, gpus: int) -> str:
    """Return tables of experiments without the jobs of their data, and of kinds of jobs, for so many cores and GPUs."""
    on_gpu = any(need.gpu_memory for need in needs.values())

    def row(names: list[str], time: str) -> dict[str, str]:
        jobs, own = [plan.jobs[name] for name in names], [needs[name] for name in names]
        gpu_seconds = sum(need.seconds for need in own if need.gpu_memory)
        held = sum(needs[job.name].seconds * (cores if job.alone else min(cores, job.threads)) for job in jobs)
        longest = max(need.seconds for need in own)
        wall = max(longest, held / cores, gpu_seconds / max(1, gpus))
        return {
            "jobs": str(len(jobs)),
            "core h": _hours(sum(need.core_seconds for need in own)),
            **({"GPU h": _hours(gpu_seconds)} if on_gpu else {}),
            time: _hours(wall if time == "wall h" else longest),
            "memory": readable(round(max(need.memory for need in own))),
            **({"of a GPU": readable(round(max(need.gpu_memory for need in own)))} if on_gpu else {}),
            "disk": readable(round(sum(need.disk for need in own))),
        }

    def table(kind: str, parts: dict[str, list[str]], time: str) -> str:
        rows = [{kind: name} | row(names, time) for name, names in parts.items()]
        lines = [list(rows[0]), *(list(each.values()) for each in rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines)

    behind = {name: [job for job in plan.needed(end) if job.stage not in DATA] for name, end in plan.summaries.items()}
    experiments = {name: [job.name for job in jobs] for name, jobs in behind.items()}
    experiments["in all, data included"] = list(plan.jobs)
    machine = f"Wall time where jobs fill these cores: {cores}" + (f", GPUs: {gpus}." if on_gpu else ".")
    counted = "A job of several experiments counts in each. Memory is the largest job's."
    tables = table("experiment", experiments, "wall h"), table("kind of job", grouped(plan, title), "longest h")
    return f"{machine}\n\n{tables[0]}\n\n{counted}\n\n{tables[1]}\n"


def _hours(seconds: float) -> str:
    """Return hours with three digits, but whole ones from 100 on."""
    hours = seconds / 3600
    return f"{hours:,.{2 if hours < 10 else 1 if hours < 100 else 0}f}"


if __name__ == "__main__":
    request = json.load(sys.stdin)
    print(json.dumps(asdict(take(Job(**request[0]), *request[1:]))))
