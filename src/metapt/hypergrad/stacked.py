"""Many replicates of a problem as one problem, whose parameters and minibatches have a leading dimension of replicates.

The loss is the sum over replicates: its gradient contains the gradient of each replicate, and its Hessian is
block-diagonal. With SGD, momentum, Adam, `Identity` and `Neumann` each replicate therefore gets the same result as
alone. `ConjugateGradient` solves the same system, but with common step lengths, and a fitted head has a common line
search. Losses and norms are sums and norms over all replicates, in diagnostics, in the guard against explosions, and
where a hypergradient is normalised or clipped. So with these a replicate depends on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from metapt.hypergrad.params import Params, Pretrained
from metapt.hypergrad.problem import GaussNewtonProblem, MetaProblem


class Stacked:
    """A `MetaProblem` over stacked replicates of a problem; a `GaussNewtonProblem` if the problem is one.

    Args:
        problem: the problem of one replicate, called by `torch.func.vmap`.
    """

    def __init__(self, problem: MetaProblem) -> None:
        self.problem = problem

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        """Return the sum of the PT losses of the replicates, a scalar."""
        return self.pretrain_losses(pretrained, meta, batch).sum()

    def pretrain_losses(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        """Return the PT loss of each replicate, shape [replicates]."""
        return _vmap(self.problem.pretrain_loss, pretrained, meta, batch)

    def pretrain_outputs(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        """Return the outputs of each replicate for its PT minibatch, shape [replicates, ...]."""
        return _vmap(cast(GaussNewtonProblem, self.problem).pretrain_outputs, pretrained, meta, batch)

    def outputs_loss(self, outputs: Tensor, meta: Params, batch: Any) -> Tensor:
        """Return the sum of the PT losses of the replicates as a function of their outputs, a scalar."""
        return _vmap(cast(GaussNewtonProblem, self.problem).outputs_loss, outputs, meta, batch).sum()

    def encode(self, encoder: Params, batch: Any) -> Tensor:
        """Return the features of each replicate for its FT minibatch, shape [replicates, ...]."""
        return _vmap(self.problem.encode, encoder, batch)

    def head_loss(self, head: Params, features: Tensor, batch: Any) -> Tensor:
        """Return the sum of the FT losses of the replicates, a scalar."""
        return _vmap(self.problem.head_loss, head, features, batch).sum()


def stack(replicates: Sequence[Params]) -> Params:
    """Return one dictionary, with a leading dimension of replicates, from one dictionary per replicate."""
    return {name: torch.stack([replicate[name] for replicate in replicates]) for name in replicates[0]}


def stack_pretrained(replicates: Sequence[Pretrained]) -> Pretrained:
    """Return encoder, PT head and buffers, each with a leading dimension of replicates."""
    return Pretrained(*(stack([replicate[part] for replicate in replicates]) for part in range(3)))


def _vmap(function: Any, *args: Any) -> Tensor:
    result: Tensor = torch.func.vmap(function)(*args)
    return result
