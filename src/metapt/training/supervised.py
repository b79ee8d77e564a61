"""Plain training of a loss that is a pure function of parameters: PT with fixed meta-parameters, and FT."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from metapt.hypergrad import Params
from metapt.training.optimizers import OptimizerSpec


def train(loss: Callable[[Params], Tensor], params: Params, optimizer: OptimizerSpec, steps: int) -> Params:
    """Minimises `loss(params)`, which draws its own minibatches.

    Returns:
        New parameters; those given are not changed.
    """
    current = {name: value.detach().clone().requires_grad_() for name, value in params.items()}
    stepper = optimizer.build(current)
    for _ in range(steps):
        value = loss(current)
        stepper.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        stepper.step()
    return {name: value.detach() for name, value in current.items()}


@torch.no_grad()
def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Percentage of right predictions.

    Args:
        logits: [..., examples, classes].
        labels: [..., examples].

    Returns:
        [...].
    """
    return 100 * (logits.argmax(-1) == labels).float().mean(-1)
