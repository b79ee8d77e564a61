"""Checkpoints of runs."""

from __future__ import annotations

import hashlib
import io
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
)

from metapt import (
    Checkpoint,
    MetaPretraining,
    OptimizerSpec,
    Pretrainer,
    Recorder,
)
from metapt.hypergrad import Adam, Identity, Neumann, Unroll

from .kinds import refused, right, warned
from .small_runs import DTYPE, META, SETTINGS, Batches, Table, made, pretrain, problem, resumed, run, spec

ORDER = "a run taken up with the keys of `meta`, or parts of a module, in another order"


@pytest.mark.parametrize("again", [{"keys": "ba"}, {"order": "vu"}, {"keys": "ba", "order": "vu"}], ids=str)
@pytest.mark.parametrize("name", ["Adam", "RMSprop", "NAdam", "Adafactor", "ASGD"])
@right(ORDER, "all is saved by name")
def test_moments_follow_names(name: str, again: dict[str, str], tmp_path: Path) -> tuple[Any, Any]:
    optimizer = OptimizerSpec(name, {"lr": 0.05}, {"*bias": {"lr": 0.02}, "b": {"lr": 0.2}})
    matching = replace(optimizer, groups={"*bias": {"lr": 0.02}}), replace(optimizer, groups={"b": {"lr": 0.2}})
    settings = replace(
        SETTINGS,
        pretrain_optimizer=matching[0],
        meta_optimizer=matching[1],
        average_decay=0.9,
        reuse_gradient=True,
        clip_norm=0.1,
    )
    return resumed(tmp_path / "run", settings, **again)


def figures(loop: MetaPretraining, path: Path | None = None) -> list[float]:
    """Run a loop and return the figures of its diagnosis."""
    checkpoint = None if path is None else Checkpoint(path, "mine")
    return [*loop.run(checkpoint=checkpoint, recorder=Recorder(dict)).figures.values()]


@right(ORDER, "all is saved by name", 0)
def test_the_diagnosis_does_not_depend_on_the_order(tmp_path: Path) -> tuple[Any, Any]:
    settings = replace(SETTINGS, iterations=40)
    run(made(settings), tmp_path / "run", stop=30)
    return figures(made(settings, keys="ba", order="vu"), tmp_path / "run"), figures(made(settings))


@right(ORDER, "all is saved by name", 0)
def test_plain_pt_goes_on_with_moments_by_name(tmp_path: Path) -> tuple[Any, Any]:
    def trained(order: str, count: int, path: Path | None) -> list[Tensor]:
        own = problem(order)
        trainer = Pretrainer(own, Batches(), own.pretrained, spec("Adam"))
        trainer.run(META, count, checkpoint=None if path is None else Checkpoint(path, "mine"))
        return [part[name] for part in trainer.pretrained for name in sorted(part)]

    trained("uv", 3, tmp_path / "run")
    return trained("vu", 7, tmp_path / "run"), trained("uv", 7, None)


OTHER = "a run taken up with other learning rates, solvers, numbers or schedule"
OTHER_DO = "the old ones, or another fingerprint or file; more steps are allowed"


@dataclass
class Scaled:
    """An inverse of a user."""

    factor: float

    def __call__(self, matvec: Any, b: list[Tensor]) -> Any:
        return Identity()(matvec, [self.factor * value for value in b])


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lr": ({}, {"pretrain_optimizer": spec("Adam", lr=0.2)}),
    "lr of meta": ({}, {"meta_optimizer": spec("Adam", lr=0.2)}),
    "optimiser": ({}, {"pretrain_optimizer": spec("AdamW")}),
    "groups": ({}, {"pretrain_optimizer": OptimizerSpec("Adam", {"lr": 0.05}, {"head.*": {"lr": 0.1}})}),
    "a group's lr": (
        {"pretrain_optimizer": OptimizerSpec("Adam", {"lr": 0.05}, {"head.*": {"lr": 0.1}})},
        {"pretrain_optimizer": OptimizerSpec("Adam", {"lr": 0.05}, {"head.*": {"lr": 0.2}})},
    ),
    "tensors": (
        {"pretrain_optimizer": spec(lr=torch.tensor(0.1))},
        {"pretrain_optimizer": spec(lr=torch.tensor(0.2))},
    ),
    "inverse": ({}, {"inverse": Neumann(1, 0.2)}),
    "another inverse": ({}, {"inverse": Identity()}),
    "an inverse of the user": ({"inverse": Scaled(1.0)}, {"inverse": Scaled(2.0)}),
    "FT solver": ({}, {"finetuning": Unroll(2, Adam(0.2))}),
    "PT steps": ({}, {"pretrain_steps": 3}),
    "warm-up": ({}, {"warmup": 2}),
    "clipping": ({}, {"clip_norm": 0.1}),
    "average": ({}, {"average_decay": 0.9}),
    "new schedule": ({}, {"pretrain_optimizer": spec("Adam", lambda made: ExponentialLR(made, 0.9))}),
    "schedule": (
        {"pretrain_optimizer": spec(schedule=lambda made: CosineAnnealingLR(made, 20))},
        {"pretrain_optimizer": spec(schedule=lambda made: CosineAnnealingLR(made, 40))},
    ),
    "more iterations than a run that has taken its remainder": (
        {"remainder": 1},
        {"remainder": 1, "iterations": 8},
    ),
}


@pytest.mark.parametrize("stop", [4, None], ids=["stopped", "finished"])
@pytest.mark.parametrize("name", OTHERS)
@refused(OTHER, ("is a checkpoint of a run with other", "fingerprint"), OTHER_DO)
def test_settings_belong_to_the_fingerprint(name: str, stop: int | None, tmp_path: Path) -> None:
    before, after = OTHERS[name]
    run(made(replace(SETTINGS, **before)), tmp_path / "run", stop)
    run(made(replace(SETTINGS, **after)), tmp_path / "run")


@refused(OTHER, ("pretrain_optimizer.settings.lr was 0.05 and is 0.2",), OTHER_DO)
def test_what_differs_is_named(tmp_path: Path) -> None:
    run(made(), tmp_path / "run")
    run(made(replace(SETTINGS, pretrain_optimizer=spec("Adam", lr=0.2))), tmp_path / "run")


@refused(OTHER, ("is a checkpoint of a run with other parts", "another learning rate at step"), OTHER_DO)
def test_a_schedule_by_a_function_is_another_one_if_its_learning_rate_is(tmp_path: Path) -> None:
    for decay in (0.9, 0.8):
        decaying = spec(schedule=lambda made, decay=decay: LambdaLR(made, lambda step: decay**step))
        run(made(replace(SETTINGS, pretrain_optimizer=decaying)), tmp_path / "run", stop=4)


@refused(OTHER, ("other settings", "meta.a was", "[0.0, 0.0]", "[1.0, 0.0]"), OTHER_DO)
def test_fixed_hyperparameters_belong_to_the_fingerprint(tmp_path: Path) -> None:
    for first in (0.0, 1.0):
        pretrain(tmp_path / "run", {**META, "a": torch.tensor([first, 0.0], dtype=DTYPE)})


@refused(OTHER, ("other settings", "settings.lr was 0.01 and is 0.1"), OTHER_DO)
def test_the_settings_of_plain_pt_belong_to_the_fingerprint(tmp_path: Path) -> None:
    pretrain(tmp_path / "run", META)
    pretrain(tmp_path / "run", META, optimizer=spec(lr=0.1))


FEWER = "a run taken up with fewer steps than it has taken"


@pytest.mark.parametrize("count", [3, 1])
@refused(FEWER, ("after step 5", "ask for as many or more"), OTHER_DO)
def test_fewer_steps_than_were_taken(count: int, tmp_path: Path) -> None:
    pretrain(tmp_path / "run", META)
    pretrain(tmp_path / "run", META, count)


@refused(FEWER, ("after iteration 6", "should take 4", "ask for as many or more"), OTHER_DO)
def test_fewer_iterations_than_were_taken(tmp_path: Path) -> None:
    run(made(), tmp_path / "run")
    run(made(replace(SETTINGS, iterations=4)), tmp_path / "run")


@right("a finished run taken up with more iterations or PT steps", "it goes on", 0)
def test_a_longer_run_goes_on(tmp_path: Path) -> tuple[Any, Any]:
    run(made(), tmp_path / "run")
    longer = replace(SETTINGS, iterations=9)
    loop = made(longer)
    learned = run(loop, tmp_path / "run")
    assert loop.first_iteration == 6
    return learned, run(made(longer))


@right("a finished run taken up with more iterations or PT steps", "it goes on", 0)
def test_the_diagnosis_of_a_longer_run_is_that_of_the_whole_run(tmp_path: Path) -> tuple[Any, Any]:
    run(made(replace(SETTINGS, iterations=24)), tmp_path / "run")
    longer = replace(SETTINGS, iterations=50)
    return figures(made(longer), tmp_path / "run"), figures(made(longer))


@right("a finished run taken up with more iterations or PT steps", "it goes on", 0)
def test_longer_plain_pt_goes_on(tmp_path: Path) -> tuple[Any, Any]:
    pretrain(tmp_path / "run", META, 5)
    return pretrain(tmp_path / "run", META, 9).vector(), pretrain(None, META, 9).vector()


FINISHED = "a finished run taken up again", "remove its checkpoint to run it anew"


@warned(FINISHED[0], ("has finished before", "iteration 6 of 6", "nothing is run"), FINISHED[1])
def test_a_finished_run_says_so(tmp_path: Path) -> None:
    first, second = (run(made(), tmp_path / "run") for _ in range(2))
    assert all(map(torch.equal, first, second))


@warned(FINISHED[0], ("has finished before", "step 5 of 5", "nothing is run"), FINISHED[1])
def test_finished_plain_pt_says_so(tmp_path: Path) -> None:
    for _ in range(2):
        pretrain(tmp_path / "run", META)


OLDER = "a checkpoint whose newest file is removed or cut", "the run goes on from `.previous`"


@pytest.mark.parametrize("cut", [False, True])
@warned(OLDER[0], ("missing or passed over", "goes on from the older", "run.previous"), OLDER[1])
def test_the_older_file_is_named(cut: bool, tmp_path: Path) -> None:
    whole = run(made(), tmp_path / "run")
    if cut:
        (tmp_path / "run").write_bytes((tmp_path / "run").read_bytes()[:-1])
    else:
        (tmp_path / "run").unlink()
    assert all(map(torch.equal, run(made(), tmp_path / "run"), whole))


@warned(
    "a checkpoint of another fingerprint, or with both files cut",
    ("starts anew",),
    "the run starts anew and writes over it",
)
def test_another_fingerprint(tmp_path: Path) -> None:
    run(made(), tmp_path / "run", fingerprint="theirs")
    run(made(), tmp_path / "run")


KEPT = "arrays, `deque`, `frozenset`, `Path`, functions or own objects in what a checkpoint keeps"
KEPT_DO = "tensors, Python's numbers and texts, lists, tuples, dictionaries"


class Own:
    pass


@pytest.mark.parametrize(
    "value",
    [
        np.arange(3),
        np.float64(1.0),
        np.random.RandomState(0).get_state(),
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
@refused(KEPT, ("can't be kept in a checkpoint", "state['loop']['pretrainer']['batches']['kept']", "is a "), KEPT_DO)
def test_a_state_that_cannot_be_read_back_is_refused_at_its_first_save(value: Any, tmp_path: Path) -> None:
    try:
        run(made(kept=value), tmp_path / "run")
    finally:
        assert not [*tmp_path.iterdir()]


@refused(KEPT, ("['kept'] is a numpy.ndarray",), KEPT_DO)
def test_an_array_of_a_schedule_is_named(tmp_path: Path) -> None:
    table = spec(schedule=lambda made: Table(made, np.ones(2)))
    run(made(replace(SETTINGS, pretrain_optimizer=table)), tmp_path / "run")


@refused(KEPT, ("['kept'] is a builtins.function",), KEPT_DO)
def test_a_function_of_a_schedule_is_named(tmp_path: Path) -> None:
    table = spec(schedule=lambda made: Table(made, lambda step: 0.9))
    run(made(replace(SETTINGS, meta_optimizer=table)), tmp_path / "run")


@refused(KEPT, ("fingerprint is a pathlib",), KEPT_DO)
def test_a_fingerprint_that_is_no_text_is_named(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "run", tmp_path).save({})  # type: ignore[arg-type]


FILE = "another file in the checkpoint's place, or one that torch can't load"


@refused(FILE, ("is no checkpoint of metapt", "name another file"), "another name; it is not written over")
def test_weights_of_a_user_are_not_written_over(tmp_path: Path) -> None:
    torch.save(nn.Linear(1, 1).state_dict(), tmp_path / "run")
    before = (tmp_path / "run").read_bytes()
    try:
        run(made(), tmp_path / "run")
    finally:
        assert (tmp_path / "run").read_bytes() == before


@refused(FILE, ("is whole", "torch can't load it"), "another name; it is not written over")
def test_a_whole_checkpoint_that_cannot_be_loaded_is_not_written_over(tmp_path: Path) -> None:
    file = io.BytesIO()
    torch.save({"fingerprint": "mine", "state": {"lr": np.float64(1)}}, file)
    (tmp_path / "run").write_bytes(hashlib.sha256(file.getvalue()).digest() + file.getvalue())
    run(made(), tmp_path / "run")
