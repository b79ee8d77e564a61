"""A clock that jumps, one core, one thread, two runs at once, a killed Snakemake, no home folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from metapt.errors import MachineError
from metapt.machine import find_caches

from ...contract.domain_cases import CASES
from ..workflow.conftest import ROOT, TINY, Outcome, snakemake
from .conftest import Jobs, contents, leftovers

SNAKEMAKE = [sys.executable, "-m", "snakemake", "--snakefile", ROOT / "workflow" / "Snakefile"]


@pytest.mark.parametrize("name", ["PT", "meta-PT", "FT"])
def test_neither_clock_nor_cores_change_a_bit(name: str, jobs: Jobs, tmp_path: Path) -> None:
    jobs.run_well(jobs[name], tmp_path, faults=("checkpoint_always", "jumping_clock", "one_core"))
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
    asked = (data, "--configfile", TINY["mnist"])

    def run(*arguments: str | Path) -> Outcome:
        return snakemake(folder, *arguments, cores=("--cores", "1"))

    folder.mkdir()
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / ".cache"), "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(
        [*SNAKEMAKE, *asked, "--cores", "1"], cwd=folder, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while not any(lock.stat().st_size for lock in folder.glob(".snakemake/locks/*.output.lock")):
            assert first.poll() is None, "Snakemake ended before it locked its folder"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(first.pid, signal.SIGSTOP)  # on a fast machine it would end before it is killed
        second = run(*asked)
        assert second.status != 0
        assert "cannot be locked" in second.text
        assert "Traceback" not in second.text
    finally:
        with suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert run("--unlock", *asked[1:]).status == 0
    again = run(*asked)
    assert again.status == 0, again.text
    assert (folder / data).read_bytes() == CASES["mnist"].prepare(tmp_path)["data"].read_bytes()


@pytest.fixture
def no_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"):
        monkeypatch.setenv(variable, "as it was")  # so that it is put back
        monkeypatch.delenv(variable)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.usefixtures("no_caches")
def test_a_home_folder_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    find_caches()
    assert not {"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"} & os.environ.keys()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("no_caches")
@pytest.mark.parametrize("home", ["/dev/null", "read-only", "file/home", "~"])
def test_without_a_home_folder_a_temporary_one_is_named_once(
    home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, disk: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(disk("ro") if home == "read-only" else home if home[0] in "/~" else tmp_path / home))
    find_caches()
    folder = os.environ["XDG_CACHE_HOME"]
    assert Path(folder).parent == tmp_path
    assert os.environ["MPLCONFIGDIR"] == folder
    assert capsys.readouterr().err.startswith(f"the home folder can't be written, so that caches are kept in {folder}")
    find_caches()
    assert capsys.readouterr().err == ""
    assert not Path("~").exists()


@pytest.mark.usefixtures("no_caches")
def test_without_any_folder_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    with pytest.raises(MachineError, match="neither the home folder nor a temporary folder can be written"):
        find_caches()


@pytest.mark.usefixtures("no_caches")
def test_the_workflow_needs_no_home(tmp_path: Path) -> None:
    """Other packages print neither traceback nor advice."""
    command = [*SNAKEMAKE, "--dry-run", "--quiet", "--configfile", TINY["mnist"]]
    environment = os.environ | {"HOME": "/dev/null"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the home folder can't be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Matplotlib" not in done.stderr
