"""Files from outside are data: no code of ours runs them, unpacks them by their own names, or waits for a pipe."""

from __future__ import annotations

import ast
import os
import re
import signal
import zipfile
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
from metapt.domains.ppi.data.archive import read_archive
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

ROOT = Path(__file__).parents[3]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "workflow").rglob("*.py")])
MODULES = re.compile(r"(pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve|tarfile|ftplib|telnetlib)(\..*)?")
CALLS = re.compile("eval|exec|compile|__import__|extract|extractall|unpack_archive|read_pickle|urlopen|urlretrieve")
"""What is forbidden; `compile` of the module re is another one."""


def is_constant(value: ast.expr | None, expected: object) -> bool:
    return isinstance(value, ast.Constant) and value.value is expected


def faults_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        yield from (f"imports {name}" for name in names if MODULES.fullmatch(name))
    if not isinstance(node, ast.Call):
        return
    words = {word.arg: word.value for word in node.keywords}
    owner, _, name = f".{ast.unparse(node.func)}".rpartition(".")
    if CALLS.fullmatch(name) and (owner, name) != (".re", "compile"):
        yield f"calls {owner}.{name}"
    if (owner, name) == (".torch", "load") and not is_constant(words.get("weights_only"), True):
        yield "calls torch.load without weights_only=True"
    if (owner, name) == (".np", "load") and not is_constant(words.get("allow_pickle", ast.Constant(False)), False):
        yield "calls np.load with allow_pickle"
    if owner == ".yaml" and name in ("load", "load_all", "unsafe_load", "full_load"):
        yield f"calls yaml.{name}"
    if not is_constant(words.get("shell", ast.Constant(False)), False):
        yield "calls a shell"


def faults(code: str) -> list[str]:
    return [fault for node in ast.walk(ast.parse(code)) for fault in faults_of(node)]


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, Loader)",
        "zipfile.ZipFile(path).extractall()",
        "subprocess.run(text, shell=True)",
        "eval(text)",
        "urllib.request.urlopen(url)",
    ],
)
def test_the_check_sees(code: str) -> None:
    assert faults(code)


def test_no_file_is_run() -> None:
    assert len(SOURCES) > 100
    assert {path.name: found for path in SOURCES if (found := faults(path.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "C:\\escaped", "a/../../escaped"])
def test_members_stay_in_the_archive(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an archive's members are called, nothing of it is written anywhere."""
    folder = tmp_path / "inside"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with zipfile.ZipFile(folder / "archive.zip", "w") as file:
        file.writestr(f"{name}/supervised/processed/geometric_data_processed.pt", b"\x80\x02.")
    with pytest.raises(DataError, match="is cut, altered or not the archive"):
        read_archive(folder / "archive.zip")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["archive.zip"]


def _renamed(path: Path, name: str) -> Path:
    return path.rename(path.with_name(name))


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
    "series": metrics.read_series_rows,
    "a table of runs": lambda path: headroom_report.read([path]),
    "a table of claims": summary.read_claims,
    "the results of an experiment": lambda path: experiment_text(_renamed(path, "metrics.csv").parent),
    "the record of a run": records.read,
    "a record beside a file": lambda path: records.checked(_renamed(path, "run.json").with_name("made")),
    "a pre-trained network": lambda path: load_pretrained(path, Pretrained({}, {}, {}), "none", "cpu"),
    "any file": sha256,
}


@pytest.fixture(params=["pipe", "device"])
def endless(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A pipe or a device, which would hang for ever if it were opened as a file."""

    def hang(*_: object) -> None:
        raise AssertionError("it hangs")

    path = tmp_path / "it"
    if request.param == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(5)
    yield path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("reader", READERS)
def test_what_has_no_end_is_refused(reader: str, endless: Path) -> None:
    with pytest.raises(MetaptError, match="it is a pipe or a device, not a file"):
        READERS[reader](endless)


def test_commands_refuse_what_has_no_end(endless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert.main([str(endless), str(endless.with_name("out"))]) == 1
    assert f"error: {endless} can't be read (it is a pipe or a device, not a file)" in capsys.readouterr().err
    assert not endless.with_name("out").exists()
    for arguments in (["check", "--configfile", str(endless)], ["headroom", str(endless)]):
        assert main(arguments) == 1
        assert "can't be read: it is a pipe or a device, not a file" in capsys.readouterr().err


def test_in_place_of_a_checkpoint_it_is_not_read(endless: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert Checkpoint(endless, "mine").load() is None
    assert f"the checkpoint {endless} can't be read (it is a pipe or a device, not a file)" in caplog.text


@pytest.mark.parametrize(("read", "error"), [(read_one, ConfigError), (read_idx, DataError), (metrics.read, DataError)])
def test_a_folder_is_refused_as_before(read: Callable[[Path], object], error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match="can't be read: Is a directory"):
        read(tmp_path)
