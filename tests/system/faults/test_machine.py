"""A clock that jumps, one core, one thread, two runs at once, a killed Snakemake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ..workflow.conftest import NOTHING, ROOT, TINY, Outcome, snakemake
from .conftest import Jobs, contents, leftovers

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["PT", "meta-PT", "FT"])
@pytest.mark.parametrize("fault", ["jumping_clock", "one_core"])
def test_neither_clock_nor_cores_change_a_bit(fault: str, name: str, jobs: Jobs, tmp_path: Path) -> None:
    jobs.run_well(jobs[name], tmp_path, faults=("checkpoint_always", fault))
    assert '"wall_time_s": -' not in (tmp_path / "run.json").read_text()


def test_more_threads_than_cores(jobs: Jobs, tmp_path: Path) -> None:
    ended = jobs.run(jobs["PT"].job(tmp_path, threads=4), faults=("one_core",))
    assert ended.status == 0, ended.stderr
    assert len(contents(tmp_path)) == 3


@pytest.mark.parametrize("name", ["preparation", "PT", "FT"])
def test_two_jobs_that_write_the_same_files(name: str, jobs: Jobs, tmp_path: Path) -> None:
    """As two Snakemakes in different folders would start them: each writes its files whole, and both write the same."""
    right, _ = jobs.undisturbed(jobs[name])
    job = jobs[name].job(tmp_path)
    ended = jobs.forks(job, replace(job, log=str(tmp_path / "log2.txt")))
    assert [each.status for each in ended] in ([0, 0], [0, 1], [1, 0]), ended
    for each in ended:
        assert each.status == 0 or each.error
    assert contents(tmp_path) == right
    assert not leftovers(tmp_path)


def test_two_snakemakes_and_a_killed_one(tmp_path: Path) -> None:
    folder, data = tmp_path / "folder", Path("results/tiny/mnist/data/digits/images.pt")

    def run(*arguments: str, folder: Path = folder, target: str = str(data)) -> Outcome:
        chosen = (target,) if target else ()
        return snakemake(folder, *chosen, "--configfile", TINY["mnist"], *arguments, cores=("--cores", "1"))

    folder.mkdir()
    snakefile = ROOT / "workflow" / "Snakefile"
    whole = ["results/tiny/mnist/rotation_mean/k2/metrics.csv", "--snakefile", snakefile, "--configfile", TINY["mnist"]]
    first = subprocess.Popen(
        [sys.executable, "-m", "snakemake", *whole, "--cores", "1"],
        cwd=folder,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / ".cache"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        locks, deadline = folder / ".snakemake" / "locks", time.monotonic() + 120
        while not (locks.is_dir() and any(locks.iterdir())):
            assert first.poll() is None, "Snakemake ended before it locked its folder"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(first.pid, signal.SIGSTOP)  # on a fast machine it would end before it is killed
        second = run()
        assert second.status != 0
        assert "cannot be locked" in second.text
        assert "Traceback" not in second.text
    finally:
        with suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert "cannot be locked" in run().text
    assert run("--unlock", target="").status == 0
    again = run()
    assert again.status == 0, again.text
    assert NOTHING in run("--dry-run").text
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    done = run(folder=undisturbed)
    assert done.status == 0, done.text
    assert (folder / data).read_bytes() == (undisturbed / data).read_bytes()
