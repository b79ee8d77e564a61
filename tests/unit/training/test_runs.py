"""Checkpoints of runs: what a run is taken up with, and what is refused."""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR

from metapt import Checkpoint, MetaPretraining, OptimizerSpec, Recorder
from metapt.hypergrad import Adam, Identity, Neumann, Unroll

from .kinds import refused, right, warned
from .problems import DTYPE
from .small_runs import META, SETTINGS, Table, checkpoint, made, pretrain, resumed, run, spec

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


def figures(loop: MetaPretraining, path: Path | None = None) -> list[float]:
    """Run a loop and return the figures of its diagnosis."""
    return [*loop.run(checkpoint=checkpoint(path), recorder=Recorder(dict)).figures.values()]


@right(ORDER, 0)
def test_the_diagnosis_does_not_depend_on_the_order(tmp_path: Path) -> tuple[Any, Any]:
    settings = replace(SETTINGS, iterations=40)
    run(made(settings), tmp_path / "run", stop=30)
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


def decaying(factor: float) -> OptimizerSpec:
    return spec(schedule=lambda made: LambdaLR(made, lambda step: factor**step))


OTHER = "A run that is taken up with other settings"
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "lr": ({}, {"pretrain_optimizer": spec("Adam", lr=0.2)}, "pretrain_optimizer.settings.lr was 0.05 and is 0.2"),
    "lr of meta": ({}, {"meta_optimizer": spec("Adam", lr=0.2)}, "meta_optimizer.settings.lr was"),
    "optimiser": ({}, {"pretrain_optimizer": spec("AdamW")}, ""),
    "groups": ({}, {"pretrain_optimizer": of_group(0.1)}, ""),
    "a group's lr": ({"pretrain_optimizer": of_group(0.1)}, {"pretrain_optimizer": of_group(0.2)}, ""),
    "tensors": (
        {"pretrain_optimizer": spec(lr=torch.tensor(0.1))},
        {"pretrain_optimizer": spec(lr=torch.tensor(0.2))},
        "",
    ),
    "inverse": ({}, {"inverse": Neumann(1, 0.2)}, "inverse.step_size was 0.1 and is 0.2"),
    "another inverse": ({}, {"inverse": Identity()}, ""),
    "an inverse of the user": ({"inverse": Scaled(1.0)}, {"inverse": Scaled(2.0)}, "inverse.factor"),
    "FT solver": ({}, {"finetuning": Unroll(2, Adam(0.2))}, ""),
    "PT steps": ({}, {"pretrain_steps": 3}, "pretrain_steps was 2 and is 3"),
    "average": ({}, {"average_decay": 0.9}, "average_decay was None and is 0.9"),
    "new schedule": ({}, {"pretrain_optimizer": spec("Adam", lambda made: ExponentialLR(made, 0.9))}, ""),
    "schedule": (
        {"pretrain_optimizer": spec(schedule=lambda made: CosineAnnealingLR(made, 20))},
        {"pretrain_optimizer": spec(schedule=lambda made: CosineAnnealingLR(made, 40))},
        "T_max",
    ),
    "a schedule by a function": (
        {"pretrain_optimizer": decaying(0.9)},
        {"pretrain_optimizer": decaying(0.8)},
        "another learning rate at step",
    ),
    "iterations after a remainder": ({"remainder": 1}, {"remainder": 1, "iterations": 8}, "iterations was 6 and is 8"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_settings_belong_to_the_fingerprint(name: str, tmp_path: Path) -> None:
    before, after, words = OTHERS[name]
    refuses = refused(OTHER, "is a checkpoint of a run with other", "fingerprint", words)
    for stop in (4, None):
        run(made(replace(SETTINGS, **before)), tmp_path / str(stop), stop)
        again = made(replace(SETTINGS, **after))
        refuses(run)(again, tmp_path / str(stop))


FEWER, MINE = "A run that is taken up with fewer steps than it has taken", "ask for as many or more"
ONE = {**META, "a": torch.tensor([1.0, 0.0], dtype=DTYPE)}
PLAIN: dict[str, tuple[Callable[..., Any], Callable[..., object]]] = {
    "hyperparameters": (
        refused(OTHER, "other settings", "meta.a was", "[0.0, 0.0]", "[1.0, 0.0]"),
        lambda path: pretrain(path, ONE),
    ),
    "optimiser": (
        refused(OTHER, "settings.lr was 0.01 and is 0.1"),
        lambda path: pretrain(path, optimizer=spec(lr=0.1)),
    ),
    "fewer": (refused(FEWER, "after step 5", "should take 3", MINE), lambda path: pretrain(path, count=3)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_what_plain_pt_is_taken_up_with(name: str, tmp_path: Path) -> None:
    refuses, again = PLAIN[name]
    pretrain(tmp_path / "run")
    refuses(again)(tmp_path / "run")


@refused(FEWER, "after iteration 6", "should take 4", MINE)
def test_fewer_iterations_than_were_taken(tmp_path: Path) -> None:
    run(made(), tmp_path / "run")
    run(made(replace(SETTINGS, iterations=4)), tmp_path / "run")


MORE = "A finished run that is taken up with more iterations or PT steps"


@right(MORE, 0)
def test_a_longer_run_goes_on(tmp_path: Path) -> tuple[Any, Any]:
    run(made(), tmp_path / "run")
    longer = replace(SETTINGS, iterations=9)
    loop = made(longer)
    learned = run(loop, tmp_path / "run")
    assert loop.first_iteration == 6
    return learned, run(made(longer))


@right(MORE, 0)
def test_the_diagnosis_of_a_longer_run_is_that_of_the_whole_run(tmp_path: Path) -> tuple[Any, Any]:
    run(made(replace(SETTINGS, iterations=24)), tmp_path / "run")
    longer = replace(SETTINGS, iterations=50)
    return figures(made(longer), tmp_path / "run"), figures(made(longer))


@right(MORE, 0)
def test_longer_plain_pt_goes_on(tmp_path: Path) -> tuple[Any, Any]:
    pretrain(tmp_path / "run", count=5)
    return pretrain(tmp_path / "run", count=9), pretrain(None, count=9)


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


@pytest.mark.parametrize("cut", [False, True])
@warned(
    "A checkpoint whose newest file is removed or cut",
    "missing or passed over",
    "goes on from the older",
    "run.previous",
)
def test_the_older_file_is_named(cut: bool, tmp_path: Path) -> None:
    whole, file = run(made(), tmp_path / "run"), tmp_path / "run"
    if cut:
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    assert all(map(torch.equal, run(made(), tmp_path / "run"), whole))


@warned("A checkpoint of another fingerprint, or of which both files are cut", "starts anew")
def test_another_fingerprint(tmp_path: Path) -> None:
    run(made(), tmp_path / "run", fingerprint="theirs")
    run(made(), tmp_path / "run")


KEPT = "Other values in what a checkpoint keeps"


class Own:
    pass


@pytest.mark.parametrize(
    "value",
    [
        np.arange(3),
        np.float64(1.0),
        deque([1]),
        frozenset([1]),
        Path("a"),
        {"deep": [1, (2, Own())]},
        {np.int64(1): "a key"},
        lambda: 0,
        iter([1]),
    ],
    ids=lambda value: type(value).__name__,
)
@refused(KEPT, "can't be kept in a checkpoint", "state['loop']['pretrainer']['batches']['kept']", "is a ")
def test_a_state_that_cannot_be_read_back_is_refused_at_its_first_save(value: Any, tmp_path: Path) -> None:
    try:
        run(made(kept=value), tmp_path / "run")
    finally:
        assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("optimizer", "kept", "words"),
    [
        ("pretrain_optimizer", np.ones(2), "['kept'] is a numpy.ndarray"),
        ("meta_optimizer", lambda step: 0.9, "['kept'] is a builtins.function"),
    ],
)
def test_what_a_schedule_keeps_is_named(optimizer: str, kept: Any, words: str, tmp_path: Path) -> None:
    table = spec(schedule=lambda made: Table(made, kept))
    refused(KEPT, words)(run)(made(replace(SETTINGS, **{optimizer: table})), tmp_path / "run")


@refused(KEPT, "fingerprint is a pathlib")
def test_a_fingerprint_that_is_no_text_is_named(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "run", tmp_path).save({})  # type: ignore[arg-type]


def torch_bytes(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


FILE = "A file of another kind in the place of the checkpoint"
NUMPY = torch_bytes({"fingerprint": "mine", "state": {"lr": np.float64(1)}})


@pytest.mark.parametrize(
    ("content", "refuses"),
    [
        (torch_bytes(nn.Linear(1, 1).state_dict()), refused(FILE, "is no checkpoint of metapt", "name another file")),
        (hashlib.sha256(NUMPY).digest() + NUMPY, refused(FILE, "is whole", "torch can't load it")),
    ],
    ids=["weights of a user", "a whole checkpoint"],
)
def test_a_file_that_is_not_read_is_not_written_over(content: bytes, refuses: Any, tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(content)
    refuses(run)(made(), tmp_path / "run")
    assert (tmp_path / "run").read_bytes() == content
