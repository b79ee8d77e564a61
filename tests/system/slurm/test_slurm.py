"""The workflow on SLURM: real jobs on the node that single_node.sh starts (`make test-slurm`)."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
import yaml

ROOT = Path(__file__).parents[3]
PROFILES = ROOT / "workflow" / "profiles"
TINY = ROOT / "tests" / "system" / "workflow" / "tiny.yaml"
HERE = PROFILES / "default"
PATIENCE = 900  # seconds; no test waits for less than it needs on a busy machine


def answers(program: str) -> bool:
    if shutil.which(program) is None:
        return False
    try:
        return subprocess.run([program, "--noheader"], capture_output=True, timeout=5).returncode == 0
    except subprocess.TimeoutExpired:
        return False


pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(not answers("sinfo"), reason="no SLURM controller answers here (make test-slurm starts one)"),
    pytest.mark.skipif(
        importlib.util.find_spec("snakemake_executor_plugin_slurm") is None, reason="the extra `slurm` is not installed"
    ),
]


def slurm(*command: str) -> str:
    """Return what a command of SLURM prints, which must end well."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


COLUMNS = ("JobID", "State", "Comment", "MinMemory", "tres-per-job", "tres-per-node", "StartTime", "EndTime", "WorkDir")


@dataclass(frozen=True)
class Submitted:
    """A job in SLURM's accounts; `rule` is followed by its wildcards."""

    number: int
    state: str
    rule: str
    memory: str
    gpu: str
    start: str
    end: str


@dataclass(frozen=True)
class Site:
    """A folder in which the workflow runs, with the project's profile changed for a cluster."""

    folder: Path
    config: Path

    def profile(self, **train: str) -> None:
        """Return the profile for a cluster without accounting, with other resources of the training jobs."""
        profile = yaml.safe_load((PROFILES / "slurm" / "config.yaml").read_text())
        profile |= {"slurm-status-command": "squeue", "slurm-init-seconds-before-status-checks": 1}
        profile["set-resources"]["study"] |= train
        (self.folder / "slurm").mkdir(exist_ok=True)
        (self.folder / "slurm" / "config.yaml").write_text(yaml.safe_dump(profile))

    @contextmanager
    def snakemake(self, *arguments: str | Path, profile: Path | None = None) -> Iterator[subprocess.Popen[str]]:
        """Run Snakemake in the folder, and kill it if it outlives the block."""
        options = (*arguments, "--configfile", self.config, "--workflow-profile", profile or self.folder / "slurm")
        command = [sys.executable, "-m", "snakemake", "--snakefile", ROOT / "workflow" / "Snakefile", *options]
        environment = os.environ | {"XDG_CACHE_HOME": str(self.folder / ".cache")}
        process = subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def run(self, *arguments: str | Path, profile: Path | None = None, status: int = 0) -> str:
        """Run Snakemake to its end, check its exit status, and return its output."""
        with self.snakemake(*arguments, profile=profile) as process:
            return ended(process, status)

    def jobs(self, rule: str = "") -> list[Submitted]:
        """Return SLURM's records of this folder's jobs of a rule, in the order of submission."""
        form = ",".join(f"{column}:200" for column in COLUMNS)
        lines = slurm("squeue", "--states=all", "--noheader", f"--Format={form}").splitlines()
        rows = ([line[at : at + 200].strip() for at in range(0, 200 * len(COLUMNS), 200)] for line in lines)
        found = [
            Submitted(int(number), state, rule, memory, f"{for_job} {for_node}", start, end)
            for number, state, rule, memory, for_job, for_node, start, end, folder in rows
            if folder == str(self.folder)
        ]
        return sorted((job for job in found if job.rule.startswith(f"rule_{rule}")), key=lambda job: job.number)

    def trains(self) -> bool:
        """Return whether a training job of this folder is far enough to handle signals."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                status = (process / "status").read_text()
                caught = int(status.split("SigCgt:")[1].split()[0], base=16)
                if caught >> (signal.SIGUSR1 - 1) & 1 and (process / "cwd").readlink() == self.folder:
                    return True
            except OSError:  # the process has ended
                continue
        return False


def ended(process: subprocess.Popen[str], status: int = 0) -> str:
    text, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == status, text
    return text


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> None:
    """Wait for a condition; `process` must not end before."""
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.2)


def states(jobs: list[Submitted]) -> list[str]:
    return [job.state for job in jobs]


LONG = 1500  # epochs: longer than SLURM takes to notice that it is time for the warning
ARM = "results/long/mnist/rotation_mean/k2"


class LongSite(Protocol):
    """Make a site in `folder` that trains one arm of the tiny config for longer, on prepared data."""

    def __call__(self, folder: Path, epochs: int) -> Site: ...


@pytest.fixture(scope="module")
def long_site(tmp_path_factory: pytest.TempPathFactory) -> LongSite:
    def make(folder: Path, epochs: int) -> Site:
        config = yaml.safe_load(TINY.read_text()) | {"results": "results/long"}
        config["mnist"]["rotation_mean"]["epochs"] = epochs
        (folder / "long.yaml").write_text(yaml.safe_dump(config))
        site = Site(folder, folder / "long.yaml")
        site.profile()
        return site

    prepared = tmp_path_factory.mktemp("prepared")
    make(prepared, epochs=1).run("--cores", "1", "results/long/mnist/data/digits/images.pt", profile=HERE)

    def long_site(folder: Path, epochs: int) -> Site:
        shutil.copytree(prepared, folder, dirs_exist_ok=True)
        return make(folder, epochs)

    return long_site


def same_results(one: Site, other: Site) -> bool:
    return all(
        (one.folder / ARM / name).read_bytes() == (other.folder / ARM / name).read_bytes()
        for name in ("metrics.csv", "series.csv")
    )


# In pairs that take alike long, and the longest alone: pytest-xdist gives each of four workers two at first.


def test_a_cancelled_job_goes_on_and_ends_in_the_same_bits(tmp_path: Path, long_site: LongSite) -> None:
    undisturbed, site = (long_site(tmp_path / name, epochs=400) for name in ("undisturbed", "cancelled"))
    with site.snakemake(f"{ARM}/run.json") as process:
        wait_until(site.trains, process)
        slurm("scancel", str(site.jobs("study")[0].number))
        undisturbed.run("--cores", "1", f"{ARM}/run.json", profile=HERE)
        ended(process)
    first, second = site.jobs("study")
    assert (first.state, second.state) == ("CANCELLED", "COMPLETED")
    assert (first.memory, second.memory) == ("2000M", "4000M")
    assert "goes on at iteration" in (site.folder / ARM / "log.txt").read_text()
    assert same_results(site, undisturbed)


def test_snakemake_killed_and_resumed_runs_nothing_twice(tmp_path: Path, long_site: LongSite) -> None:
    site = long_site(tmp_path, epochs=400)
    # A job then runs before the one that is interrupted.
    (tmp_path / "results/long/mnist/data/digits/images.pt").unlink()
    with site.snakemake(f"{ARM}/run.json") as process:
        wait_until(site.trains, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    (orphan,) = site.jobs("study")
    assert orphan.state == "RUNNING"
    shown = re.search(r"squeue --me .*scancel$", (ROOT / "docs" / "cluster.md").read_text(), flags=re.M)
    assert shown
    environment = os.environ | {"PWD": str(tmp_path)}
    subprocess.run(shown[0], shell=True, cwd=tmp_path, env=environment, check=True, timeout=60)
    assert "Directory cannot be locked" in site.run(f"{ARM}/run.json", status=1)
    wait_until(lambda: states(site.jobs("study")) == ["CANCELLED"])
    site.run("--unlock")
    site.run(f"{ARM}/run.json")

    assert [(job.rule.split("_wildcards")[0], job.state) for job in site.jobs()] == [
        ("rule_prepare_mnist", "COMPLETED"),
        ("rule_study", "CANCELLED"),
        ("rule_study", "COMPLETED"),
    ]
    assert "goes on at iteration" in (site.folder / ARM / "log.txt").read_text()


def test_a_job_that_slurm_starts_again_goes_on(tmp_path: Path, long_site: LongSite) -> None:
    """SLURM starts a job again after the death of a node, or when another job took its place."""
    site = long_site(tmp_path, epochs=400)
    with site.snakemake(f"{ARM}/run.json") as process:
        wait_until(site.trains, process)
        slurm("scontrol", "requeue", str(site.jobs("study")[0].number))
        ended(process)
    assert states(site.jobs("study")) == ["COMPLETED"]  # Snakemake has waited for it, and submitted nothing
    assert "goes on at iteration" in (site.folder / ARM / "log.txt").read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")
def test_require_gpu_asks_slurm_for_one_and_a_node_without_it_is_an_error(tmp_path: Path, long_site: LongSite) -> None:
    site = long_site(tmp_path, epochs=1)
    text = site.run(f"{ARM}/run.json", "--config", "require_gpu=true", "--retries", "0", status=1)
    (job,) = site.jobs("study")
    assert "gpu:1" in job.gpu
    assert "this job was given a GPU, but torch sees none here" in text


def test_a_job_near_its_time_limit_saves_and_goes_on(tmp_path: Path, long_site: LongSite) -> None:
    site = long_site(tmp_path, epochs=LONG)
    with site.snakemake(f"{ARM}/run.json") as process:
        wait_until(site.trains, process)
        (job,) = site.jobs("study")
        # One to two minutes from now; SLURM looks twice a minute whether it is time for the profile's warning.
        minutes = 2 + int((datetime.now() - datetime.fromisoformat(job.start)).total_seconds() // 60)
        slurm("scontrol", "update", f"JobId={job.number}", f"TimeLimit={minutes}")
        ended(process)
    assert states(site.jobs("study")) == ["FAILED", "COMPLETED"]  # it ended by itself: not TIMEOUT
    assert "goes on at iteration" in (site.folder / ARM / "log.txt").read_text()


def test_a_job_that_ran_out_of_memory_gets_more(tmp_path: Path, long_site: LongSite) -> None:
    site = long_site(tmp_path, epochs=1)
    site.profile(mem_mb="300 * attempt ** 3")
    site.run(f"{ARM}/run.json")
    first, *_, last = site.jobs("study")
    assert first.state in ("FAILED", "OUT_OF_MEMORY")
    assert first.memory == "300M"
    assert last.state == "COMPLETED"


def test_the_shrunk_default_runs_with_a_gpu_for_each_training_job(tmp_path: Path) -> None:
    site = Site(tmp_path, TINY)
    # Ask SLURM for a GPU without telling metapt, which would refuse: torch sees no GPU here.
    site.profile(gres="gpu:1")
    assert "has been submitted with SLURM jobid" in site.run()
    assert (tmp_path / "results/tiny/headline.md").is_file()
    assert set(states(site.jobs())) == {"COMPLETED"}
    training = sorted(site.jobs("study"), key=lambda job: job.start)
    assert len(training) == 3
    assert all("gpu:1" in job.gpu for job in training)
    assert all(first.end <= second.start for first, second in itertools.pairwise(training))  # there is one GPU
    assert not any("gpu" in job.gpu for job in site.jobs("summarise"))
    assert "Nothing to be done" in site.run("--dry-run")


@pytest.mark.skipif(not answers("sacct"), reason="this SLURM keeps no accounting (install slurmdbd and mariadb-server)")
def test_the_profile_as_it_stands_where_there_is_accounting(tmp_path: Path, long_site: LongSite) -> None:
    site = long_site(tmp_path, epochs=1)
    site.run(f"{ARM}/run.json", profile=PROFILES / "slurm")
    (job,) = site.jobs("study")
    asked = ("--allocations", "--noheader", "--parsable2", "--format=State,Comment", f"--jobs={job.number}")
    assert slurm("sacct", *asked).strip() == f"COMPLETED|{job.rule}"
