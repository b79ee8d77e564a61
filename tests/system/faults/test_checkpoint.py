"""A checkpoint that is cut or altered is passed over for the one before it, and the run ends in the same bits."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from metapt.engine.digest import PACKAGE

from .conftest import Jobs, times

pytestmark = pytest.mark.slow
CHOOSE = random.Random(3)


def cut(content: bytes) -> bytes:
    return content[: CHOOSE.randrange(len(content))]


def flipped(content: bytes) -> bytes:
    altered = bytearray(content)
    for _ in range(CHOOSE.randint(1, 3)):
        altered[CHOOSE.randrange(len(altered))] ^= 1 << CHOOSE.randrange(8)
    return bytes(altered)


@pytest.fixture
def killed(jobs: Jobs, tmp_path: Path) -> Path:
    """What a PT run leaves that is killed with two generations of its checkpoint written."""
    ended = jobs.run(jobs["PT"].job(tmp_path / "run"), faults=("checkpoint_always", "killed_at_fourth_checkpoint"))
    assert ended.status == -signal.SIGKILL, ended
    shutil.copytree(tmp_path / "run", tmp_path / "kept")
    return tmp_path / "run"


def resumed(killed: Path, damage: dict[str, Callable[[bytes], bytes]], jobs: Jobs) -> str:
    """The log of a run that goes on with damaged files of checkpoints."""
    shutil.rmtree(killed)
    shutil.copytree(killed.with_name("kept"), killed)
    for name, change in damage.items():
        path = killed / "resume" / name
        path.write_bytes(change(path.read_bytes()))
    return jobs.run_well(jobs["PT"], killed).log


def step(log: str) -> int | None:
    found = re.search(r"goes on at step (\d+)", log)
    return None if found is None else int(found[1])


def test_the_one_before_is_used_and_said(jobs: Jobs, killed: Path) -> None:
    newest = step(resumed(killed, {}, jobs))
    assert newest == 4
    for change in (cut, flipped):
        for _ in range(times(2)):
            log = resumed(killed, {"state.pt": change}, jobs)
            assert "state.pt is cut or altered and is passed over" in log
            assert step(log) == newest - 1
    log = resumed(killed, {"state.pt": cut, "state.pt.previous": flipped}, jobs)
    assert "no checkpoint of this run is left, so it starts anew" in log
    assert step(log) is None


RUN = """
import json, sys
from metapt.engine.execute import execute
from metapt.engine.jobs import Job
sys.exit(execute(Job(**json.loads(sys.argv[1]))))
"""


def test_a_state_of_other_code_is_passed_over(jobs: Jobs, tmp_path: Path) -> None:
    """FT goes through the layers of `hypergrad`, whatever it imports of them itself."""
    job = jobs["FT"].job(tmp_path / "run")
    ended = jobs.run(job, faults=("checkpoint_always", "killed_at_fourth_checkpoint"))
    assert ended.status == -signal.SIGKILL, ended
    shutil.copytree(PACKAGE, tmp_path / "source/metapt", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "source/metapt/hypergrad/layers/relu.py").open("a") as file:
        file.write("\nCHANGED = True\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "source"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN, json.dumps(asdict(job))]
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "state.pt belongs to another config, data, code, version of torch, device" in log
    assert "no checkpoint of this run is left, so it starts anew" in log
