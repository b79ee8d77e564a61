"""A problem whose results are checked in each call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from metapt.hypergrad.params import Params, Pretrained
from metapt.hypergrad.problem import MetaProblem, name_of

LOOK_FOR = "Look for detach(), torch.no_grad(), item(), numpy, and for a module that is called without functional_call"


class Checked:
    """A problem that checks its results: losses must be scalars, and losses and features must have a graph.

    Its other attributes are those of `problem`. The three methods raise TypeError for a result that is no tensor, and
    ValueError for a loss that is no scalar or a result without a graph.
    """

    def __init__(self, problem: MetaProblem) -> None:
        self._problem = problem

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of an object that is being copied, which has no `_problem` yet
            raise AttributeError(name)
        return getattr(self._problem, name)

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        return _loss("pretrain_loss", self._problem.pretrain_loss(pretrained, meta, batch), pretrained.vector())

    def encode(self, encoder: Params, batch: Any) -> Tensor:
        return _attached("encode", self._problem.encode(encoder, batch), encoder.values())

    def head_loss(self, head: Params, features: Tensor, batch: Any) -> Tensor:
        name = name_of(self._problem, "head_loss")
        return _loss(name, self._problem.head_loss(head, features, batch), [features, *head.values()])


def _loss(method: str, loss: Any, inputs: Iterable[Tensor]) -> Tensor:
    checked = _attached(method, loss, inputs)
    if checked.dim():
        raise ValueError(
            f"{method} returned a tensor of shape {list(checked.shape)}; legal: a scalar, such as its mean: loss.mean()"
        )
    return checked


def _attached(method: str, output: Any, inputs: Iterable[Tensor]) -> Tensor:
    if not isinstance(output, Tensor):
        raise TypeError(f"{method} returned a {type(output).__name__}; legal: a tensor")
    if torch.is_grad_enabled() and not output.requires_grad and any(value.requires_grad for value in inputs):
        raise ValueError(
            f"{method} returned a tensor that depends on none of its parameters; legal: one made of them by "
            f"differentiable operations. {LOOK_FOR}"
        )
    return output
