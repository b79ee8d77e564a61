"""Snakemake's dry run asks for the same files and resources as the plan."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from metapt.engine.config import load
from metapt.engine.jobs import Job
from metapt.engine.plan import planned

from .conftest import ROOT, snakemake

CORES = 64
CASES = [("paper", False), ("headroom", False), ("planted", True)]
"""Configs, and whether they require a GPU; together they have each rule, with downloads and with generated data."""

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


@pytest.mark.parametrize(("name", "gpu"), CASES)
def test_the_dry_run_is_the_plan(name: str, gpu: bool, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("require_gpu: true\n" * gpu + (ROOT / "config" / f"{name}.yaml").read_text())
    (tmp_path / "docs").symlink_to(ROOT / "docs")  # tables of runs
    plan = planned(load([config]))
    expected = {job.log: planned_for(job, gpu) for job in plan.jobs.values()}
    found = dry_run(tmp_path, config)
    assert found.keys() == expected.keys()
    for log, asked in found.items():
        assert asked == expected[log], log
