"""A small regression in float64 whose modules, losses and loaders the tests change in one thing each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from metapt import LoaderBatches, MetaPretraining, MetaSettings, ModuleProblem, OptimizerSpec, Pretrainer
from metapt.hypergrad import Dense, Params, Pretrained, Unroll
from metapt.hypergrad.optimizers import SGD

from ..hypergrad import problems
from ..hypergrad.problems import called
from .problems import DTYPE, draw

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


def encode(encoder: Any, batch: Any) -> Tensor:
    return encoder(batch[0])


def pretrain_loss(encoder: Any, head: Any, meta: Params, batch: Any) -> Tensor:
    return ((head(encoder(batch[0])) - batch[1]) ** 2 * meta["w"].exp()).mean()


def finetune_loss(head: Any, features: Tensor, batch: Any) -> Tensor:
    return nn.functional.softplus(2 * head(features).squeeze(-1) - batch[1][:, 0]).mean()


FUNCTIONS = {"pretrain_loss": pretrain_loss, "encode": encode, "finetune_loss": finetune_loss}


def modules() -> dict[str, nn.Module]:
    return {"encoder": body(), "head": linear(20, 3, 2), "finetune_head": linear(22, 3, 1)}


def problem(encoder: nn.Module | None = None, **changes: Any) -> ModuleProblem:
    return ModuleProblem(**modules() | FUNCTIONS | ({"encoder": encoder} if encoder else {}) | changes)


def split(data: Any) -> tuple[Any, Any]:
    """Return the halves of a minibatch for FT training and FT validation."""
    half = len(data[0]) // 2
    return tuple(each[:half] for each in data), tuple(each[half:] for each in data)


def loaders(data: Any = (X, Y)) -> LoaderBatches:
    train, validation = split(data)
    return LoaderBatches(pretrain=[data], train=[train], validation=[validation])


def trainer(toy: Any, optimizer: OptimizerSpec | None = None, data: Any = (X, Y)) -> Pretrainer:
    return Pretrainer(toy, loaders(data), toy.pretrained, optimizer or OptimizerSpec("SGD", {"lr": 0.3}))


def pretrained(toy: ModuleProblem, steps: int = 20) -> Pretrained:
    """Return what plain PT by SGD with the learning rate 0.3 leaves."""
    plain = trainer(toy)
    plain.run(META, steps)
    return plain.pretrained


def by_hand(
    encoder: nn.Module, head: nn.Module | None = None, steps: int = 20, loss: Callable[..., Tensor] = pretrain_loss
) -> Pretrained:
    """Return what a plain loop of torch leaves in copies of the modules."""
    encoder, head = copy.deepcopy((encoder.train(), (head or linear(20, 3, 2)).train()))
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(encoder, head, META, (X, Y)).backward()
        optimizer.step()
    return Pretrained.from_modules(encoder, head)


def gradient(toy: Any, data: Any = (X, Y), **changes: Any) -> Tensor:
    """Return one hypergradient, with the exact inverse of H + 1 and one unrolled FT step."""
    train, validation = split(data)
    given = {"meta": META, "pretrain_batch": data, "train_batches": [train], "validation_batch": validation}
    how = {"inverse": Dense(damping=1.0), "finetuning": Unroll(1, SGD(0.1))}
    return called(toy, **given | how | changes).gradient["w"]


def agreeing(toy: Any, data: Any = (X, Y)) -> tuple[Tensor, Tensor]:
    """Return a hypergradient without FT steps, and the same with differences in the place of second derivatives."""
    start, validation = toy.pretrained.leaves(), split(data)[1]
    names = [*((0, name) for name in start.encoder), *((1, name) for name in start.head)]
    sizes = [value.numel() for value in start.vector()]

    def slope(flat: Tensor, w: Tensor) -> Tensor:
        parts = zip(flat.split(sizes), start.vector(), strict=True)
        leaves = [part.view_as(value).detach().clone().requires_grad_() for part, value in parts]
        encoder, head = ({name: v for (k, name), v in zip(names, leaves, strict=True) if k == part} for part in (0, 1))
        loss = toy.pretrain_loss(start._replace(encoder=encoder, head=head), {"w": w}, data)
        return torch.cat([each.to_dense().flatten() for each in torch.autograd.grad(loss, leaves)])

    def difference(shift: Tensor, meta_shift: Tensor) -> Tensor:
        ends = [slope(flat + sign * shift, META["w"] + sign * meta_shift) for sign in (1, -1)]
        return (ends[0] - ends[1]) / 2e-5

    flat, steps = torch.cat([value.detach().flatten() for value in start.vector()]), 1e-5 * torch.eye(2, dtype=DTYPE)
    shifts, none = 1e-5 * torch.eye(len(flat), dtype=DTYPE), torch.zeros((), dtype=DTYPE)
    hessian = torch.stack([difference(shift, none) for shift in shifts])
    loss = toy.head_loss(toy.head, toy.encode({**start.encoder, **start.buffers}, validation), validation)
    first = torch.cat([g.to_dense().flatten() for g in torch.autograd.grad(loss, list(start.encoder.values()))])
    g2 = torch.cat([first, torch.zeros(len(flat) - len(first), dtype=DTYPE)])
    solved = torch.linalg.solve(hessian + torch.eye(len(flat), dtype=DTYPE), g2)
    truth = torch.stack([-solved @ difference(none, shift) for shift in steps])
    return gradient(toy, data, finetuning=Unroll(0), train_batches=[]), truth


def exact(toy: Any, data: Any = (X, Y)) -> Tensor:
    """Return the exact hypergradient through four PT steps and one FT step of the network."""
    train, validation = split(data)
    batches = {"pretrain_batches": [data] * 4, "train_batches": [train], "validation_batches": [validation]}
    return problems.exact(toy, meta=META, **batches).gradient["w"]


def arguments(
    toy: Any, iterations: int = 2, data: Any = (X, Y), meta: Params = META, **settings: Any
) -> tuple[Any, ...]:
    """Return what `MetaPretraining` and `check` take."""
    given = {"inverse": Dense(damping=1.0), "finetuning": Unroll(1, SGD(0.1))} | settings
    return toy, loaders(data), toy.pretrained, meta, toy.head, MetaSettings(iterations, **given)


def loop(toy: Any, iterations: int = 2, data: Any = (X, Y), **settings: Any) -> MetaPretraining:
    return MetaPretraining(*arguments(toy, iterations, data, **settings))
