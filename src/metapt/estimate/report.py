"""An estimate in tables for people, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from metapt.estimate import Estimate, Need
from metapt.estimate.schedule import wall_time
from metapt.files import readable
from metapt.jobs import Job

Row = dict[str, Any]

_WORDS = {
    "download": "raw data",
    "simulate": "raw data",
    "prepare": "prepared data",
    "pretrain": "PT",
    "finetune": "FT",
}


def title(job: Job) -> str:
    """Return the kind of a job in words: the stage, and of trainings the domain."""
    if job.stage in ("summarise", "collect"):
        return "tables and figures"
    words = _WORDS.get(job.stage, f"study, {job.entry.rpartition('.')[2].replace('_', ' ')}")
    return f"{job.config['domain'].upper()} {words}" if job.trains else words


def summary(found: Estimate, cores: int, gpus: int) -> Row:
    """Return all of it as plain values, hours and bytes: of each experiment, each kind of job, and in all, each job once."""
    kinds = dict.fromkeys(map(title, found.plan.jobs.values()))
    return {
        "machine": found.machine,
        "device": found.device,
        "cores": cores,
        "gpus": gpus,
        "calibration_seconds": found.seconds,
        "experiments": {name: _total(found, found.experiment(name), cores, gpus) for name in found.plan.summaries},
        "kinds": {kind: _kind(found, kind) for kind in kinds},
        "total": _total(found, found.plan.jobs, cores, gpus),
        "measured": {name: dataclasses.asdict(each) for name, each in found.rehearsals.items()},
    }


def _total(found: Estimate, names: Iterable[str], cores: int, gpus: int) -> Row:
    names = list(names)
    needs = [found.needs[name] for name in names]
    return {
        "jobs": len(names),
        "jobs_by_kind": dict(Counter(title(found.plan.jobs[name]).split(",")[0] for name in names)),
        "core_hours": sum(need.core_seconds for need in needs if not need.gpu) / 3600,
        "gpu_hours": sum(need.seconds for need in needs if need.gpu) / 3600,
        "wall_hours": wall_time(found.plan, found.needs, names, cores, gpus) / 3600,
        "memory_bytes": max(need.memory_bytes for need in needs),
        "gpu_memory_bytes": max(need.gpu_memory_bytes for need in needs),
        "disk_bytes": sum(need.disk_bytes for need in needs),
    }


def _kind(found: Estimate, kind: str) -> Row:
    needs = [found.needs[name] for name, job in found.plan.jobs.items() if title(job) == kind]
    seconds = sum(need.seconds for need in needs)
    return {
        "jobs": len(needs),
        "core_hours": sum(need.core_seconds for need in needs if not need.gpu) / 3600,
        "gpu_hours": sum(need.seconds for need in needs if need.gpu) / 3600,
        "longest_hours": max(need.seconds for need in needs) / 3600,
        "work_share": sum(need.work_share * need.seconds for need in needs) / seconds,
        "memory_bytes": max(need.memory_bytes for need in needs),
        "gpu_memory_bytes": max(need.gpu_memory_bytes for need in needs),
        "extrapolated": any(need.extrapolated for need in needs),
    }


def text(numbers: Row) -> str:
    """Return the numbers of `summary` as two tables with what they rest on."""
    gpu, total = numbers["device"] == "cuda", numbers["total"]
    machine = f"{numbers['cores']} cores" + (f" and {numbers['gpus']} GPUs" if gpu else "")
    hours = ["core-hours", *(["GPU-hours"] if gpu else [])]
    head = ["experiment", "jobs", *hours, f"wall time ({machine})", "memory", *(["GPU memory"] if gpu else []), "disk"]
    rows = [_cells(name, each, gpu) for name, each in numbers["experiments"].items()]
    rows.append(_cells("in all, data included", total, gpu))
    kinds = [
        [
            kind,
            str(each["jobs"]),
            *_hours(each, gpu),
            duration(each["longest_hours"]),
            f"{100 * each['work_share']:.0f} %",
            readable(round(each["memory_bytes"])),
            *([readable(round(each["gpu_memory_bytes"]))] if gpu else []),
            "yes" if each["extrapolated"] else "",
        ]
        for kind, each in numbers["kinds"].items()
    ]
    memory = ["memory", *(["GPU memory"] if gpu else [])]
    titles = ["kind of job", "jobs", *hours, "longest job", "work, not start-up", *memory, "extrapolated"]
    return "\n\n".join(
        [
            f"Measured in {numbers['calibration_seconds']:.0f} s on: {numbers['machine']}.",
            _table(head, rows),
            "A job that serves several experiments is counted in each of them, and once in all. Memory is the largest job's.",
            _table(titles, kinds),
            "Extrapolated: measured on a part of the data, or on smaller minibatches, for want of time.",
        ]
    )


def _cells(name: str, each: Row, gpu: bool) -> list[str]:
    return [
        name,
        ", ".join(f"{count} {kind}" for kind, count in each["jobs_by_kind"].items()),
        *_hours(each, gpu),
        duration(each["wall_hours"]),
        readable(round(each["memory_bytes"])),
        *([readable(round(each["gpu_memory_bytes"]))] if gpu else []),
        readable(round(each["disk_bytes"])),
    ]


def _hours(each: Row, gpu: bool) -> list[str]:
    return [rounded(each["core_hours"]), *([rounded(each["gpu_hours"])] if gpu else [])]


def rounded(hours: float) -> str:
    """
    >>> rounded(4459.7), rounded(63.1), rounded(1.16), rounded(0.128), rounded(0.00846), rounded(0)
    ('4,460', '63', '1.2', '0.13', '< 0.01', '0')
    """
    if hours >= 10:
        return f"{hours:,.0f}"
    return f"{hours:.2g}" if hours >= 0.01 or not hours else "< 0.01"


def duration(hours: float) -> str:
    """
    >>> duration(0.004), duration(0.5), duration(7.26), duration(100)
    ('14 s', '30 min', '7.3 h', '4.2 days')
    """
    if hours < 1 / 30:
        return f"{3600 * hours:.0f} s"
    if hours < 1.5:
        return f"{60 * hours:.0f} min"
    return f"{hours:.1f} h" if hours < 72 else f"{hours / 24:.1f} days"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, its columns aligned."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def against(found: Estimate, results: Path) -> str:
    """Return the estimate beside what the runs in a results folder took, by kind of job.

    Time is `cpu_time_s` in run.json, which other jobs on the machine hardly change; of jobs on a GPU `wall_time_s`. Memory is
    the largest job's. A run that is not there, or broke off, is left out.
    """
    kinds: dict[str, list[tuple[Need, Row]]] = {}
    own = Path(found.plan.jobs["collect"].record).parent
    for name, job in found.plan.jobs.items():
        if Path(job.record).is_relative_to(own) and (record := _record(results / Path(job.record).relative_to(own))):
            kinds.setdefault(title(job), []).append((found.needs[name], record))
    if not kinds:
        return f"No run of this config in {results} has come to its end, so that there is nothing to compare with."
    there = f"in {results} (core-s)"
    titles = ["kind of job", "jobs", "estimated (core-s)", there, "ratio", "estimated memory", "there", "ratio"]
    rows = [_comparison(kind, pairs) for kind, pairs in kinds.items()]
    rows.append(_comparison("all", [pair for pairs in kinds.values() for pair in pairs]))
    return _table(titles, rows)


def _comparison(kind: str, pairs: Sequence[tuple[Need, Row]]) -> list[str]:
    seconds = sum(need.core_seconds for need, _ in pairs)
    took = sum(record["wall_time_s" if need.gpu else "cpu_time_s"] for need, record in pairs)
    memory = max(need.memory_bytes for need, _ in pairs)
    used = max(record["peak_memory_bytes"] for _, record in pairs)
    time = [f"{seconds:.0f}", f"{took:.0f}", f"{seconds / took:.2f}"]
    return [kind, str(len(pairs)), *time, readable(round(memory)), readable(used), f"{memory / used:.2f}"]


def _record(path: Path) -> Row | None:
    if not path.is_file():
        return None
    record: Row = json.loads(path.read_text(encoding="utf-8"))
    return record if record["state"] == "done" and record.get("cpu_time_s") else None
