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

from .conftest import Jobs, Kind, check_whole, contents, leftovers

Disk = Callable[[str], Path]


@pytest.mark.parametrize(("name", "least"), [("preparation", 64), ("FT", 8), ("download", 64)])
def test_a_full_disk(name: str, least: int, jobs: Jobs, download: Kind, disk: Disk) -> None:
    """Everything that the job writes lies on the disk, which grows until it fits: data, results, log and record."""
    kind = download if name == "download" else jobs[name]
    right, _ = jobs.undisturbed(kind)
    size, status = least, 1
    while status:
        folder = disk(f"size={size}k") / "run"
        ended = jobs.run(kind.job(folder))
        status = ended.status
        check_whole(folder, right)
        if status:
            assert "the disk is full" in ended.error
            assert "make room, or name a folder on another disk in the config" in ended.error
            size = size * 2 + 4
    assert contents(folder) == right
    assert not leftovers(folder)
    assert size > least, "it was full at first"


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
