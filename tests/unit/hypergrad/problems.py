"""Small problems in float64 that the tests share, and references that share no code with `metapt.hypergrad`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from metapt.hypergrad import (
    SGD,
    Adam,
    ExactHypergradient,
    Hypergradient,
    Identity,
    Params,
    Pretrained,
    Unroll,
    exact_hypergradient,
    hypergradient,
    trial,
)

DTYPE = torch.float64
Reference = Callable[[list[Tensor]], torch.optim.Optimizer]
OPTIMIZERS = [  # with torch's optimiser of the same name
    pytest.param(SGD(lr=0.3), lambda p: torch.optim.SGD(p, lr=0.3), id="sgd"),
    pytest.param(SGD(lr=0.2, momentum=0.8), lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.8), id="momentum"),
    pytest.param(Adam(lr=0.1, eps=1e-3), lambda p: torch.optim.Adam(p, lr=0.1, eps=1e-3), id="adam"),
]


class Batch(NamedTuple):
    inputs: Tensor
    targets: Tensor


def draw(seed: int, *shape: int, scale: float = 1.0) -> Tensor:
    """Standard normal numbers that depend on the seed only."""
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)


def counted(problem: Any) -> Any:
    """Let a problem count as tried, so that what is counted is one hypergradient, and return it."""
    trial.tried(problem).update(dict.fromkeys((trial.UNCHANGED, trial.MIXED, trial.HESSIAN, trial.HEAD)))
    return problem


def called(problem: Any, **given: Any) -> Hypergradient:
    """The hypergradient of a problem at its own weights, without inverse and FT steps unless they are given."""
    own = {name: getattr(problem, name) for name in ("pretrained", "meta", "head") if name not in given}
    return hypergradient(problem, **{"train_batches": [], "inverse": Identity(), "finetuning": Unroll(0)} | own | given)


def exact(problem: Any, **given: Any) -> ExactHypergradient:
    """The exact hypergradient of a problem from its own weights, by steps of SGD unless others are given."""
    own = {name: getattr(problem, name) for name in ("pretrained", "meta", "head") if name not in given}
    optimizers = dict.fromkeys(("pretrain_optimizer", "finetune_optimizer"), SGD(lr=0.3))
    return exact_hypergradient(problem, **optimizers | own | given)


def same_bits(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def flat_vector(vector: Sequence[Tensor]) -> Tensor:
    return torch.cat([value.reshape(-1) for value in vector])


def flat(params: Params) -> Tensor:
    return flat_vector(list(params.values()))


def rebuilt(like: Pretrained, vector: Tensor) -> Pretrained:
    """Encoder and PT head of the numbers of a flat vector, with copies of the buffers."""
    parts = iter(vector.split([value.numel() for value in like.vector()]))
    encoder, head = ({name: next(parts).reshape(v.shape) for name, v in part.items()} for part in like[:2])
    return Pretrained(encoder, head, {name: value.clone() for name, value in like.buffers.items()})


def moved(value: Any, device: str) -> Any:
    """Tensors in dictionaries, tuples and lists on another device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: moved(part, device) for name, part in value.items()}
    parts = [moved(part, device) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else parts


def central_difference(function: Callable[[Params], Tensor | float], at: Params, step: float = 1e-5) -> Params:
    """The derivative of a scalar function, coordinate by coordinate."""
    gradient = {}
    for name, value in at.items():
        slopes = []
        for index in range(value.numel()):
            shift = torch.zeros(value.numel(), dtype=value.dtype)
            shift[index] = step
            above, below = (
                float(function({**at, name: value + sign * shift.reshape(value.shape)})) for sign in (1, -1)
            )
            slopes.append((above - below) / (2 * step))
        gradient[name] = torch.tensor(slopes, dtype=value.dtype).reshape(value.shape)
    return gradient


class Quadratic:
    """PT loss (w - A meta)^T H (w - A meta) / 2 over encoder and PT head w; FT by least squares on linear features.

    H couples encoder and PT head, and its eigenvalues are given. PT ends at w = A meta, whatever its initial weights.
    """

    eigenvalues = torch.linspace(0.5, 2.0, 8, dtype=DTYPE)

    def __init__(self) -> None:
        basis, _ = torch.linalg.qr(draw(1, 8, 8))
        self.H = basis @ torch.diag(self.eigenvalues) @ basis.T
        self.A = draw(2, 8, 3)
        self.meta = {"first": draw(3, 2), "second": draw(4, 1)}
        self.head = {"weight": draw(5, 2), "bias": draw(6, 1)}

    def optimum(self, meta: Params) -> Pretrained:
        w = self.A @ flat(meta)
        return Pretrained({"map": w[:6].reshape(3, 2)}, {"bias": w[6:]})

    def batches(self, count: int, seed: int = 10, size: int = 5) -> list[Batch]:
        return [Batch(draw(seed + 2 * i, size, 3), draw(seed + 2 * i + 1, size)) for i in range(count)]

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        gap = torch.cat([flat(pretrained.encoder), flat(pretrained.head)]) - self.A @ flat(
            {name: meta[name] for name in self.meta}
        )
        return gap @ self.H @ gap / 2

    def encode(self, encoder: Params, batch: Batch) -> Tensor:
        return batch.inputs @ encoder["map"]

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return (features @ head["weight"] + head["bias"] - batch.targets).square().mean() / 2


def classification(seed: int, size: int, inputs: int = 4, classes: int = 3) -> Batch:
    x = draw(seed, size, inputs)
    return Batch(x, (x @ draw(seed + 1, inputs, classes)).argmax(dim=1))


class Classifier:
    """A two-layer network; the PT loss has a learned weight per class and a learned ridge; FT is softmax regression."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        self.activation = activation
        self.meta = {"weights": draw(20, 3), "ridge": draw(21, 1) - 2}
        self.pretrained = Pretrained(
            {"weight": draw(22, 5, 4, scale=0.5), "bias": draw(23, 5, scale=0.5)},
            {"weight": draw(24, 3, 5, scale=0.5), "bias": draw(25, 3, scale=0.5)},
        )
        self.head = {"weight": draw(26, 3, 5, scale=0.5), "bias": draw(27, 3, scale=0.5)}

    def pretrain_outputs(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        return self.encode(pretrained.encoder, batch) @ pretrained.head["weight"].T + pretrained.head["bias"]

    def outputs_loss(self, outputs: Tensor, meta: Params, batch: Batch) -> Tensor:
        return (
            meta["weights"].sigmoid()[batch.targets] * F.cross_entropy(outputs, batch.targets, reduction="none")
        ).mean()

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        ridge = sum(value.square().sum() for value in pretrained.vector()) * meta["ridge"].exp().sum()
        return self.outputs_loss(self.pretrain_outputs(pretrained, meta, batch), meta, batch) + ridge

    def encode(self, encoder: Params, batch: Batch) -> Tensor:
        return self.activation(batch.inputs @ encoder["weight"].T + encoder["bias"])

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(features @ head["weight"].T + head["bias"], batch.targets)


class WithoutRidge(Classifier):
    """The same with a PT loss that is a convex function of the outputs alone, as the Gauss-Newton matrix needs."""

    def __init__(self) -> None:
        super().__init__()
        del self.meta["ridge"]

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        return self.outputs_loss(self.pretrain_outputs(pretrained, meta, batch), meta, batch)


class Normed(Classifier):
    """The same with a module with BatchNorm as its encoder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh()).double()
        encoder = {name: value.detach().clone() for name, value in self.module.named_parameters()}
        buffers = {name: value.clone() for name, value in self.module.named_buffers()}
        buffers["1.running_mean"], buffers["1.running_var"] = draw(28, 5), draw(29, 5).exp()
        self.pretrained = Pretrained(encoder, self.pretrained.head, buffers)

    def mask(self, batch: Any) -> Tensor:
        return torch.ones((), dtype=DTYPE)

    def pretrain_outputs(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        self.module.train()
        features = functional_call(self.module, {**pretrained.encoder, **pretrained.buffers}, batch.inputs)
        return self.mask(batch) * features @ pretrained.head["weight"].T + pretrained.head["bias"]

    def encode(self, encoder: Params, batch: Batch) -> Tensor:
        self.module.eval()
        result: Tensor = functional_call(self.module, encoder, batch.inputs)
        return result


class SeededBatch(NamedTuple):
    inputs: Tensor
    targets: Tensor
    seed: int


class Masked(Normed):
    """The same with dropout from a seed in the PT minibatch."""

    def mask(self, batch: SeededBatch) -> Tensor:
        generator = torch.Generator().manual_seed(batch.seed)
        return 2 * (torch.rand(len(batch.inputs), 5, generator=generator, dtype=DTYPE) < 0.5)


def sgd(params: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.3)


def trained(problem: Any, meta: Params, batches: Sequence[Any], optimizer: Reference = sgd) -> Pretrained:
    """PT by an optimiser of torch, as any training loop does it; encoder, PT head and buffers after it."""
    encoder, head = (
        {k: v.detach().clone().requires_grad_() for k, v in part.items()} for part in problem.pretrained[:2]
    )
    buffers = {name: value.clone() for name, value in problem.pretrained.buffers.items()}
    stepper = optimizer([*encoder.values(), *head.values()])
    for batch in batches:
        stepper.zero_grad()
        problem.pretrain_loss(Pretrained(encoder, head, buffers), meta, batch).backward()
        stepper.step()
    return Pretrained({k: v.detach() for k, v in encoder.items()}, {k: v.detach() for k, v in head.items()}, buffers)


def finetuned_loss(
    problem: Any,
    pretrained: Pretrained,
    head: Params,
    batches: Sequence[Any],
    validation_batch: Any,
    optimizer: Reference,
    network: bool,
) -> Tensor:
    """The FT validation loss after FT by an optimiser of torch, one minibatch a step."""
    encoder = {name: value.detach().clone().requires_grad_(network) for name, value in pretrained.encoder.items()}
    head = {name: value.detach().clone().requires_grad_() for name, value in head.items()}
    stepper = optimizer([*head.values(), *(encoder.values() if network else ())])
    for batch in batches:
        stepper.zero_grad()
        problem.head_loss(head, problem.encode({**encoder, **pretrained.buffers}, batch), batch).backward()
        stepper.step()
    with torch.no_grad():
        features = problem.encode({**encoder, **pretrained.buffers}, validation_batch)
        loss: Tensor = problem.head_loss(head, features, validation_batch)
        return loss
