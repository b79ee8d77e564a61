"""A checkpoint is whole or not there; what a run is taken up with, and what is refused."""

from __future__ import annotations

import errno
import hashlib
import io
import multiprocessing
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, MultiplicativeLR, SequentialLR

from metapt import MetaPretraining, OptimizerSpec, Recorder
from metapt.errors import DataError, MachineError
from metapt.hypergrad import Adam, Identity, Neumann, Pretrained, Unroll
from metapt.sections import ResumableSettings
from metapt.training.checkpoint import Checkpoint, fingerprint
from metapt.training.pretrained_file import Learned, load_pretrained, save_pretrained
from metapt.training.recorder import Measured

from .kinds import refused, right, warned
from .problems import DTYPE
from .small_runs import META, SETTINGS, checkpoint, learned, made, pretrain, resumed, run, spec

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


def test_the_newest_of_many_generations_is_loaded_and_two_are_kept(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Checkpoint(str(path), "mine").load() is None
    assert not caplog.records
    loaded = saved(path, 5).load()
    assert loaded is not None
    assert torch.equal(loaded.pop("weights"), STATE["weights"])
    assert loaded == {"step": 4, "nested": STATE["nested"]}
    assert len(list(path.parent.iterdir())) == 2


def test_work_that_goes_on_from_another_process_is_not_measured_as_a_whole(path: Path) -> None:
    another = multiprocessing.get_context("fork").Process(target=lambda: Checkpoint(path, "mine").save({}))
    with Measured("cpu") as outer:
        Checkpoint(path, "mine").save({})
        assert Checkpoint(path, "mine").load() == {}
        assert outer.whole, "this process has done the work before"
        another.start()
        another.join()
        assert another.exitcode == 0
        with Measured("cpu") as inner:
            assert Checkpoint(path, "mine").load() == {}
        with Measured("cpu") as later:
            pass
    assert (outer.whole, inner.whole, later.whole) == (False, False, True)


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


def test_a_folder_in_its_place_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder, and a checkpoint belongs there: remove it"):
        Checkpoint(tmp_path, "mine").load()


def test_a_run_is_bound_to_config_contents_of_inputs_code_device_and_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, labels, other, copied = (tmp_path / name for name in ("encoder", "labels", "other", "copied"))
    for file in (encoder, labels, other):
        file.write_text(file.name)
    copied.write_text("encoder")
    module, inputs = "metapt.hypergrad.inverse", {"encoder": encoder, "labels": labels}
    given: dict[str, Any] = {"settings": Settings(), "inputs": inputs, "module": module, "device": "cpu"}
    same: tuple[dict[str, Any], ...] = (
        {},
        {"inputs": inputs | {"encoder": copied}},
        {"settings": Settings(checkpoint="two/.resume/a.pt")},
    )
    assert len({fingerprint(**(given | change)) for change in same}) == 1
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"settings": Settings(lr=0.2)},
        {"module": "metapt.training.streams"},
        {"device": "cuda"},
        {"inputs": {"encoder": encoder}},
        {"inputs": {"encoder": labels, "labels": encoder}},
        {"inputs": {"encoder": encoder, "labels": other}},
    )
    others = {fingerprint(**(given | change)) for change in changes}
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    assert len({*others, fingerprint(**given)}) == len(changes) + 1


FAILURES: dict[str, tuple[str, Any, Any, str | None]] = {
    "killed between the two renames": ("pathlib.Path.replace", KeyboardInterrupt(), KeyboardInterrupt, None),
    "a full disk": ("os.fsync", OSError(errno.ENOSPC, "no space"), MachineError, "the disk is full"),
}


@pytest.mark.parametrize("generations", [1, 2], ids=["whole", "after a bad file"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_save_that_fails_leaves_the_state_before_it(
    failure: str, generations: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, error, raised, words = FAILURES[failure]
    checkpoint = saved(path, generations)
    if generations == 2:
        path.write_bytes(b"cut")
    assert step(checkpoint.load()) == 0
    monkeypatch.setattr(place, Mock(side_effect=error))
    with pytest.raises(raised, match=words):
        checkpoint.save({**STATE, "step": 7})
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


NETWORK = Pretrained({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, {}, {"count": torch.tensor(1)})
ANOTHER = "a file of pre-trained tensors with another name, type or shape", "no encoder of width 2", "Remove it"
NETWORKS: list[tuple[str, str, Any, str]] = [
    ("encoder", "weight", torch.ones(2, 3, dtype=torch.float64), "it is float64 of"),
    ("encoder", "bias", torch.ones(2, dtype=torch.int64), "it is int64"),
    ("encoder", "bias", torch.ones(1), "(1,)"),
    ("encoder", "weight", torch.ones(3, 2), "(3, 2)"),
    ("encoder", "added", torch.ones(2), "is missing"),
    ("buffers", "count", None, "is int64 of shape (); in the file it is missing"),
    ("buffers", "count", torch.tensor(1.0), "float32 of shape ()"),
    ("buffers", "count", torch.tensor([1]), "(1,)"),
]


@pytest.mark.parametrize(
    ("part", "name", "value", "refuses"),
    [(*each, refused(*ANOTHER, f"{each[1]} in {each[0]} is", words, error=DataError)) for *each, words in NETWORKS],
)
def test_a_network_of_another_kind_is_refused(part: str, name: str, value: Any, refuses: Any, tmp_path: Path) -> None:
    path, start = tmp_path / "pretrained.pt", NETWORK._replace(encoder=dict(reversed(NETWORK.encoder.items())))
    save_pretrained(Learned(start, {}), path)  # the order does not matter
    assert torch.equal(load_pretrained(path, NETWORK, "width 2", "cpu").pretrained.encoder["bias"], torch.ones(2))
    parts = start._asdict()
    parts[part] = {key: each for key, each in {**parts[part], name: value}.items() if each is not None}
    save_pretrained(Learned(Pretrained(**parts), {}), path)
    refuses(load_pretrained)(path, NETWORK, "width 2", "cpu")


# Runs


ORDER = "A run that is taken up with the keys of `meta`, or the parts of a module, in another order"


@pytest.mark.parametrize(
    ("name", "again"),
    [
        *(("Adam", again) for again in ({"keys": "ba"}, {"order": "vu"})),
        *((name, {"keys": "ba", "order": "vu"}) for name in ("RMSprop", "Adafactor", "ASGD")),
    ],
    ids=str,
)
@right(ORDER)
def test_moments_follow_names(name: str, again: dict[str, str], tmp_path: Path) -> tuple[Any, Any]:
    settings = replace(
        SETTINGS,
        pretrain_optimizer=OptimizerSpec(name, {"lr": 0.05}, {"*bias": {"lr": 0.02}}),
        meta_optimizer=OptimizerSpec(name, {"lr": 0.05}, {"b": {"lr": 0.2}}),
        average_decay=0.9,
        reuse_gradient=True,
        clip_norm=0.1,
    )
    return resumed(tmp_path / "run", settings, **again)


@right(ORDER)
def test_weight_decay_follows_names(tmp_path: Path) -> tuple[Any, Any]:
    """The Hessian of hypergradients has the decay of each parameter, too."""
    some = {"encoder.u.*": {"weight_decay": 0.0}}
    optimizer = OptimizerSpec("SGD", {"lr": 0.05, "weight_decay": 2.0}, some)
    return resumed(tmp_path / "run", replace(SETTINGS, pretrain_optimizer=optimizer), order="vu")


def figures(loop: MetaPretraining, path: Path | None = None) -> list[float]:
    """Run a loop and return the figures of its diagnosis."""
    return [*loop.run(checkpoint=checkpoint(path), recorder=Recorder(dict)).figures.values()]


@right(ORDER, 0)
def test_the_diagnosis_does_not_depend_on_the_order(tmp_path: Path) -> tuple[Any, Any]:
    settings = replace(SETTINGS, iterations=22, pretrain_steps=1, finetuning=Unroll(1))
    run(made(settings), tmp_path / "run", stop=15)
    return figures(made(settings, keys="ba", order="vu"), tmp_path / "run"), figures(made(settings))


@right(ORDER, 0)
def test_plain_pt_goes_on_with_moments_by_name(tmp_path: Path) -> tuple[Any, Any]:
    pretrain(tmp_path / "run", count=3, optimizer=spec("Adam"))
    again = pretrain(tmp_path / "run", count=7, optimizer=spec("Adam"), order="vu")
    return again, pretrain(None, count=7, optimizer=spec("Adam"))


@dataclass
class Scaled:
    """An inverse of a user."""

    factor: float

    def __call__(self, matvec: Any, b: list[Tensor]) -> Any:
        return Identity()(matvec, [self.factor * value for value in b])


def of_group(lr: float) -> OptimizerSpec:
    return OptimizerSpec("Adam", {"lr": 0.05}, {"head.*": {"lr": lr}})


def decaying(factor: float, kind: Any = LambdaLR) -> OptimizerSpec:
    return spec(schedule=lambda made: kind(made, lambda step: factor**step))


def warmed(factor: float) -> OptimizerSpec:
    """Warm up, then decay: a schedule of schedules, which keep no function in their state."""
    return spec(
        schedule=lambda made: SequentialLR(
            made, [LambdaLR(made, lambda step: factor * step), ExponentialLR(made, 0.9)], milestones=[9]
        )
    )


OTHER = "A run that is taken up with other settings"
PT = "pretrain_optimizer"
OTHERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {PT: spec("Adam", lr=0.2)}, "pretrain_optimizer.settings.lr was 0.05 and is 0.2"),
    ({}, {"meta_optimizer": spec("Adam", lr=0.2)}, "meta_optimizer.settings.lr was"),
    ({}, {PT: spec("AdamW")}, PT),
    ({}, {PT: of_group(0.1)}, "pretrain_optimizer.groups.head.*.lr was not set and is 0.1"),
    ({PT: of_group(0.1)}, {PT: of_group(0.2)}, PT),
    ({PT: spec(lr=torch.tensor(0.1))}, {PT: spec(lr=torch.tensor(0.2))}, PT),
    ({}, {"inverse": Neumann(1, 0.2)}, "inverse.step_size was 0.1 and is 0.2"),
    ({}, {"inverse": Identity()}, "inverse"),
    ({"inverse": Scaled(1.0)}, {"inverse": Scaled(2.0)}, "inverse.factor"),
    ({}, {"finetuning": Unroll(2, Adam(0.2))}, "finetuning"),
    ({}, {"pretrain_steps": 3}, "pretrain_steps was 2 and is 3"),
    ({}, {"average_decay": 0.9}, "average_decay was None and is 0.9"),
    ({}, {PT: spec("Adam", lambda made: ExponentialLR(made, 0.9), lr=0.05)}, PT),
    (*({PT: spec(schedule=lambda made, t=t: CosineAnnealingLR(made, t))} for t in (20, 40)), "T_max"),
    ({PT: decaying(0.9)}, {PT: decaying(0.8)}, "another learning rate at step 2"),
    ({PT: decaying(0.9, MultiplicativeLR)}, {PT: decaying(0.8, MultiplicativeLR)}, "another learning rate at step 2"),
    ({PT: warmed(0.1)}, {PT: warmed(0.2)}, "another learning rate at step 2"),
    ({"remainder": 1}, {"remainder": 1, "iterations": 8}, "iterations was 6 and is 8"),
]


@pytest.mark.parametrize(("stop", "before", "after", "words"), [(2, *each) for each in OTHERS] + [(None, *OTHERS[0])])
def test_settings_belong_to_the_fingerprint(stop: Any, before: Any, after: Any, words: str, tmp_path: Path) -> None:
    run(made(replace(SETTINGS, **before)), tmp_path / "run", stop)
    again = made(replace(SETTINGS, **after))
    refused(OTHER, "is a checkpoint of a run with other", "fingerprint", words)(run)(again, tmp_path / "run")


FEWER = "A run that is taken up with fewer steps than it has taken", "ask for as many or more"
ONE = {**META, "a": torch.tensor([1.0, 0.0], dtype=DTYPE)}


@pytest.mark.parametrize(
    ("refuses", "changes"),
    [
        (refused(OTHER, "other settings", "meta.a was", "[0.0, 0.0]", "[1.0, 0.0]"), {"meta": ONE}),
        (refused(OTHER, "settings.lr was 0.01 and is 0.1"), {"optimizer": spec(lr=0.1)}),
        (refused(*FEWER, "after step 5", "should take 3"), {"count": 3}),
    ],
    ids=["hyperparameters", "optimiser", "fewer"],
)
def test_what_plain_pt_is_taken_up_with(refuses: Any, changes: dict[str, Any], tmp_path: Path) -> None:
    pretrain(tmp_path / "run")
    refuses(pretrain)(tmp_path / "run", **changes)


@refused(*FEWER, "after iteration 6", "should take 4")
def test_fewer_iterations_than_were_taken(tmp_path: Path) -> None:
    run(made(), tmp_path / "run")
    run(made(replace(SETTINGS, iterations=4)), tmp_path / "run")


MORE = "A finished run that is taken up with more iterations or PT steps"


@right(MORE, 0)
def test_a_longer_run_goes_on(tmp_path: Path) -> tuple[Any, Any]:
    longer = replace(SETTINGS, iterations=24, pretrain_steps=1)
    run(made(replace(longer, iterations=12)), tmp_path / "run")
    pretrain(tmp_path / "plain", count=5)
    loop, whole = made(longer), made(longer)
    found = [figures(loop, tmp_path / "run"), learned(loop), pretrain(tmp_path / "plain", count=9)]
    assert loop.first_iteration == 12
    return found, [figures(whole), learned(whole), pretrain(None, count=9)]


FINISHED = "A finished run that is taken up again", "has finished before", "nothing is run"


@pytest.mark.parametrize(
    ("whole", "says"),
    [
        (lambda path: run(made(), path), warned(*FINISHED, "iteration 6 of 6")),
        (pretrain, warned(*FINISHED, "step 5 of 5")),
    ],
    ids=["Algorithm 2", "PT"],
)
def test_a_finished_run_says_so(whole: Callable[..., Any], says: Callable[..., Any], tmp_path: Path) -> None:
    first, again = whole(tmp_path / "run"), []
    says(lambda: again.extend(whole(tmp_path / "run")))()
    assert all(map(torch.equal, first, again))


OLDER = warned("A checkpoint whose newest file is removed or cut", "missing or passed over", "goes on from the older")
ANEW = warned("A checkpoint of another fingerprint, or of which both files are cut", "starts anew")


@pytest.mark.parametrize(
    ("says", "fingerprint", "cut", "removed"),
    [
        (OLDER, "mine", ["run"], []),
        (OLDER, "mine", [], ["run"]),
        (ANEW, "mine", ["run", "run.previous"], []),
        (ANEW, "theirs", [], []),
    ],
)
def test_files_that_are_passed_over_are_named(
    says: Any, fingerprint: str, cut: list[str], removed: list[str], tmp_path: Path
) -> None:
    whole, again = run(made(), tmp_path / "run", fingerprint=fingerprint), []
    for name in cut:
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    for name in removed:
        (tmp_path / name).unlink()
    says(lambda: again.extend(run(made(), tmp_path / "run")))()
    assert all(map(torch.equal, again, whole))


KEPT = "Other values in what a checkpoint keeps"


class Own:
    pass


VALUES: list[Any] = [np.arange(3), np.float64(1), deque([1]), frozenset([1]), Path("a"), lambda: 0, iter([1])]


@pytest.mark.parametrize("value", [*VALUES, {"deep": [1, (2, Own())]}, {np.int64(1): "a key"}])
@refused(KEPT, "can't be kept in a checkpoint", "state['loop']['pretrainer']['batches'][0]['kept']", "is a ")
def test_a_state_that_cannot_be_read_back_is_refused_at_its_first_save(value: Any, tmp_path: Path) -> None:
    try:
        run(made(kept=value), tmp_path / "run")
    finally:
        assert not [*tmp_path.iterdir()]


@refused(KEPT, "fingerprint is a pathlib")
def test_a_fingerprint_that_is_no_text_is_named(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "run", tmp_path).save({})  # type: ignore[arg-type]


def torch_bytes(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def whole(content: bytes) -> bytes:
    return hashlib.sha256(content).digest() + content


FILE = "A file of another kind in the place of the checkpoint", "name another file"
NONE, UNREAD = (refused(*FILE, words, error=DataError) for words in ("no checkpoint of metapt", "torch can't load it"))
CONTENTS = [
    (torch_bytes(nn.Linear(1, 1).state_dict()), NONE),
    (whole(torch_bytes([1])), NONE),
    (whole(torch_bytes({"fingerprint": "mine"})), NONE),
    (whole(torch_bytes({"state": {}})), NONE),
    (whole(b""), UNREAD),
    (whole(b"no pickle"), UNREAD),
    (whole(torch_bytes({"fingerprint": "mine", "state": {"lr": np.float64(1)}})), UNREAD),
]


@pytest.mark.parametrize(("content", "refuses"), CONTENTS, ids=range(len(CONTENTS)))  # torch may save other bytes
def test_a_file_that_is_not_read_is_not_written_over(content: bytes, refuses: Any, tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(content)
    refuses(run)(made(), tmp_path / "run")
    assert (tmp_path / "run").read_bytes() == content
