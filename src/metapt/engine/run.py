"""Run jobs without Snakemake: those of a config, or one from its record."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from metapt.engine import records
from metapt.engine.config import load
from metapt.engine.domain import DOMAINS, domain
from metapt.engine.execute import code_of, execute
from metapt.engine.jobs import Job
from metapt.engine.plan import Plan, Remaining, duration, planned
from metapt.engine.schema import did_you_mean
from metapt.errors import ConfigError, DataError
from metapt.training.interruption import passed_on, told_to_end


@passed_on()
def run(
    configs: Sequence[Path], targets: Sequence[str], device: str | None, threads: int | None, jobs_at_once: int = 1
) -> int:
    """Run the jobs of a config, except those whose records are up to date.

    Raises ConfigError as `metapt.engine.config.load`, and if no job of the config makes a target.

    SIGTERM, SIGUSR1 and SIGINT (Ctrl-C) end the jobs that run, as `execute` says, and no other job begins.

    Args:
        configs: YAML files, each merged into the ones before it.
        targets: experiments, domains or files; all jobs if there are none.
        device: `cpu` or `cuda`, for jobs that train; if None, `cuda` where the config says `require_gpu`.
        threads: CPU threads of a job; if None, as planned.
        jobs_at_once: the number of jobs that run at a time, each in a process of its own; they share the GPU. A job
            of the plan that is `alone`, such as one of MNIST's `bptt`, runs alone.

    Returns:
        Exit status: 0, or 1 after the first job that failed and logged its error; jobs that run then are finished.
        1 also after a signal that has left a job to do.
    """
    config = load(configs)
    plan = planned(config)
    waiting = _behind(plan, targets)
    count, number, failed = len(waiting), 0, False
    cuda = config.require_gpu if device is None else device == "cuda"
    remaining, left = Remaining(), due(plan, waiting)
    running: dict[str, tuple[Job, BaseProcess, float]] = {}
    while waiting or running:
        beside = [each for each, _, _ in running.values()]
        full = failed or told_to_end() or len(beside) == jobs_at_once
        job = None if full else _next(plan, waiting, beside)
        if job is None:
            if not running:
                return 1
            failed |= not _finish(running, remaining)
            continue
        waiting.remove(job)
        number += 1
        reason = _reason(plan, job)
        now = time.monotonic()
        undone = [(each, 0.0) for each in [job, *waiting] if each.name in left]
        undone += [(each, now - start) for each, _, start in running.values()]
        seconds = remaining.seconds((each, 1.0 if each.alone else 1 / jobs_at_once, took) for each, took in undone)
        rest = f" ({duration(seconds)} left)" if seconds else ""
        print(f"{number}/{count} {job.name}: {reason or 'up to date'}{rest}", flush=True)
        if reason is not None:
            # A process for each job, since libraries read the threads when imported, and the record counts its memory.
            given = replace(job, threads=threads or job.threads)
            arguments = given, int(cuda and job.trains), config.require_gpu, plan.code(job)
            process = get_context("spawn").Process(target=_execute, args=arguments)
            # A terminal sends Ctrl-C to all processes of a command. Jobs leave it to this one, which tells them to end.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            process.start()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if told_to_end():  # the signal may have come before the process was there
                process.terminate()
            running[job.name] = job, process, time.monotonic()
    return int(failed)


def _next(plan: Plan, waiting: list[Job], running: list[Job]) -> Job | None:
    """Return the first job that depends on none that waits or runs, and may run beside these; None if there is none.

    The jobs that wait come after those that they depend on, as in `Plan.needed`.
    """
    if any(job.alone for job in running):
        return None
    unfinished = {job.name for job in [*waiting, *running]}
    for job in waiting:
        if not (job.alone and running) and not any(each.name in unfinished for each in plan.before(job)):
            return job
    return None


def _finish(running: dict[str, tuple[Job, BaseProcess, float]], remaining: Remaining) -> bool:
    """Wait for a job to end, and return whether all that have ended were successful."""
    wait([process.sentinel for _, process, _ in running.values()])
    successful = True
    for name, (job, process, start) in list(running.items()):
        if process.exitcode is None:
            continue
        del running[name]
        if process.exitcode != 0:
            end = "was told to end, and is not finished" if told_to_end() else "has failed"
            print(f"error: {name} {end}; its log is {job.log}", file=sys.stderr)
            successful = False
        else:
            remaining.finished(job, time.monotonic() - start)
    return successful


def due(plan: Plan, jobs: list[Job]) -> set[str]:
    """Return the names of the jobs that have to run, or whose inputs may change since they are made again.

    A job comes after those that it depends on, as in `Plan.needed`.
    """
    found: set[str] = set()
    for job in jobs:
        if found & {each.name for each in plan.before(job)} or _reason(plan, job):
            found.add(job.name)
    return found


def _behind(plan: Plan, targets: Sequence[str]) -> list[Job]:
    """Return the jobs that make the targets and those that they depend on, each once, in an order to run them."""
    ends = [job for target in targets for job in _ends(plan, target)] if targets else [plan.jobs["page"]]
    return list({job.name: job for end in ends for job in plan.needed(end.name)}.values())


def _ends(plan: Plan, target: str) -> list[Job]:
    if "/" in target:
        return [plan.maker(os.path.normpath(target))]
    if target in DOMAINS:
        own = [plan.summary(each) for each in plan.summaries if each.startswith(f"{target}_")]
        if not own:
            raise ConfigError(
                f"the config has no experiment of {target}: name one in the section {target}, or take a config that "
                f"has one."
            )
        return own
    known = [f"{name}_{key}" for name in DOMAINS for key in domain(name).experiments]
    if target not in known:
        raise ConfigError(
            f"{target} is no target{did_you_mean(target, known)}: name a file, a domain or an experiment."
        )
    return [plan.summary(target)]


def _reason(plan: Plan, job: Job) -> str | None:
    """Return why a job has to run; None if it need not."""
    missing = [path for path in job.outputs.values() if not Path(path).exists()]
    if missing:
        return f"{missing[0]} is not there"
    return records.stale(Path(job.record), job.config, plan.code(job), job.inputs)


def _execute(job: Job, gpus: int, require_gpu: bool, code: str | None) -> None:
    raise SystemExit(execute(job, gpus=gpus, require_gpu=require_gpu, code=code))


def repeat(record: Path, into: Path, device: str | None, threads: int | None) -> int:
    """Repeat the run that a `run.json` records, with its outputs in `into`; return the exit status of `execute`.

    `device` and `threads` are as recorded unless given. Raises DataError if the file is missing or is not the record of
    a run, or if an input is no longer what the run has read, and ConfigError if outputs would have the same name, or
    replace those of the recorded run.
    """
    if not record.is_file():
        raise DataError(f"{record} is no file; name the run.json that a run has left.")
    found = records.read(record)
    for name, recorded_sum in found["sha256"]["inputs"].items():
        path = Path(found["inputs"][name])
        if path.is_file() and records.known_by(path) != recorded_sum:
            raise DataError(
                f"{path} is not what the run of {record} has read, so that this would be another run: it was made "
                "again since. Repeat the run with its config instead."
            )
    outputs = {name: str(into / Path(path).name) for name, path in found["outputs"].items()}
    if len(set(outputs.values())) < len(outputs):
        raise ConfigError(f"{record} records outputs of the same name in several folders, which one folder can't hold.")
    # a results folder may have moved since, so the place of the record counts, too
    own = {record.resolve().parent, *(Path(path).resolve().parent for path in found["outputs"].values())}
    if into.resolve() in own:
        raise ConfigError(f"--into {into} is the folder of the recorded run itself; name another one.")
    resumed = bool(found["config"].get("checkpoint"))
    config = found["config"] | ({"checkpoint": str(into / "checkpoint.pt")} if resumed else {})
    job = Job(
        stage=found["stage"],
        name=found["name"],
        entry=found["entry"],
        config=config,
        inputs=found["inputs"],
        outputs=outputs,
        record=str(into / "run.json"),
        log=str(into / "log.txt"),
        threads=threads or found["machine"]["threads"],
    )
    if found["code"] != code_of(job):
        print(f"warning: the code has changed since {record} was written, so that results can differ", file=sys.stderr)
    recorded = found["machine"]["device"]
    status = execute(job, gpus=int((device or recorded) == "cuda"))
    if status == 0:
        print(into)
    return status
