"""Jobs of a config without Snakemake: several at a time, each after those that it depends on."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from metapt.engine import run
from metapt.engine.config import load
from metapt.engine.jobs import Job
from metapt.engine.plan import Plan, planned
from metapt.errors import ConfigError
from metapt.training.interruption import SIGNALS

TARGET = "ppi_full_access"
CONFIG = """
results: results/x
ppi: {source: simulated, test_species: [900005], pretrain_seeds: 3, full_access: {arms: [graph_supervised]}}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def plan(config: Path) -> Plan:
    return planned(load([config]))


def needed(plan: Plan) -> list[Job]:
    return list(plan.needed(plan.summary(TARGET).name))


class Noted:
    """Jobs that do nothing but note in files when they begin and end; `broken` is the one that fails."""

    told: Any = signal.SIG_DFL  # what a job does when it is told to end

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, broken: str = "", seconds: float = 0.02) -> None:
        self.folder = folder

        def note(job: Job, *_: object) -> None:
            for number in SIGNALS:  # as in a process that is not forked
                signal.signal(number, self.told)
            begin = time.monotonic()
            if job.name != broken:
                time.sleep(seconds)
            times = json.dumps([job.name, begin, time.monotonic()])
            (folder / f"{job.name.replace('/', ' ')}.json").write_text(times)
            raise SystemExit(job.name == broken)

        monkeypatch.chdir(folder)
        monkeypatch.setattr(run, "_execute", note)
        # Forked processes have the replaced function.
        monkeypatch.setattr(run, "get_context", lambda kind: multiprocessing.get_context("fork"))

    def times(self) -> dict[str, tuple[float, float]]:
        """Return when each job began and ended."""
        found = (json.loads(path.read_text()) for path in self.folder.glob("*.json"))
        return {name: (begin, end) for name, begin, end in found}


def test_a_domain_that_the_config_lacks_is_no_target(config: Path) -> None:
    with pytest.raises(ConfigError, match="the config has no experiment of mnist"):
        run.run([config], ["ppi", "mnist"], None, None)


@pytest.mark.slow
@pytest.mark.parametrize(("at_once", "seconds"), [(1, 0.02), (3, 0.8)])
def test_as_many_jobs_run_at_a_time_as_may_and_each_after_its_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Path, plan: Plan, at_once: int, seconds: float
) -> None:
    noted = Noted(tmp_path, monkeypatch, seconds=seconds)
    assert run.run([config], [TARGET], "cpu", None, at_once) == 0
    times, jobs = noted.times(), needed(plan)
    assert set(times) == {job.name for job in jobs}
    for job in jobs:
        for before in plan.before(job):
            assert times[before.name][1] <= times[job.name][0], f"{job.name} began before {before.name} ended"
    together = [sum(begin <= moment < end for begin, end in times.values()) for moment, _ in times.values()]
    assert max(together) == at_once


@pytest.mark.slow
def test_nothing_runs_beside_a_job_whose_time_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted, path = Noted(tmp_path, monkeypatch, seconds=0.2), tmp_path / "config.yaml"
    path.write_text("results: results/x\nmnist: {source: digits, bptt: {}, rotation_mean: {}}\n")
    assert run.run([path], ["mnist_bptt", "mnist_rotation_mean"], "cpu", None, 3) == 0
    times, timed = noted.times(), {job.name for job in planned(load([path])).jobs.values() if job.alone}
    assert len(timed) > 5
    for name in timed:
        begin, end = times[name]
        assert [other for other in times if times[other][0] < end and begin < times[other][1]] == [name]


@pytest.mark.slow
def test_after_a_failure_no_job_begins_and_those_that_run_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: Path, plan: Plan
) -> None:
    trained = [job.name for job in needed(plan) if job.stage == "pretrain"]
    noted = Noted(tmp_path, monkeypatch, broken=trained[0], seconds=0.5)  # the one that fails is the first to end
    assert run.run([config], [TARGET], "cpu", None, 2) == 1
    printed = capsys.readouterr()
    assert f"error: {trained[0]} has failed" in printed.err
    begun = [line.split()[1].rstrip(":") for line in printed.out.splitlines()]
    assert set(noted.times()) == set(begun)
    assert begun[-2:] == trained[:2]


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_jobs_that_run_and_no_other_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Path, number: signal.Signals
) -> None:
    noted = Noted(tmp_path, monkeypatch, seconds=60)
    before, begin = signal.getsignal(number), time.monotonic()
    sender = threading.Timer(1, os.kill, (os.getpid(), number))
    sender.start()
    assert run.run([config], [TARGET], "cpu", None, 2) == 1
    assert time.monotonic() - begin < 30
    assert not noted.times()
    assert not multiprocessing.active_children()
    assert signal.getsignal(number) == before


@pytest.mark.slow
def test_a_second_ctrl_c_ends_stubborn_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    Noted(tmp_path, monkeypatch, seconds=60).told = signal.SIG_IGN
    for seconds in (1, 2):
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run.run([config], [TARGET], "cpu", None, 2)
    for child in multiprocessing.active_children():
        child.join()
    assert time.monotonic() - begin < 30


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_is_told_to_end_goes_on_from_its_state(tmp_path: Path, number: signal.Signals) -> None:
    target = "results/run/mnist/rotation_mean/meta-shared/metrics.csv"
    study = {"pretrain_examples": 600, "finetune_examples": 600, "epochs": 500}
    config = {"results": "results/run", "mnist": {"source": "digits", "rotation_mean": study}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "metapt", "run", target, "--configfile", "config.yaml"]
    log, jobs_log = tmp_path / "stderr.txt", (tmp_path / target).with_name("log.txt")
    with log.open("w") as stderr, subprocess.Popen(command, cwd=tmp_path, stderr=stderr, process_group=0) as process:
        while process.poll() is None and not (jobs_log.is_file() and " left" in jobs_log.read_text()):
            time.sleep(0.1)
        send = os.killpg if number == signal.SIGINT else os.kill  # a terminal sends Ctrl-C to all processes
        send(process.pid, number)
        assert process.wait(30) == 1
    assert "SIGTERM told this job to end: its state is saved" in log.read_text()
    assert "meta-shared was told to end, and is not finished; its log is" in log.read_text()
    assert "Traceback" not in log.read_text()
