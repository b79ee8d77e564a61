"""Optimisers, schedules and checkpoints."""

from __future__ import annotations

import contextlib
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
from torch.nn import functional as F
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from metapt import (
    Checkpoint,
    MetaPretraining,
    MetaSettings,
    ModuleProblem,
    OptimizerSpec,
    Pretrainer,
    Recorder,
)
from metapt.errors import ConfigError
from metapt.hypergrad import SGD, Adam, FittedHead, Identity, Neumann, Pretrained, Unroll

from .kinds import refused, right, warned

DTYPE = torch.float64
LINEAR = {"u.weight": (3, 2), "u.bias": (3,), "v.weight": (2, 3), "v.bias": (2,)}
SETTINGS = MetaSettings(
    6,
    2,
    inverse=Neumann(1, 0.1),
    finetuning=Unroll(2, Adam(0.1)),
    pretrain_optimizer=OptimizerSpec("Adam", {"lr": 0.05}),
    meta_optimizer=OptimizerSpec("Adam", {"lr": 0.1}),
)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)


class Batches:
    """One minibatch for all, and whatever else a user keeps among the minibatches."""

    def __init__(self, kept: Any = None) -> None:
        self.kept = kept

    def pretrain(self) -> Tensor:
        return drawn(0, 8, 2)

    def train(self) -> Tensor:
        return drawn(1, 8, 2)

    def validation(self) -> Tensor:
        return drawn(2, 8, 2)

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state["kept"]


class Network(nn.Module):
    """Two layers, which are registered in a given order."""

    def __init__(self, order: str) -> None:
        super().__init__()
        layers = {"u": nn.Linear(2, 3, dtype=DTYPE), "v": nn.Linear(3, 2, dtype=DTYPE)}
        for name in order:
            self.add_module(name, layers[name])
        for seed, (name, shape) in enumerate(LINEAR.items()):
            self.get_parameter(name).data = drawn(seed, *shape)

    def forward(self, x: Tensor) -> Tensor:
        return self.v(torch.tanh(self.u(x)))


def problem(order: str = "uv") -> ModuleProblem:
    head, finetune_head = (nn.Linear(2, outputs, dtype=DTYPE) for outputs in (2, 1))
    for seed, module in enumerate((head, finetune_head)):
        for parameter in module.parameters():
            parameter.data = drawn(seed + 10, *parameter.shape)
    return ModuleProblem(
        Network(order),
        head,
        finetune_head,
        encode=lambda encoder, batch: encoder(batch),
        pretrain_loss=lambda encoder, head, meta, batch: (
            (head(encoder(batch)) - batch) ** 2 * (meta["a"] * batch + 5 * meta["b"] * batch**2).sigmoid()
        ).mean(),
        finetune_loss=lambda head, features, batch: F.softplus(head(features)).mean(),
    )


def made(settings: MetaSettings = SETTINGS, order: str = "uv", keys: str = "ab", kept: Any = None) -> MetaPretraining:
    own = problem(order)
    meta = {key: torch.zeros(2, dtype=DTYPE) for key in keys}
    return MetaPretraining(own, Batches(kept), own.pretrained, meta, own.head, settings)


def run(loop: MetaPretraining, path: Path | None = None, stop: int | None = None, fingerprint: str = "mine") -> Any:
    """Run a loop, which is stopped before the checkpoint of an iteration, and return all that it has learned."""

    def log(step: int, _: dict[str, Tensor]) -> None:
        if step == stop:
            raise KeyboardInterrupt

    checkpoint = None if path is None else Checkpoint(path, fingerprint)
    recorder = Recorder(lambda: {"loss": loop.loss}, log=log)
    with contextlib.suppress(KeyboardInterrupt):
        loop.run(checkpoint=checkpoint, seconds_between_checkpoints=0, recorder=recorder)
    parts = loop.meta, loop.averaged_meta, loop.head, *loop.pretrained
    return [part[name] for part in parts for name in sorted(part)]


def spec(name: str = "SGD", schedule: Any = None, **settings: Any) -> OptimizerSpec:
    return OptimizerSpec(name, {"lr": 0.01} | settings, schedule=schedule)


def resumed(path: Path, settings: MetaSettings, **again: Any) -> tuple[Any, Any]:
    """Return what a run has learned that was stopped and taken up, and what it learns without."""
    run(made(settings), path, stop=4)
    loop = made(settings, **again)
    learned = run(loop, path)
    assert loop.first_iteration == 3
    return learned, run(made(settings))


class Table(LRScheduler):
    """A schedule of a user, which keeps something."""

    def __init__(self, optimizer: torch.optim.Optimizer, kept: Any) -> None:
        self.kept = kept
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [group["lr"] * 0.9 for group in self.optimizer.param_groups]


NUMPY = {
    "float64": spec(lr=np.logspace(-2, -1, 3)[0]),
    "float32": spec(lr=np.float32(0.01)),
    "array": spec(lr=np.array(0.01)),
    "in a group": OptimizerSpec("SGD", {}, {"*.bias": {"lr": np.float64(0.1)}}),
    "betas": spec("AdamW", betas=np.array([0.8, 0.99]), weight_decay=np.float64(0.1)),
    "tuple": spec("Adam", betas=tuple(np.linspace(0.8, 0.9, 2)), amsgrad=np.bool_(True)),
    "cosine": spec(schedule=lambda made: CosineAnnealingLR(made, np.int64(20), eta_min=np.float64(0.01))),
    "milestones": spec(schedule=lambda made: MultiStepLR(made, np.array([2, 5, 8]), gamma=np.float64(0.5))),
    "function": spec(schedule=lambda made: LambdaLR(made, lambda step: np.interp(step, [0, 9], [1.0, 0.1]))),
    "cycle": spec(momentum=0.9, schedule=lambda made: OneCycleLR(made, np.float64(0.1), total_steps=40)),
    "sequence": spec(
        schedule=lambda made: SequentialLR(
            made, [ExponentialLR(made, np.float64(0.9)), ExponentialLR(made, 0.5)], milestones=[np.int64(5)]
        )
    ),
    "of a user": spec(schedule=lambda made: Table(made, {np.int64(3): [np.float64(0.1)]})),
}


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.filterwarnings("ignore:.*EPOCH_DEPRECATION|The epoch parameter:UserWarning")
@right("NumPy numbers in an `OptimizerSpec`, in `MetaSettings` or in a schedule", "They become Python's numbers.", 0)
def test_a_run_with_numpy_numbers_goes_on(name: str, tmp_path: Path) -> tuple[Any, Any]:
    return resumed(tmp_path / "run", replace(SETTINGS, pretrain_optimizer=NUMPY[name], meta_optimizer=NUMPY["float32"]))


@right("NumPy numbers in an `OptimizerSpec`, in `MetaSettings` or in a schedule", "They become Python's numbers.", 0)
def test_numpy_numbers_in_settings_are_pythons_numbers(tmp_path: Path) -> tuple[Any, Any]:
    numbers: Any = {"iterations": np.int64(6), "warmup": np.int32(1), "average_decay": np.float64(0.9)}
    inverse = Neumann(np.int64(1), np.float64(0.1))  # type: ignore[arg-type]
    finetuning = Unroll(np.int64(2), Adam(np.float64(0.1)))  # type: ignore[arg-type]
    learned, _ = resumed(tmp_path / "run", replace(SETTINGS, inverse=inverse, finetuning=finetuning, **numbers))
    return learned, run(made(replace(SETTINGS, iterations=6, warmup=1, average_decay=0.9)))


ORDER = "A run that is taken up with the keys of `meta`, or the parts of a module, in another order"


@pytest.mark.parametrize("again", [{"keys": "ba"}, {"order": "vu"}, {"keys": "ba", "order": "vu"}], ids=str)
@pytest.mark.parametrize("name", ["Adam", "RMSprop", "NAdam", "Adafactor", "ASGD"])
@right(ORDER, "All is saved by name.")
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


@right(ORDER, "All is saved by name.", 0)
def test_the_diagnosis_does_not_depend_on_the_order(tmp_path: Path) -> tuple[Any, Any]:
    settings = replace(SETTINGS, iterations=40)
    run(made(settings), tmp_path / "run", stop=30)
    return figures(made(settings, keys="ba", order="vu"), tmp_path / "run"), figures(made(settings))


@right(ORDER, "All is saved by name.", 0)
def test_plain_pt_goes_on_with_moments_by_name(tmp_path: Path) -> tuple[Any, Any]:
    def trained(order: str, count: int, path: Path | None) -> list[Tensor]:
        own = problem(order)
        trainer = Pretrainer(own, Batches(), own.pretrained, spec("Adam"))
        trainer.run(META, count, checkpoint=None if path is None else Checkpoint(path, "mine"))
        return [part[name] for part in trainer.pretrained for name in sorted(part)]

    trained("uv", 3, tmp_path / "run")
    return trained("vu", 7, tmp_path / "run"), trained("uv", 7, None)


META = {"a": torch.zeros(2, dtype=DTYPE), "b": torch.zeros(2, dtype=DTYPE)}
OTHER = "A run that is taken up with other settings: learning rates, solvers, numbers, a schedule"
OTHER_DO = "Give the old ones, or another fingerprint or file. More iterations or PT steps are no other settings."


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


FEWER = "A run that is taken up with fewer steps than it has taken"


@pytest.mark.parametrize("count", [3, 1])
@refused(FEWER, ("after step 5", "ask for as many or more"), OTHER_DO)
def test_fewer_steps_than_were_taken(count: int, tmp_path: Path) -> None:
    pretrain(tmp_path / "run", META)
    pretrain(tmp_path / "run", META, count)


@refused(FEWER, ("after iteration 6", "should take 4", "ask for as many or more"), OTHER_DO)
def test_fewer_iterations_than_were_taken(tmp_path: Path) -> None:
    run(made(), tmp_path / "run")
    run(made(replace(SETTINGS, iterations=4)), tmp_path / "run")


def pretrain(
    path: Path | None, meta: dict[str, Tensor], count: int = 5, optimizer: OptimizerSpec | None = None
) -> Pretrained:
    own = problem()
    trainer = Pretrainer(own, Batches(), own.pretrained, optimizer or spec())
    trainer.run(meta, count, checkpoint=None if path is None else Checkpoint(path, "mine"))
    return trainer.pretrained


@right("A finished run that is taken up with more iterations or PT steps", "It goes on from its last one.", 0)
def test_a_longer_run_goes_on(tmp_path: Path) -> tuple[Any, Any]:
    run(made(), tmp_path / "run")
    longer = replace(SETTINGS, iterations=9)
    loop = made(longer)
    learned = run(loop, tmp_path / "run")
    assert loop.first_iteration == 6
    return learned, run(made(longer))


@right("A finished run that is taken up with more iterations or PT steps", "It goes on from its last one.", 0)
def test_the_diagnosis_of_a_longer_run_is_that_of_the_whole_run(tmp_path: Path) -> tuple[Any, Any]:
    run(made(replace(SETTINGS, iterations=24)), tmp_path / "run")
    longer = replace(SETTINGS, iterations=50)
    return figures(made(longer), tmp_path / "run"), figures(made(longer))


@right("A finished run that is taken up with more iterations or PT steps", "It goes on from its last one.", 0)
def test_longer_plain_pt_goes_on(tmp_path: Path) -> tuple[Any, Any]:
    pretrain(tmp_path / "run", META, 5)
    return pretrain(tmp_path / "run", META, 9).vector(), pretrain(None, META, 9).vector()


FINISHED = "A finished run that is taken up again", "Remove its checkpoint to run it anew."


@warned(FINISHED[0], ("has finished before", "iteration 6 of 6", "nothing is run"), FINISHED[1])
def test_a_finished_run_says_so(tmp_path: Path) -> None:
    first, second = (run(made(), tmp_path / "run") for _ in range(2))
    assert all(map(torch.equal, first, second))


@warned(FINISHED[0], ("has finished before", "step 5 of 5", "nothing is run"), FINISHED[1])
def test_finished_plain_pt_says_so(tmp_path: Path) -> None:
    for _ in range(2):
        pretrain(tmp_path / "run", META)


OLDER = "A checkpoint whose newest file is removed or cut", "The run goes on from the file before, `.previous`."


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
    "A checkpoint of another fingerprint, or of which both files are cut",
    ("starts anew",),
    "The run starts anew and writes over it.",
)
def test_another_fingerprint(tmp_path: Path) -> None:
    run(made(), tmp_path / "run", fingerprint="theirs")
    run(made(), tmp_path / "run")


KEPT = "Other values in what a checkpoint keeps: arrays, `deque`, `frozenset`, `Path`, functions, objects of your own"
KEPT_DO = "Convert them where the run gets them, to tensors, Python's numbers and texts, lists, tuples, dictionaries."


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


FILE = "A file of another kind in the place of the checkpoint, or a whole one that torch can't load"


@refused(FILE, ("is no checkpoint of metapt", "name another file"), "Name another file. It is not written over.")
def test_weights_of_a_user_are_not_written_over(tmp_path: Path) -> None:
    torch.save(nn.Linear(1, 1).state_dict(), tmp_path / "run")
    before = (tmp_path / "run").read_bytes()
    try:
        run(made(), tmp_path / "run")
    finally:
        assert (tmp_path / "run").read_bytes() == before


@refused(FILE, ("is whole", "torch can't load it"), "Name another file. It is not written over.")
def test_a_whole_checkpoint_that_cannot_be_loaded_is_not_written_over(tmp_path: Path) -> None:
    file = io.BytesIO()
    torch.save({"fingerprint": "mine", "state": {"lr": np.float64(1)}}, file)
    (tmp_path / "run").write_bytes(hashlib.sha256(file.getvalue()).digest() + file.getvalue())
    run(made(), tmp_path / "run")


@pytest.mark.parametrize(
    "lr",
    [torch.tensor(0.1), torch.tensor([0.1])],
    ids=["scalar", "of one number"],
)
@pytest.mark.parametrize("decay", [0.8, 1.0])
@right("A learning rate that is a tensor, with a schedule or groups", "Each optimiser has a copy of it.", 1e-6)
def test_a_learning_rate_of_a_user_stays_as_it_is(lr: Tensor, decay: float) -> tuple[Any, Any]:
    decaying: Callable[[Any], LRScheduler] = lambda made: ExponentialLR(made, decay)  # noqa: E731
    shared = OptimizerSpec("SGD", {"lr": lr}, {"head.*": {"momentum": 0.5}}, decaying)
    by_number = OptimizerSpec("SGD", {"lr": 0.1}, {"head.*": {"momentum": 0.5}}, decaying)
    before = lr.clone()
    found = [pretrain(None, META, 20, shared).vector() for _ in range(2)]
    assert torch.equal(lr, before)
    return found, [pretrain(None, META, 20, by_number).vector()] * 2


@right("A learning rate that is a tensor, with a schedule or groups", "Each optimiser has a copy of it.", 0)
def test_a_run_with_a_learning_rate_that_is_a_tensor_goes_on(tmp_path: Path) -> tuple[Any, Any]:
    own = spec(lr=torch.tensor(0.01), schedule=lambda made: ExponentialLR(made, 0.8))
    return resumed(tmp_path / "run", replace(SETTINGS, pretrain_optimizer=own, meta_optimizer=own))


@right("A dictionary of settings that is changed later", "An `OptimizerSpec` has a copy of it.", 0)
def test_settings_are_copied() -> tuple[Any, Any]:
    given = {"lr": 0.01}
    own = OptimizerSpec("SGD", given)
    given["lr"] = 1.0
    return pretrain(None, META, optimizer=own).vector(), pretrain(None, META).vector()


CLASS = "A class, a function, a text or an optimiser of torch in the place of a solver or an `OptimizerSpec`"
CLASS_DO = "Give `Neumann(...)`, `FittedHead(...)`, `OptimizerSpec(name, {...})`."
WEIGHT = nn.Parameter(torch.zeros(1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inverse": Neumann}, "inverse is the class Neumann; legal: a solver, such as Neumann"),
        ({"inverse": "neumann"}, "inverse is a str"),
        ({"inverse": 0.1}, "inverse is a float"),
        ({"finetuning": Unroll}, "finetuning is the class Unroll; legal: a solver, such as FittedHead"),
        ({"finetuning": FittedHead}, "finetuning is the class FittedHead"),
        ({"finetuning": None}, "finetuning is a NoneType"),
        ({"finetuning": Neumann(1, 0.1)}, "a Neumann, has no attribute minibatches"),
        ({"finetuning": Unroll(1, OptimizerSpec("SGD"))}, "optimizer of the FT solver is a OptimizerSpec"),
        ({"finetuning": Unroll(1, torch.optim.SGD)}, "optimizer of the FT solver is the class SGD"),  # type: ignore[arg-type]
        ({"finetuning": Unroll(1, SGD)}, "optimizer of the FT solver is the class SGD"),  # type: ignore[arg-type]
        ({"pretrain_optimizer": torch.optim.SGD}, "pretrain_optimizer is the class SGD; legal: an OptimizerSpec"),
        ({"pretrain_optimizer": torch.optim.SGD([WEIGHT], 0.1)}, "pretrain_optimizer is a SGD"),
        ({"meta_optimizer": "Adam"}, "meta_optimizer is a str"),
        ({"meta_optimizer": Adam(0.1)}, "meta_optimizer is a Adam"),
        ({"meta_optimizer": OptimizerSpec}, "meta_optimizer is the class OptimizerSpec"),
        ({"iterations": 6.0}, "iterations is 6.0; legal: a whole number"),
        ({"iterations": "6"}, "iterations is '6'; legal: a whole number"),
        ({"warmup": None}, "warmup is None; legal: a whole number"),
    ],
    ids=str,
)
@refused(CLASS, ("legal",), CLASS_DO)
def test_a_class_for_an_object(changes: dict[str, Any], words: str) -> None:
    with said(words):
        MetaSettings(**({"iterations": 6} | changes))


@contextlib.contextmanager
def said(words: str) -> Any:
    """Check that an error contains these words, and pass it on."""
    with pytest.raises(ConfigError) as found:
        yield
    assert words in str(found.value)
    raise found.value


@pytest.mark.parametrize(
    "given", [torch.optim.SGD, "SGD", torch.optim.SGD([WEIGHT], 0.1), {"lr": 0.1}, SGD(0.1)], ids=str
)
@refused(CLASS, ("optimizer is", "legal: an OptimizerSpec"), CLASS_DO)
def test_another_optimiser_of_plain_pt(given: Any) -> None:
    own = problem()
    Pretrainer(own, Batches(), own.pretrained, given)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.optim.SGD, {"lr": 0.1}), "the name of an optimiser is the class SGD; legal: the name of a class"),
        ((torch.optim.SGD([WEIGHT], 0.1),), "the name of an optimiser is a SGD"),
        (("SGD", 0.1), "the settings of the optimiser 'SGD' are a float; legal: a dictionary"),
        (("SGD", [("lr", 0.1)]), "the settings of the optimiser 'SGD' are a list"),
        (("SGD", None), "the settings of the optimiser 'SGD' are a NoneType"),
        (("SGD", "lr=0.1"), "the settings of the optimiser 'SGD' are a str"),
        (("SGD", {}, {"head.*": 0.1}), "the groups of the optimiser 'SGD' are {'head.*': 0.1}; legal"),
        (("SGD", {}, [{"lr": 0.1}]), "the groups of the optimiser 'SGD' are [{'lr': 0.1}]"),
        (("SGD", {}, {}, 0.9), "schedule is a float; legal: a function that takes the optimiser"),
        (("SGD", {}, {}, "cosine"), "schedule is a str"),
        (("SGD", {}, {}, ExponentialLR(torch.optim.SGD([WEIGHT], 0.1), 0.9)), "schedule is a ExponentialLR"),
    ],
)
@refused("Other things in an `OptimizerSpec`: a class, settings that are no dictionary", ("legal",), CLASS_DO)
def test_nonsense_in_an_optimizer_spec(arguments: tuple[Any, ...], words: str) -> None:
    with said(words):
        OptimizerSpec(*arguments)


OTHERS_SCHEDULE = ExponentialLR(torch.optim.SGD([WEIGHT], 0.1), 0.9)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (lambda step: 0.99**step, "schedule can't be called with an optimiser (TypeError"),
        (lambda: None, "schedule can't be called with an optimiser (TypeError"),
        (CosineAnnealingLR, "schedule can't be called with an optimiser (TypeError"),
        (lambda optimizer: 0.1, "schedule returns a float"),
        (lambda optimizer: ExponentialLR, "schedule returns the class ExponentialLR"),
        (lambda optimizer: [ExponentialLR(optimizer, 0.9)], "schedule returns a list"),
        (lambda optimizer: OTHERS_SCHEDULE, "schedule returns a ExponentialLR of another optimiser"),
        (ReduceLROnPlateau, "schedule returns a ReduceLROnPlateau"),
    ],
)
@refused(
    "A schedule that is a function of the step, is made for another optimiser, or waits for a metric",
    ("legal: a function that takes the optimiser and returns its schedule",),
    "`schedule=lambda optimizer: LambdaLR(optimizer, lambda step: ...)`",
)
def test_nonsense_for_a_schedule(schedule: Any, words: str) -> None:
    with said(words):
        OptimizerSpec("SGD", schedule=schedule).stepper({"weight": WEIGHT})


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"loss": 0.5}, "returns a float for 'loss'"),
        ({"loss": 1}, "returns a int for 'loss'"),
        ({"one": torch.zeros(()), "loss": [0.5, 0.6]}, "returns a list for 'loss'"),
        ({"loss": np.float64(0.5)}, "returns a float64 for 'loss'"),
        ({"loss": None}, "returns a NoneType for 'loss'"),
        (torch.zeros(()), "returns a Tensor"),
        (0.5, "returns a float"),
        (None, "returns a NoneType"),
    ],
    ids=str,
)
@refused(
    "A `Recorder` that is given numbers",
    ("Recorder returns", "legal: a function that returns a dictionary of tensors", "torch.tensor"),
    "Give it a function that returns tensors.",
)
def test_a_recorder_takes_tensors(seen: Any, words: str) -> None:
    with said(words):
        Recorder(lambda: seen)(1)


@pytest.mark.parametrize("given", [torch.zeros(()), {"loss": torch.zeros(())}, 0.5, None], ids=str)
@refused(
    "A `Recorder` that is given numbers",
    ("Recorder is given", "legal: a function"),
    "Give it a function that returns tensors.",
)
def test_a_recorder_takes_a_function(given: Any) -> None:
    Recorder(given)
