"""Killed with SIGKILL at any moment: files are complete, and the rerun ends in the bits of an undisturbed run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metapt.engine.digest import PACKAGE

from ...contract.domain_cases import CASES
from .conftest import TABLES, Jobs, Kind, check_whole, contents, times

IMPORTS = 4.0
"""Seconds that the command takes to begin, roughly."""


def moments(few: int, seed: int) -> list[float]:
    """Seeded random moments, one in each equal part of a run, as shares of its time."""
    number = times(few)
    return [float(share) for share in (np.arange(number) + np.random.default_rng(seed).random(number)) / number]


def killed_at(moment: float, seconds: float, kind: Kind, jobs: Jobs, folder: Path) -> Path:
    """Return the folder of a run that was killed at a share of `seconds`, or earlier if it had ended by then."""
    for attempt in range(20):
        ended = jobs.run(kind.job(folder / str(attempt)), kill_after=moment * seconds)
        if ended.status == -signal.SIGKILL:
            return folder / str(attempt)
        seconds = 0.9 * min(seconds, ended.seconds)
    raise AssertionError("every run had ended before it was killed")


@pytest.mark.parametrize("name", ["preparation", "PT", "meta-PT", "FT", "download"])
def test_a_killed_job_goes_on_to_the_same_bits(name: str, jobs: Jobs, download: Kind, tmp_path: Path) -> None:
    kind = download if name == "download" else jobs[name]
    right, seconds = jobs.undisturbed(kind)
    for number, moment in enumerate(moments(2, seed=len(name))):
        folder = killed_at(moment, seconds, kind, jobs, tmp_path / str(number))
        check_whole(folder, right)
        jobs.run_well(kind, folder)
        assert json.loads((folder / "run.json").read_text())["state"] == "done"


def test_a_killed_command_goes_on(jobs: Jobs, tmp_path: Path) -> None:
    """The same through `python -m metapt run`, from its start on; it may have ended before it is killed."""
    kind = jobs["PT"]
    right, _ = jobs.undisturbed(kind)
    ended = jobs.run(kind.job(tmp_path / "first"))
    assert ended.status == 0
    command = [sys.executable, "-m", "metapt", "run", str(tmp_path / "first" / "run.json"), "--into"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    for number, moment in enumerate(moments(1, seed=2)):
        folder = tmp_path / str(number)
        whole = [*command, str(folder / "out")]
        process = subprocess.Popen(whole, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(moment * (IMPORTS + ended.seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        found = contents(folder)
        assert all(found[name] == right[name] for name in right if name in found)
        done = subprocess.run(whole, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found = contents(folder)
        assert {name: found[name] for name in right} == right


SMALL = {"pretrain_examples": 64, "finetune_examples": 64, "batch_size": 8}
STACKED = {"pretrain_steps": 2, "warmup_epochs": 0.75, "head_steps_between_updates": 1, "average_decay": 0.9}
ARMS: dict[str, dict[str, Any]] = {
    "rotation_mean": {"method": "meta", "unroll": "head", **STACKED},
    "example_weighting": {"method": "meta", "unroll": "head", "pretrain_lr": 1e-3, "meta_lr": 1e-3},
    "bptt": {"method": "bptt", "outer_steps": 16},
}
STUDIES: dict[str, tuple[dict[str, Any], list[int], int, str]] = {
    "rotation_mean": (SMALL | {"replicates": 2, "epochs": 2}, [2, 3, 1], 1, "meta-PT"),
    "example_weighting": (
        {"replicates": 2, "pretrain_examples": 40, "classes": 11, "batch_size": 8, "epochs": 2},
        [3, 5, 4],
        2,
        "meta-PT of seed 0",
    ),
    "bptt": (
        SMALL | {"pretrain_steps": 3, "finetune_steps": 3, "replicates": 1, "evaluations": 1},
        [2, 5, 3],
        1,
        "mnist_bptt a",
    ),
}
"""Studies with stacked replicates, with replicates in threads, and with backpropagation through PT and FT: settings,
checkpoints at which they are killed, threads, and what the log calls that which goes on."""


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_that_is_killed_again_and_again_ends_in_the_same_bits(name: str, jobs: Jobs, tmp_path: Path) -> None:
    settings, saves, threads, label = STUDIES[name]
    config = {"domain": "mnist", "experiment": name, "arm": "a", "settings": settings | {"arms": {"a": ARMS[name]}}}
    digits = {"data": CASES["mnist"].prepare(tmp_path)["data"]}
    kind = Kind("study", f"domains.mnist.experiments.{name}.run", config, digits, TABLES, threads)
    jobs.undisturbed(kind, faults=())  # whose few checkpoints change no bit, either
    steps: list[int] = []
    for number in (*saves, None):
        ended = (
            jobs.run(kind.job(tmp_path / "run"), kill_at=number) if number else jobs.run_well(kind, tmp_path / "run")
        )
        assert ended.status == (-signal.SIGKILL if number else 0), ended.stderr
        steps += [int(step) for step in re.findall(rf"{label} goes on at .* (\d+)$", ended.log, flags=re.M)]
    assert steps == sorted(steps)
    assert steps, "it was resumed"
    assert threads > 1 or len(set(steps)) == len(saves), "it got on in between"


@pytest.fixture
def killed(jobs: Jobs, tmp_path: Path) -> Path:
    """What a PT run leaves that is killed with two generations of its checkpoint written."""
    ended = jobs.run(jobs["PT"].job(tmp_path / "killed"), kill_at=4)
    assert ended.status == -signal.SIGKILL, ended
    return tmp_path / "killed"


def cut(content: bytes, random: np.random.Generator) -> bytes:
    return content[: random.integers(len(content))]


def flipped(content: bytes, random: np.random.Generator) -> bytes:
    altered = bytearray(content)
    for place in random.choice(len(altered), random.integers(1, 4)):
        altered[place] ^= 1 << random.integers(8)
    return bytes(altered)


def test_an_altered_checkpoint_is_passed_over_for_the_one_before(jobs: Jobs, killed: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    damages = [{}, *({"state.pt": change} for change in (cut, flipped) for _ in range(times(1)))]
    damages.append({"state.pt": cut, "state.pt.previous": flipped})
    for number, damage in enumerate(damages):
        folder = shutil.copytree(killed, tmp_path / str(number))
        for name, change in damage.items():
            path = folder / "resume" / name
            path.write_bytes(change(path.read_bytes(), random))
        log = jobs.run_well(jobs["PT"], folder).log
        assert ("state.pt is cut or altered and is passed over" in log) == bool(damage)
        if len(damage) == 2:
            assert "no checkpoint of this run is left, so it starts anew" in log
        assert re.findall(r"goes on at step (\d+)", log) == [["4"], ["3"], []][len(damage)]


RUN = """
import json, sys
from metapt.engine.execute import execute
from metapt.engine.jobs import Job
sys.exit(execute(Job(**json.loads(sys.argv[1]))))
"""


def test_a_state_of_other_code_is_passed_over(jobs: Jobs, tmp_path: Path) -> None:
    """FT goes through the layers of `hypergrad`, whatever it imports of them itself."""
    job = jobs["FT"].job(tmp_path / "run")
    ended = jobs.run(job, kill_at=4)
    assert ended.status == -signal.SIGKILL, ended
    shutil.copytree(PACKAGE, tmp_path / "source/metapt", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "source/metapt/hypergrad/layers/batch_norm.py").open("a") as file:
        file.write("\nCHANGED = True\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "source"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN, json.dumps(asdict(job))]
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "state.pt belongs to another config, data, code, version of torch, device" in log
    assert "no checkpoint of this run is left, so it starts anew" in log
