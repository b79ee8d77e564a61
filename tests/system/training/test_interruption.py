"""A run that is told to end saves its state and ends; resumed, it leaves the bytes of an undisturbed run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metapt.engine import records
from metapt.training.checkpoint import Checkpoint
from metapt.training.interruption import SIGNALS, Every, Interrupted, noticed, told_to_end
from metapt.twostage.finetuning import Score, Scores

SETTINGS = {
    "pretrain_examples": 64,
    "finetune_examples": 64,
    "batch_size": 8,
    "replicates": 2,
    "epochs": 8,
    "arms": {"a": {"method": "meta", "unroll": "head", "pretrain_steps": 2}},
}


@pytest.mark.parametrize("number", SIGNALS)
def test_a_state_is_saved_once_more_and_then_the_run_ends(number: signal.Signals, tmp_path: Path) -> None:
    checkpoint, due = Checkpoint(tmp_path / "state.pt", "same"), Every(3600)
    with noticed():
        checkpoint.save({"step": 1})
        assert not due()
        os.kill(os.getpid(), number)
        assert due()
        with pytest.raises(Interrupted, match=f"{number.name} told this job to end"):
            checkpoint.save({"step": 2})
    assert Checkpoint(tmp_path / "state.pt", "same").load() == {"step": 2}


def test_fine_tuning_ends_after_the_part_that_was_running(tmp_path: Path) -> None:
    score = Score(90.0, [90.0], 91.0, 1, 1e-3, [91.0])
    with noticed():
        scores = Scores(Checkpoint(tmp_path / "state.pt", "same"))
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            scores.add({("linear_evaluation", 0, 0): score})
    assert Scores(Checkpoint(tmp_path / "state.pt", "same"))[("linear_evaluation", 0, 0)] == score


def test_afterwards_signals_are_what_they_were() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with noticed():
        os.kill(os.getpid(), signal.SIGTERM)
        assert told_to_end()
    assert not told_to_end()
    assert [signal.getsignal(number) for number in SIGNALS] == before


def start(record: Path, into: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "metapt", "run", str(record), "--into", str(into)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_until_signals_are_noticed(process: subprocess.Popen[str]) -> None:
    """Until then they end the process as any other."""
    status, limit = Path(f"/proc/{process.pid}/status"), time.monotonic() + 300
    while time.monotonic() < limit:
        assert process.poll() is None, process.communicate()[1]
        caught = int(status.read_text().split("SigCgt:")[1].split()[0], base=16)
        if caught >> (signal.SIGUSR1 - 1) & 1:
            return
        time.sleep(0.05)
    raise AssertionError("the run did not begin in 5 minutes")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc to see when a process notices signals")
def test_a_run_that_is_told_to_end_twice_ends_in_the_same_bits(digits: Path, tmp_path: Path) -> None:
    described = {
        "stage": "study",
        "name": "mnist/rotation_mean/a",
        "entry": "domains.mnist.experiments.rotation_mean.run",
        "config": {
            "domain": "mnist",
            "experiment": "rotation_mean",
            "arm": "a",
            "settings": SETTINGS,
            "checkpoint": "c.pt",
        },
        "inputs": {"data": str(digits)},
        "outputs": {name: f"run/{name}.csv" for name in ("metrics", "series")},
        "machine": {"device": "cpu", "threads": 1},
        "sha256": {"inputs": {}, "outputs": {}},
    }
    record, whole, cut = tmp_path / "run.json", tmp_path / "whole", tmp_path / "cut"
    records.write(record, described)
    undisturbed = start(record, whole)
    _, error = undisturbed.communicate()
    assert undisturbed.returncode == 0, error

    for number in SIGNALS:
        process = start(record, cut)
        wait_until_signals_are_noticed(process)
        process.send_signal(number)
        _, error = process.communicate()
        assert process.returncode == 1, error
        assert f"error: {number.name} told this job to end: its state is saved" in error
        assert (cut / "checkpoint.pt").is_file()
    last = start(record, cut)
    _, error = last.communicate()
    assert last.returncode == 0, error
    assert "goes on at iteration" in (cut / "log.txt").read_text()
    assert not (cut / "checkpoint.pt").exists()
    for name in ("metrics.csv", "series.csv"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
