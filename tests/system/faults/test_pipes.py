"""A pipe or a device in the place of a file is refused with a sentence; opened as a file, it would hang for ever."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from metapt.cli import main
from metapt.domains.ecg.data import prepare as ecg
from metapt.domains.ecg.data.sources import read_database, read_signals
from metapt.domains.mnist.data import prepare as mnist
from metapt.domains.mnist.data import read_idx
from metapt.domains.ppi.data import convert, graphs
from metapt.domains.ppi.data.string_files import read_links, read_terms
from metapt.engine import records
from metapt.engine.config_files import read_one
from metapt.errors import ConfigError, DataError, MetaptError
from metapt.evaluation import headroom_report, metrics, summary
from metapt.evaluation.summary import experiment_text
from metapt.files import sha256
from metapt.hypergrad import Pretrained
from metapt.training.checkpoint import Checkpoint
from metapt.training.pretrained_file import load_pretrained

NOTHING = Pretrained({}, {}, {})
READERS: dict[str, Callable[[Path], object]] = {
    "a config": read_one,
    "images of MNIST": read_idx,
    "gzipped images of MNIST": lambda path: read_idx(_renamed(path, "images.gz")),
    "prepared MNIST": lambda path: mnist.load(path, "cpu"),
    "links of STRING": lambda path: read_links(path, 1),
    "terms of STRING": lambda path: read_terms(path, 1, np.empty(0, object)),
    "the archive of Hu et al.": convert.read_archive,
    "prepared graphs": graphs.load,
    "tables of PTB-XL": lambda path: read_database(path, path),
    "a record of PTB-XL": lambda path: read_signals(_renamed(path, "00001_lr.hea").parent, ["00001_lr"]),
    "prepared records": lambda path: ecg.load(path, path),
    "metrics": metrics.read,
    "series": metrics.read_series,
    "a table of runs": lambda path: headroom_report.read([path]),
    "a table of claims": summary.read_claims,
    "the results of an experiment": lambda path: experiment_text(_renamed(path, "metrics.csv").parent),
    "the record of a run": records.read,
    "a record beside a file": lambda path: records.checked(_renamed(path, "run.json").with_name("made")),
    "a pre-trained network": lambda path: load_pretrained(path, NOTHING, "none", "cpu"),
    "any file": sha256,
}


def _renamed(path: Path, name: str) -> Path:
    return path.rename(path.with_name(name))


@pytest.fixture(autouse=True)
def _not_for_ever() -> Iterator[None]:
    def hang(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["pipe", "device"])
def endless(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "it"
    if request.param == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("reader", READERS)
def test_what_has_no_end_is_refused(reader: str, endless: Path) -> None:
    with pytest.raises(MetaptError, match="it is a pipe or a device, not a file"):
        READERS[reader](endless)


def test_the_command_that_converts_refuses_it(endless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert.main([str(endless), str(endless.with_name("out"))]) == 1
    assert f"error: {endless} can't be read (it is a pipe or a device, not a file)" in capsys.readouterr().err
    assert not endless.with_name("out").exists()


def test_the_commands_that_read_a_config_or_tables_refuse_it(endless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["check", "--configfile", str(endless)], ["headroom", str(endless)]):
        assert main(arguments) == 1
        assert "can't be read: it is a pipe or a device, not a file" in capsys.readouterr().err


def test_in_place_of_a_checkpoint_it_is_not_read(endless: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert Checkpoint(endless, "mine").load() is None
    assert f"the checkpoint {endless} can't be read (it is a pipe or a device, not a file)" in caplog.text


def test_a_folder_is_refused_as_before(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: Is a directory"):
        read_one(tmp_path)
    for read in (read_idx, metrics.read):
        with pytest.raises(DataError, match="can't be read: Is a directory"):
            read(tmp_path)
