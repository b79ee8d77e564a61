"""Snakemake's dry run asks for the same files and resources as the plan."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from metapt.engine.config import load
from metapt.engine.jobs import Job
from metapt.engine.plan import planned

from .conftest import ROOT, TINY, snakemake

pytestmark = pytest.mark.slow
CORES = 64
CASES = [*((path, False) for path in (*sorted(ROOT.glob("config/*.yaml")), *TINY.values())), (TINY["ecg"], True)]

Asked = dict[str, object]


def dry_run(folder: Path, config: Path) -> dict[str, Asked]:
    """Return log -> what the dry run prints about its job."""
    outcome = snakemake(folder, "--dry-run", "--configfile", config, cores=("--cores", str(CORES)))
    assert outcome.status == 0, outcome.text
    found = {}
    for block in re.findall(r"^rule (\w+):\n((?:    .*\n)+)", outcome.text, flags=re.M):
        lines = dict(re.findall(r"^    (\w+): (.*)$", block[1], flags=re.M))
        if "log" not in lines:  # the rule only names targets
            continue
        *record, log = lines["log"].split(", ")
        resources = dict(each.split("=", 1) for each in lines["resources"].split(", "))
        found[log] = {
            "rule": block[0].split("_")[0],
            "inputs": sorted(set(filter(None, lines.get("input", "").split(", ")))),
            "outputs": sorted([*lines["output"].split(", "), *record]),
            "threads": int(lines.get("threads", 1)),
            **{name: int(resources[name]) for name in ("mem_mb", "runtime", "gpu")},
        }
    return found


def planned_for(job: Job, gpu: bool) -> Asked:
    return {
        "rule": job.stage,
        "inputs": sorted(set(job.inputs.values())),
        "outputs": sorted([*job.outputs.values(), job.record]),
        "threads": CORES if job.alone else job.threads,
        "mem_mb": job.mem_mb,
        "runtime": job.minutes,
        "gpu": int(job.trains and gpu),
    }


@pytest.mark.parametrize(("config", "gpu"), CASES, ids=[path.name + " on a GPU" * gpu for path, gpu in CASES])
def test_the_dry_run_is_the_plan(config: Path, gpu: bool, tmp_path: Path) -> None:
    if gpu:
        text = f"require_gpu: true\n{config.read_text()}"
        config = tmp_path / config.name
        config.write_text(text)
    (tmp_path / "docs").symlink_to(ROOT / "docs")  # tables of runs
    plan = planned(load([config]))
    expected = {job.log: planned_for(job, gpu) for job in plan.jobs.values()}
    found = dry_run(tmp_path, config)
    assert found.keys() == expected.keys()
    for log, asked in found.items():
        assert asked == expected[log], log
