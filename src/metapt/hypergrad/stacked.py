"""Many replicates of one problem as one: every parameter and every tensor of a batch has a leading dimension of replicates.

The loss is the sum over replicates, so its gradient holds each replicate's own gradient and its Hessian is block-diagonal. SGD,
momentum, Adam, `Identity` and `Neumann` therefore do to each replicate just what they would do to it alone. `ConjugateGradient`
solves the same system, but its steps are shared; losses and norms in diagnostics are sums and norms over all replicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from metapt.hypergrad.params import Params, Pretrained
from metapt.hypergrad.problem import GaussNewtonProblem, MetaProblem


class Stacked:
    """A `MetaProblem` over stacked replicates of `problem`, by `torch.func.vmap`; a `GaussNewtonProblem` if `problem` is one."""

    def __init__(self, problem: MetaProblem) -> None:
        self.problem = problem

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        return self.pretrain_losses(pretrained, meta, batch).sum()

    def pretrain_losses(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        """The PT loss of each replicate, shape [replicates]."""
        return _vmap(self.problem.pretrain_loss, pretrained, meta, batch)

    def pretrain_outputs(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        return _vmap(cast(GaussNewtonProblem, self.problem).pretrain_outputs, pretrained, meta, batch)

    def outputs_loss(self, outputs: Tensor, meta: Params, batch: Any) -> Tensor:
        return _vmap(cast(GaussNewtonProblem, self.problem).outputs_loss, outputs, meta, batch).sum()

    def encode(self, encoder: Params, batch: Any) -> Tensor:
        return _vmap(self.problem.encode, encoder, batch)

    def head_loss(self, head: Params, features: Tensor, batch: Any) -> Tensor:
        return self.head_losses(head, features, batch).sum()

    def head_losses(self, head: Params, features: Tensor, batch: Any) -> Tensor:
        """The FT loss of each replicate, shape [replicates]."""
        return _vmap(self.problem.head_loss, head, features, batch)


def stack(replicates: Sequence[Params]) -> Params:
    """One dictionary with a leading dimension of replicates from one dictionary per replicate."""
    return {name: torch.stack([replicate[name] for replicate in replicates]) for name in replicates[0]}


def stack_pretrained(replicates: Sequence[Pretrained]) -> Pretrained:
    return Pretrained(*(stack([replicate[part] for replicate in replicates]) for part in range(3)))


def unstack(params: Params, index: int) -> Params:
    """One replicate of a stacked dictionary."""
    return {name: value[index] for name, value in params.items()}


def _vmap(function: Any, *args: Any) -> Tensor:
    result: Tensor = torch.func.vmap(function)(*args)
    return result
