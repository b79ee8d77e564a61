"""The wall time of jobs on a machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metapt.estimate.rehearse import Need
from metapt.jobs import Job
from metapt.plan import Plan


def wall_time(plan: Plan, needs: Mapping[str, Need], names: Iterable[str], cores: int, gpus: int) -> float:
    """Return the seconds in which jobs are done that start as soon as they can, the longest first.

    Jobs of `plan` that are waited for and not among `names` are taken as done.
    """
    waiting = sorted(names, key=lambda name: -needs[name].seconds)
    chosen, done, now = set(waiting), set[str](), 0.0
    before = {name: {each.name for each in plan.before(plan.jobs[name])} & chosen for name in waiting}
    used = {name: _used(plan.jobs[name], needs[name], cores, gpus) for name in waiting}
    running: list[tuple[float, str]] = []
    free_cores, free_gpus = cores, gpus
    while waiting or running:
        for name in list(waiting):
            threads, gpu = used[name]
            if threads <= free_cores and gpu <= free_gpus and before[name] <= done:
                running.append((now + needs[name].seconds, name))
                waiting.remove(name)
                free_cores, free_gpus = free_cores - threads, free_gpus - gpu
        running.sort()
        now, name = running.pop(0)
        done.add(name)
        free_cores, free_gpus = free_cores + used[name][0], free_gpus + used[name][1]
    return now


def _used(job: Job, need: Need, cores: int, gpus: int) -> tuple[int, int]:
    """Return the cores and GPUs that a job occupies."""
    return cores if job.alone else min(cores, job.threads), min(gpus, int(need.gpu))
