"""Small runs with checkpoints, of Algorithm 2 and of plain PT."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import (
    LRScheduler,
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
from metapt.hypergrad import Adam, Neumann, Pretrained, Unroll

DTYPE = torch.float64
LINEAR = {"u.weight": (3, 2), "u.bias": (3,), "v.weight": (2, 3), "v.bias": (2,)}
META = {"a": torch.zeros(2, dtype=DTYPE), "b": torch.zeros(2, dtype=DTYPE)}
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


def pretrain(
    path: Path | None, meta: dict[str, Tensor], count: int = 5, optimizer: OptimizerSpec | None = None
) -> Pretrained:
    own = problem()
    trainer = Pretrainer(own, Batches(), own.pretrained, optimizer or spec())
    trainer.run(meta, count, checkpoint=None if path is None else Checkpoint(path, "mine"))
    return trainer.pretrained


class Table(LRScheduler):
    """A schedule of a user, which keeps something."""

    def __init__(self, optimizer: torch.optim.Optimizer, kept: Any) -> None:
        self.kept = kept
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [group["lr"] * 0.9 for group in self.optimizer.param_groups]
