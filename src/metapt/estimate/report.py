"""An estimate in tables for people, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from metapt.estimate.rehearse import Need
from metapt.estimate.schedule import wall_time
from metapt.estimate.trials import Requirements
from metapt.files import readable
from metapt.jobs import Job

Row = dict[str, Any]
_STAGES = {
    "download": "raw data",
    "simulate": "raw data",
    "prepare": "prepared data",
    "pretrain": "PT",
    "finetune": "FT",
}


def title(job: Job) -> str:
    """Return the kind of a job in words: the stage, and of trainings the domain."""
    if job.stage in ("summarise", "collect", "page"):
        return "tables and figures"
    words = _STAGES.get(job.stage, f"study, {job.entry.rpartition('.')[2].replace('_', ' ')}")
    return f"{job.config['domain'].upper()} {words}" if job.trains else words


def summary(found: Requirements, cores: int, gpus: int) -> Row:
    """Return hours and bytes of each experiment, of each kind of job, and in all, where each job counts once."""

    def row(names: Iterable[str]) -> Row:
        names = list(names)
        needs = [found.needs[name] for name in names]
        return {
            "jobs": len(names),
            "jobs_by_kind": dict(Counter(title(found.plan.jobs[name]).split(",")[0] for name in names)),
            "core_hours": sum(need.core_seconds for need in needs if not need.gpu) / 3600,
            "gpu_hours": sum(need.core_seconds for need in needs if need.gpu) / 3600,
            "wall_hours": wall_time(found.plan, found.needs, names, cores, gpus) / 3600,
            "longest_hours": max(need.seconds for need in needs) / 3600,
            "memory_bytes": max(need.memory for need in needs),
            "gpu_memory_bytes": max(need.gpu_memory for need in needs),
            "disk_bytes": sum(need.disk for need in needs),
            "extrapolated": any(need.extrapolated for need in needs),
        }

    kinds: dict[str, list[str]] = {}
    for name, job in found.plan.jobs.items():
        kinds.setdefault(title(job), []).append(name)
    return {
        "machine": found.machine,
        "device": found.device,
        "cores": cores,
        "gpus": gpus,
        "measuring_seconds": found.measuring_seconds,
        "experiments": {name: row(found.experiment(name)) for name in found.plan.summaries},
        "kinds": {kind: row(names) for kind, names in kinds.items()},
        "total": row(found.plan.jobs),
        "jobs": {name: dataclasses.asdict(need) for name, need in found.needs.items()},
    }


def text(numbers: Row) -> str:
    """Return the numbers of `summary` as tables of experiments and of kinds of jobs."""
    gpu = numbers["device"] == "cuda"
    counts = {"core": numbers["cores"]} | ({"GPU": numbers["gpus"]} if gpu else {})
    machine = " and ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items())

    def table(kind: str, rows: Row, hours: str, key: str) -> str:
        own = ["GPU-hours", "GPU memory"] if gpu else []
        lines = [[kind, "jobs", "core-hours", *own, hours, "memory", "disk", "extrapolated"]]
        for name, row in rows.items():
            jobs = ", ".join(f"{count} {each}" for each, count in row["jobs_by_kind"].items())
            own = [f"{row['gpu_hours']:,.2f}", readable(round(row["gpu_memory_bytes"]))] if gpu else []
            sizes = [readable(round(row[each])) for each in ("memory_bytes", "disk_bytes")]
            duration = str(timedelta(seconds=round(3600 * row[key])))
            lines.append(
                [name, jobs, f"{row['core_hours']:,.2f}", *own, duration, *sizes, "yes" if row["extrapolated"] else ""]
            )
        return _aligned(lines)

    experiments = numbers["experiments"] | {"in all, data included": numbers["total"]}
    return "\n\n".join(
        [
            f"Measured in {numbers['measuring_seconds']:.0f} s on: {numbers['machine']}.",
            table("experiment", experiments, f"wall time ({machine})", "wall_hours"),
            "A job that serves several experiments counts in each, and once in all. Memory is the largest job's.",
            table("kind of job", numbers["kinds"], "longest job", "longest_hours"),
            "Extrapolated: measured on a part of the data or on smaller minibatches, since the whole takes too long.",
        ]
    )


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the first of them the head, as a table in Markdown whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [rows[0], ["-" * width for width in widths], *rows[1:]]
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def against(found: Requirements, results: Path) -> str:
    """Return the estimate beside what the runs in a results folder took, by kind of job.

    Time is `cpu_time_s` in run.json, which other jobs on the machine hardly change; of jobs on a GPU `wall_time_s`.
    Memory is the largest job's. A run that is not there, or broke off, is left out.
    """
    kinds: dict[str, list[tuple[Need, Row]]] = {}
    own = Path(found.plan.jobs["collect"].record).parent
    for name, job in found.plan.jobs.items():
        path = results / Path(job.record).relative_to(own) if Path(job.record).is_relative_to(own) else None
        record: Row = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else {}
        if record.get("state") == "done" and record.get("cpu_time_s"):
            kinds.setdefault(title(job), []).append((found.needs[name], record))
    if not kinds:
        return f"No run of this config in {results} has come to its end, so that there is nothing to compare with."
    there = f"in {results} (core-s)"
    rows = [["kind of job", "jobs", "estimated (core-s)", there, "ratio", "estimated memory", "there", "ratio"]]
    kinds["all"] = [pair for pairs in kinds.values() for pair in pairs]
    for kind, pairs in kinds.items():
        seconds = sum(need.core_seconds for need, _ in pairs)
        took = sum(record["wall_time_s" if need.gpu else "cpu_time_s"] for need, record in pairs)
        memory, used = max(need.memory for need, _ in pairs), max(record["peak_memory_bytes"] for _, record in pairs)
        times = [f"{seconds:.0f}", f"{took:.0f}", f"{seconds / took:.2f}"]
        rows.append([kind, str(len(pairs)), *times, readable(round(memory)), readable(used), f"{memory / used:.2f}"])
    return _aligned(rows)
