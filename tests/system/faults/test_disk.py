"""A full or read-only disk: one sentence, no partial file under a final name, and a rerun that completes.

`test_every_call.py` has the same for each call of a job, but not for what NumPy and torch write past Python.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from metapt.engine.jobs import Job

from ..fetching.serving import Server
from .conftest import Contents, Jobs, Kind, contents, leftovers
from .test_kill import DOWNLOADED, check_whole, source

pytestmark = pytest.mark.slow
Disk = Callable[[str], Path]


def until_it_fits(job: Job, folder: Path, disk: Disk, right: Contents, jobs: Jobs, least: int) -> int:
    """Runs a job on a disk that grows by half until it fits; the number of times that the disk was full."""
    full, size = 0, least
    while True:
        disk(f"size={size}k")
        ended = jobs.run(job)
        check_whole(folder, right)
        if ended.status == 0:
            assert contents(folder) == right
            assert not leftovers(folder)
            return full
        full += 1
        assert "the disk is full" in ended.error, ended.error
        assert "make room, or name a folder on another disk in the config" in ended.error
        assert "Traceback" not in ended.stderr
        size = size * 3 // 2 + 4


@pytest.mark.parametrize(("name", "least"), [("preparation", 64), ("FT", 8)])
def test_a_full_disk(name: str, least: int, jobs: Jobs, disk: Disk) -> None:
    """Everything that the job writes lies on the disk: data, checkpoint, results, log and record."""
    right, _ = jobs.undisturbed(jobs[name])
    folder = disk(f"size={least}k") / "run"
    full = until_it_fits(jobs[name].job(folder), folder, disk, right, jobs, least)
    assert full


def test_a_full_disk_in_a_download(server: Server, jobs: Jobs, disk: Disk) -> None:
    kind = Kind(
        "download",
        "fetching",
        {"source": source(server), "mirrors": []},
        outputs={name: name for name in DOWNLOADED},
    )
    right, _ = jobs.undisturbed(kind)
    folder = disk("size=64k") / "run"
    full = until_it_fits(kind.job(folder), folder, disk, right, jobs, 64)
    assert full


@pytest.mark.parametrize("name", ["preparation", "FT"])
def test_a_read_only_folder(name: str, jobs: Jobs, disk: Disk, tmp_path: Path) -> None:
    folder = disk("size=16m") / "run"
    (folder / "out").mkdir(parents=True)
    disk("size=16m,ro")
    ended = jobs.run(jobs[name].job(folder))
    assert "can't be written" in ended.error
    assert os.strerror(errno.EROFS) in ended.error
    ended = jobs.run(replace(jobs[name].job(folder), log=str(tmp_path / "log.txt")))
    assert f"{folder}" in ended.error
    assert "can't be written" in ended.error
    disk("size=16m,rw")
    jobs.run_well(jobs[name], folder)
