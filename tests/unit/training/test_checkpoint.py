"""A checkpoint is whole or not there; what is wrong with one is seen, said in the log, and survived."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from metapt.errors import DataError, MachineError
from metapt.hypergrad import Pretrained
from metapt.sections import ResumableSettings
from metapt.training.checkpoint import Checkpoint, fingerprint
from metapt.training.measure import Measured
from metapt.training.pretrained_file import Learned, load_pretrained, save_pretrained

from .kinds import refused
from .test_runs import torch_bytes

STATE = {"step": 1, "weights": torch.arange(50.0), "nested": {"name": "a", "list": [1.5, None, True]}}


class Settings(ResumableSettings):
    lr: float = 0.1


def saved(path: Path, generations: int = 2, fingerprint: str = "mine") -> Checkpoint:
    checkpoint = Checkpoint(path, fingerprint)
    for step in range(generations):
        checkpoint.save({**STATE, "step": step})
    return Checkpoint(path, fingerprint)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / "on demand" / "state.pt"


def step(state: dict[str, Any] | None) -> int | None:
    return None if state is None else state["step"]


def test_what_was_saved_is_loaded(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert Checkpoint(str(path), "mine").load() is None
    assert not caplog.records
    loaded = saved(path, 1).load()
    assert loaded is not None
    assert torch.equal(loaded.pop("weights"), STATE["weights"])
    assert loaded == {"step": 0, "nested": STATE["nested"]}


def test_work_that_goes_on_from_another_process_is_not_measured_as_a_whole(path: Path) -> None:
    save = "import sys, pathlib; from metapt.training.checkpoint import Checkpoint"
    save += "; Checkpoint(pathlib.Path(sys.argv[1]), sys.argv[2]).save({})"
    with Measured("cpu") as outer:
        Checkpoint(path, "mine").save({})
        assert Checkpoint(path, "mine").load() == {}
        assert outer.whole, "this process has done the work before"
        subprocess.run([sys.executable, "-c", save, str(path), "mine"], check=True)
        with Measured("cpu") as inner:
            assert Checkpoint(path, "mine").load() == {}
        with Measured("cpu") as later:
            pass
    assert (outer.whole, inner.whole, later.whole) == (False, False, True)


def test_the_newest_of_many_generations_is_loaded_and_two_are_kept(path: Path) -> None:
    assert step(saved(path, 5).load()) == 4
    assert len(list(path.parent.iterdir())) == 2


@pytest.mark.parametrize("flipped", [False, True], ids=["cut", "a flipped bit"])
def test_a_file_altered_anywhere_gives_the_generation_before_it(
    flipped: bool, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(path)
    content, choose = path.read_bytes(), random.Random(0)
    for position in [0, 1, 31, 32, 33, len(content) - 1, *choose.sample(range(len(content)), 20)]:
        altered = bytearray(content)
        altered[position] ^= 1 << choose.randrange(8)
        path.write_bytes(altered if flipped else content[:position])
        caplog.clear()
        assert step(Checkpoint(path, "mine").load()) == 0
        assert "state.pt is cut or altered and is passed over" in caplog.text
        assert "anew" not in caplog.text


def test_with_both_generations_bad_the_run_starts_anew_and_says_so(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = saved(path)
    for file in path.parent.iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    assert checkpoint.load() is None
    assert caplog.text.count("is cut or altered and is passed over") == 2
    assert "no checkpoint of this run is left, so it starts anew" in caplog.text


def test_another_runs_checkpoint_is_passed_over(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(path, fingerprint="theirs")
    assert Checkpoint(path, "mine").load() is None
    assert "belongs to another config, data, code, version of torch, device" in caplog.text


@pytest.mark.parametrize(
    "content",
    [b"", b"no pickle", torch_bytes([1]), torch_bytes({"fingerprint": "mine"}), torch_bytes({"state": {}})],
    ids=["empty", "text", "a list", "no state", "no fingerprint"],
)
def test_other_content_with_a_right_digest_is_refused(path: Path, content: bytes) -> None:
    checkpoint = saved(path)
    path.write_bytes(hashlib.sha256(content).digest() + content)
    with pytest.raises(DataError, match=r"is no checkpoint of metapt: name another|is whole, and torch can't load it"):
        checkpoint.load()


def test_a_folder_in_its_place_is_one_sentence(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(DataError, match="is a folder, and a checkpoint belongs there: remove it"):
        Checkpoint(path, "mine").load()


def test_a_run_is_bound_to_its_config_its_inputs_contents_its_code_and_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {name: tmp_path / name for name in ("encoder", "labels")}
    for name, file in inputs.items():
        file.write_text(name)
    given: dict[str, Any] = {
        "settings": Settings(lr=0.1),
        "inputs": inputs,
        "module": "metapt.hypergrad.inverse",
        "device": "cpu",
    }
    first = fingerprint(**given)
    moved = {name: file.rename(tmp_path / f"moved {name}") for name, file in inputs.items()}
    assert fingerprint(**(given | {"inputs": moved})) == first
    given |= {"inputs": moved}
    elsewhere = [given | {"settings": Settings(checkpoint=f"{folder}/.resume/a.pt")} for folder in ("one", "two")]
    assert fingerprint(**elsewhere[0]) == fingerprint(**elsewhere[1])
    others = [
        fingerprint(**(given | change))
        for change in (
            {"settings": Settings(lr=0.2)},
            {"module": "metapt.training.streams"},
            {"device": "cuda"},
            {"inputs": {"encoder": moved["encoder"]}},
            {"inputs": {"encoder": moved["labels"], "labels": moved["encoder"]}},
        )
    ]
    moved["labels"].write_text("other labels")
    others.append(fingerprint(**given))
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")  # the library of matrix products
    others.append(fingerprint(**given))
    assert len({first, *others}) == 1 + len(others)


@pytest.mark.parametrize("bad", [False, True], ids=["whole", "after a bad file"])
def test_killed_between_the_two_renames_the_one_before_is_left(
    bad: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = saved(path, 1 + bad)
    if bad:
        path.write_bytes(b"cut")
    assert step(checkpoint.load()) == 0

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save({**STATE, "step": 7})
    assert step(Checkpoint(path, "mine").load()) == 0


def test_a_full_disk_is_a_sentence_and_leaves_the_last_state(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = saved(path, 1)
    checkpoint.load()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match="the disk is full"):
        checkpoint.save({**STATE, "step": 1})
    assert step(Checkpoint(path, "mine").load()) == 0


def test_remove_leaves_nothing_and_load_sweeps_up_what_killed_processes_left(path: Path) -> None:
    checkpoint = saved(path)
    litter, other = path.with_name(".0a1b2c3d.state.pt"), path.with_name(".0a1b2c3d.state.pt.txt")
    litter.touch()
    other.touch()
    checkpoint.load()
    assert not litter.exists()
    litter.touch()
    checkpoint.remove()
    assert list(path.parent.iterdir()) == [other]
    checkpoint.remove()  # nothing there: nothing happens


def test_two_jobs_of_the_same_run_do_not_end_each_other(path: Path) -> None:
    first, second = saved(path, 1), saved(path, 1)
    first.load()
    second.load()
    first.remove()
    second.save({**STATE, "step": 5})
    assert step(Checkpoint(path, "mine").load()) == 5


another_network = refused(
    "a file of pre-trained tensors with another name, type or shape",
    "has no encoder of width 2",
    "in the file it is",
    "Remove it",
)
NETWORK = Pretrained({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, {}, {"count": torch.tensor(1)})


@pytest.mark.parametrize(
    ("part", "name", "value", "words"),
    [
        ("encoder", "weight", torch.ones(2, 3, dtype=torch.float64), r"float32 of .*2, 3\); .* float64 of .*2, 3\)"),
        ("encoder", "bias", torch.ones(2, dtype=torch.int64), "bias in encoder is"),
        ("encoder", "bias", torch.ones(1), "bias in encoder is"),
        ("encoder", "weight", torch.ones(3, 2), "weight in encoder is"),
        ("encoder", "added", torch.ones(2), "added in encoder is missing"),
        ("buffers", "count", None, r"count in buffers is int64 of shape \(\); in the file it is missing"),
        ("buffers", "count", torch.tensor(1.0), r"count in buffers is int64 of shape \(\)"),
        ("buffers", "count", torch.tensor([1]), r"count in buffers is int64 of shape \(\)"),
    ],
)
def test_a_network_of_another_kind_is_refused(part: str, name: str, value: Any, words: str, tmp_path: Path) -> None:
    parts = NETWORK._asdict()
    parts[part] = {key: each for key, each in {**parts[part], name: value}.items() if each is not None}
    save_pretrained(Learned(Pretrained(**parts), {}), tmp_path / "pretrained.pt")
    another_network(load_pretrained)(tmp_path / "pretrained.pt", NETWORK, "width 2", "cpu")
    with pytest.raises(DataError, match=words):
        load_pretrained(tmp_path / "pretrained.pt", NETWORK, "width 2", "cpu")


def test_a_network_of_the_same_kind_is_read_in_any_order(tmp_path: Path) -> None:
    encoder = {"bias": torch.zeros(2), "weight": torch.zeros(2, 3)}
    save_pretrained(Learned(NETWORK._replace(encoder=encoder), {}), tmp_path / "pretrained.pt")
    found = load_pretrained(tmp_path / "pretrained.pt", NETWORK, "width 2", "cpu")
    assert torch.equal(found.pretrained.encoder["weight"], torch.zeros(2, 3))
