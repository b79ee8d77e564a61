"""SGD with momentum and Adam as pure, differentiable functions, equal to those of `torch.optim` in each step.

The state is a flat dictionary of tensors, so that it can be saved, stacked and passed from one call to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from metapt.hypergrad.params import Params, vjp_graph

OptimizerState = dict[str, Tensor]


class DifferentiableOptimizer(Protocol):
    """An optimiser whose steps can be differentiated."""

    def init(self, params: Params) -> OptimizerState:
        """Return the state before the first step."""

    def step(self, params: Params, gradients: Params, state: OptimizerState) -> tuple[Params, OptimizerState]:
        """Return new parameters and a new state; change no argument."""


def take_steps(
    optimizer: DifferentiableOptimizer,
    loss: Callable[..., Tensor],
    parts: Sequence[Params],
    states: Sequence[OptimizerState],
    batches: Sequence[Any],
    what: str,
) -> tuple[Sequence[Params], Sequence[OptimizerState], list[Tensor]]:
    """Take a step down `loss(batch, *parts)` of each part on each minibatch; `what` names the loss in errors.

    Returns:
        Parts and states with their graph, and the loss before each step.
    """
    losses = []
    for batch in batches:
        value = loss(batch, *parts)
        gradients = iter(vjp_graph(value, [each for part in parts for each in part.values()], what))
        named = [{name: next(gradients) for name in part} for part in parts]
        parts, states = zip(*map(optimizer.step, parts, named, states), strict=True)
        losses.append(value.detach())
    return parts, states, losses


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with heavy-ball momentum if `momentum` > 0 (Polyak 1964; `torch.optim.SGD`).

    m <- momentum * m + g;  p <- p - lr * m

    Args:
        lr: learning rate, above 0.
        momentum: from 0 up to, but not including, 1.

    >>> w, state = SGD(lr=0.5).step({"w": torch.tensor(1.0)}, {"w": torch.tensor(0.4)}, {})
    >>> w["w"].item()
    0.800000011920929
    """

    lr: float
    momentum: float = 0.0

    def __post_init__(self) -> None:
        _check_lr(self.lr)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}; legal: from 0 up to, but not including, 1")

    def init(self, params: Params) -> OptimizerState:
        return {name: torch.zeros_like(value) for name, value in params.items()} if self.momentum else {}

    def step(self, params: Params, gradients: Params, state: OptimizerState) -> tuple[Params, OptimizerState]:
        if self.momentum:
            gradients = state = {name: self.momentum * state[name] + gradient for name, gradient in gradients.items()}
        return {name: value - self.lr * gradients[name] for name, value in params.items()}, state


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015, Algorithm 1; `torch.optim.Adam`).

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  p <- p - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    Where v is exactly 0 the derivative of its square root, which is infinite, is set to 0. Otherwise a single parameter
    whose gradient has always been 0 would make the whole hypergradient NaN.

    Args:
        lr: learning rate, above 0.
        betas: b1 and b2, each from 0 up to, but not including, 1.
        eps: above 0.
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check_lr(self.lr)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are {self.betas}; legal: two numbers from 0 up to, but not including, 1")
        if not self.eps > 0:
            raise ValueError(f"eps is {self.eps}; legal: a positive number")

    def init(self, params: Params) -> OptimizerState:
        moments = {
            f"{moment}/{name}": torch.zeros_like(value)
            for moment in ("first", "second")
            for name, value in params.items()
        }
        return {"step": torch.tensor(0), **moments}  # on the CPU, so that reading it never waits for a GPU

    def step(self, params: Params, gradients: Params, state: OptimizerState) -> tuple[Params, OptimizerState]:
        count = int(state["step"]) + 1
        beta1, beta2 = self.betas
        step_size = self.lr / (1 - beta1**count)
        root_correction = math.sqrt(1 - beta2**count)
        new_params: Params = {}
        new_state: OptimizerState = {"step": torch.tensor(count)}
        for name, value in params.items():
            gradient = gradients[name]
            first = torch.lerp(state[f"first/{name}"], gradient, 1 - beta1)
            second = beta2 * state[f"second/{name}"] + (1 - beta2) * gradient * gradient
            new_params[name] = value - step_size * first / (_root(second) / root_correction + self.eps)
            new_state[f"first/{name}"], new_state[f"second/{name}"] = first, second
        return new_params, new_state


def _root(value: Tensor) -> Tensor:
    """Return the square root, with derivative 0 at 0."""
    positive = value > 0
    return torch.where(positive, torch.where(positive, value, 1.0).sqrt(), 0.0)


def _check_lr(lr: float) -> None:
    if not (lr > 0 and math.isfinite(lr)):
        raise ValueError(f"lr is {lr}; legal: a positive number")
