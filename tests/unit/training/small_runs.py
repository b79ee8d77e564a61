"""Small runs with checkpoints, of Algorithm 2 and of plain PT."""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LRScheduler

from metapt import Checkpoint, MetaPretraining, MetaSettings, ModuleProblem, OptimizerSpec, Pretrainer, Recorder
from metapt.hypergrad import Adam, Neumann, Params, Unroll

from .problems import DTYPE, draw
from .toys import linear

SETTINGS = MetaSettings(
    6,
    2,
    inverse=Neumann(1, 0.1),
    finetuning=Unroll(2, Adam(0.1)),
    pretrain_optimizer=OptimizerSpec("Adam", {"lr": 0.05}),
    meta_optimizer=OptimizerSpec("Adam", {"lr": 0.1}),
)
META = {"a": torch.zeros(2, dtype=DTYPE), "b": torch.zeros(2, dtype=DTYPE)}


class Batches:
    """One minibatch of each set, and whatever else a user keeps among the minibatches."""

    def __init__(self, kept: Any = None) -> None:
        self.kept = kept

    def pretrain(self) -> Tensor:
        return draw(0, 8, 2)

    def train(self) -> Tensor:
        return draw(1, 8, 2)

    def validation(self) -> Tensor:
        return draw(2, 8, 2)

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state["kept"]


class Network(nn.Module):
    """Two layers, which are registered in a given order."""

    def __init__(self, order: str) -> None:
        super().__init__()
        layers = {"u": linear(3, 2, 3), "v": linear(5, 3, 2)}
        for name in order:
            self.add_module(name, layers[name])

    def forward(self, x: Tensor) -> Tensor:
        return self.v(torch.tanh(self.u(x)))


def pretrain_loss(encoder: Any, head: Any, meta: Params, batch: Tensor) -> Tensor:
    weights = (meta["a"] * batch + 5 * meta["b"] * batch**2).sigmoid()
    return ((head(encoder(batch)) - batch) ** 2 * weights).mean()


@cache
def problem(order: str = "uv") -> ModuleProblem:
    """Return the same problem each time, so that its derivatives are compared once."""
    return ModuleProblem(
        Network(order),
        linear(10, 2, 2),
        linear(12, 2, 1),
        encode=lambda encoder, batch: encoder(batch),
        pretrain_loss=pretrain_loss,
        finetune_loss=lambda head, features, batch: F.softplus(head(features)).mean(),
    )


def made(settings: MetaSettings = SETTINGS, order: str = "uv", keys: str = "ab", kept: Any = None) -> MetaPretraining:
    own, meta = problem(order), {key: META[key] for key in keys}
    return MetaPretraining(own, Batches(kept), own.pretrained, meta, own.head, settings)


def checkpoint(path: Path | None, fingerprint: str = "mine") -> Checkpoint | None:
    return None if path is None else Checkpoint(path, fingerprint)


def run(loop: MetaPretraining, path: Path | None = None, stop: int | None = None, fingerprint: str = "mine") -> Any:
    """Run a loop, which is stopped before the checkpoint of an iteration, and return all that it has learned."""

    def log(step: int, _: Params) -> None:
        if step == stop:
            raise KeyboardInterrupt

    recorder = Recorder(lambda: {"loss": loop.loss}, log=log)
    with contextlib.suppress(KeyboardInterrupt):
        loop.run(checkpoint=checkpoint(path, fingerprint), seconds_between_checkpoints=0, recorder=recorder)
    return learned(loop)


def learned(loop: MetaPretraining) -> list[Tensor]:
    return by_name(loop.meta, loop.averaged_meta, loop.head, *loop.pretrained)


def by_name(*parts: Params) -> list[Tensor]:
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
    path: Path | None, meta: Params = META, count: int = 5, optimizer: OptimizerSpec | None = None, order: str = "uv"
) -> list[Tensor]:
    own = problem(order)
    trainer = Pretrainer(own, Batches(), own.pretrained, optimizer or spec())
    trainer.run(meta, count, checkpoint=checkpoint(path))
    return by_name(*trainer.pretrained)


class Table(LRScheduler):
    """A schedule of a user, which keeps something."""

    def __init__(self, optimizer: torch.optim.Optimizer, kept: Any) -> None:
        self.kept = kept
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [group["lr"] * 0.9 for group in self.optimizer.param_groups]
