"""A small regression in float64 whose modules, losses and loaders the tests change in one thing each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from metapt import LoaderBatches, MetaPretraining, MetaSettings, ModuleProblem, OptimizerSpec, Pretrainer
from metapt.hypergrad import Dense, Params, Pretrained, Unroll, exact_hypergradient, hypergradient
from metapt.hypergrad.optimizers import SGD

DTYPE = torch.float64


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)


X, Y = draw(0, 12, 3), draw(1, 12, 2)
META = {"w": torch.zeros(2, dtype=DTYPE)}


def linear(seed: int, inputs: int = 3, outputs: int = 3) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, dtype=DTYPE)
    with torch.no_grad():
        layer.weight.copy_(0.5 * draw(seed, outputs, inputs))
        layer.bias.copy_(0.5 * draw(seed + 1, outputs))
    return layer


def body(seed: int = 10) -> nn.Sequential:
    return nn.Sequential(linear(seed), nn.Tanh(), linear(seed + 2), nn.Tanh())


def pretrain_loss(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    return ((head(encoder(batch[0])) - batch[1]) ** 2 * meta["w"].exp()).mean()


def finetune_loss(head: Any, features: Tensor, batch: Any) -> Tensor:
    return nn.functional.softplus(2 * head(features).squeeze(-1) - batch[1][:, 0]).mean()


def problem(encoder: nn.Module | None = None, **changes: Any) -> ModuleProblem:
    modules = {"encoder": encoder or body(), "head": linear(20, 3, 2), "finetune_head": linear(22, 3, 1)}
    functions = {"pretrain_loss": pretrain_loss, "finetune_loss": finetune_loss}
    return ModuleProblem(**modules | functions | changes)


def loaders() -> LoaderBatches:
    return LoaderBatches(pretrain=[(X, Y)], train=[(X[:6], Y[:6])], validation=[(X[6:], Y[6:])])


def pretrained(toy: ModuleProblem, steps: int = 20, meta: Params = META, **optimizer: Any) -> Pretrained:
    """Return what plain PT by SGD with the learning rate 0.3 leaves."""
    trainer = Pretrainer(toy, loaders(), toy.pretrained, OptimizerSpec("SGD", {"lr": 0.3, **optimizer}))
    trainer.run(meta, steps)
    return trainer.pretrained


def by_hand(
    encoder: nn.Module, head: nn.Module, steps: int = 20, loss: Callable[..., Tensor] = pretrain_loss
) -> list[Tensor]:
    """Return the parameters that a plain loop of torch leaves in copies of the modules."""
    encoder, head = copy.deepcopy((encoder.train(), head.train()))
    parameters = [*encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(encoder, head, META, (X, Y)).backward()
        optimizer.step()
    return parameters


def gradient(toy: Any, **changes: Any) -> Tensor:
    """Return one hypergradient, with the exact inverse of H + 1 and one unrolled FT step."""
    arguments: dict[str, Any] = {
        "pretrained": toy.pretrained,
        "meta": META,
        "head": toy.head,
        "pretrain_batch": (X, Y),
        "train_batches": [(X[:6], Y[:6])],
        "validation_batch": (X[6:], Y[6:]),
        "inverse": Dense(damping=1.0),
        "finetuning": Unroll(1, SGD(0.1)),
    }
    return hypergradient(toy, **arguments | changes).gradient["w"]


def exact(toy: Any, steps: int = 4) -> Tensor:
    """Return the exact hypergradient through some PT steps and one FT step of the network."""
    sgd = SGD(0.3)
    return exact_hypergradient(
        toy,
        toy.pretrained,
        META,
        toy.head,
        pretrain_batches=[(X, Y)] * steps,
        train_batches=[(X[:6], Y[:6])],
        validation_batches=[(X[6:], Y[6:])],
        pretrain_optimizer=sgd,
        finetune_optimizer=sgd,
    ).gradient["w"]


def loop(toy: ModuleProblem, iterations: int = 2, meta: Params = META, **settings: Any) -> MetaPretraining:
    given = {"inverse": Dense(damping=1.0), "finetuning": Unroll(1, SGD(0.1))} | settings
    return MetaPretraining(toy, loaders(), toy.pretrained, meta, toy.head, MetaSettings(iterations, **given))
