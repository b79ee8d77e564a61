"""Killed with SIGKILL at random moments: files are complete, and the rerun ends in the bits of an undisturbed run."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..fetching.serving import Answer, Handler, Server
from .conftest import Contents, Jobs, Kind, contents, times

pytestmark = pytest.mark.slow
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


def check_whole(folder: Path, right: Contents) -> None:
    for name, content in contents(folder).items():
        assert name.endswith(".part") or content == right[name], f"{name} is there, and is not whole"


@pytest.mark.parametrize(("name", "few"), [("preparation", 3), ("PT", 3), ("meta-PT", 3), ("FT", 3)])
def test_a_killed_job_goes_on_to_the_same_bits(name: str, few: int, jobs: Jobs, tmp_path: Path) -> None:
    right, seconds = jobs.undisturbed(jobs[name])
    for number, moment in enumerate(moments(few, seed=len(name))):
        folder = killed_at(moment, seconds, jobs[name], jobs, tmp_path / str(number))
        check_whole(folder, right)
        jobs.run_well(jobs[name], folder)
        assert json.loads((folder / "run.json").read_text())["state"] == "done"


DOWNLOADED = ("large0", "large1", "z.csv", "records.json")


def slowly(content: bytes) -> Answer:
    """Answer with the requested range in ten pieces, a hundredth of a second apart."""

    def answer(handler: Handler) -> None:
        start, step = handler.start, max(1, len(content) // 10)
        range_of = f"bytes {start}-{len(content) - 1}/{len(content)}"
        handler.reply(206 if start else 200, b"", Content_Length=str(len(content) - start), Content_Range=range_of)
        for place in range(start, len(content), step):
            handler.wfile.write(content[place : place + step])
            handler.wfile.flush()
            time.sleep(0.01)

    return answer


def source(server: Server) -> dict[str, Any]:
    """A source of two large files and of 20 small ones that a list of sums describes."""
    random = np.random.default_rng(0)
    large = {f"large{number}": random.bytes(300_000) for number in range(2)}
    records = {f"records/{number}.{kind}": random.bytes(2_000) for number in range(10) for kind in ("dat", "hea")}
    records["z.csv"] = b"which is looked for in the list, and comes last there"
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in records.items())
    served = large | records | {"SHA256SUMS.txt": sums.encode()}
    server.answers |= {f"/{name}": slowly(content) for name, content in served.items()}
    return {
        "name": "things", "version": "1", "licence": "none", "description": "for tests", "citation": "none",
        "urls": [server.url],
        "files": {name: {"at_most": len(it), "sha256": hashlib.sha256(it).hexdigest()} for name, it in large.items()},
        "listed": {"sums": "SHA256SUMS.txt", "files": ["z.csv"], "records": "records/"},
    }  # fmt: skip


def test_a_killed_download_goes_on(server: Server, jobs: Jobs, tmp_path: Path) -> None:
    kind = Kind(
        "download",
        "fetching",
        {"source": source(server), "mirrors": []},
        outputs={name: name for name in DOWNLOADED},
    )
    right, seconds = jobs.undisturbed(kind)
    assert len(right) == 3 + 20 + 1 + 1
    for number, moment in enumerate(moments(4, seed=1)):
        folder = killed_at(moment, seconds, kind, jobs, tmp_path / str(number))
        check_whole(folder, right)
        jobs.run_well(kind, folder)


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
