"""The interface between a domain and the method: three pure functions, and what a problem may offer besides.

`Checked` is a problem whose results are checked in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from metapt.hypergrad.params import Params, Pretrained, Vector


class MetaProblem(Protocol):
    """Pre-training with meta-parameters, then fine-tuning, on minibatches of any type.

    Each method is pure: it changes none of its arguments (except `pretrained.buffers`, see `pretrain_loss`), and two
    calls with the same arguments return the same numbers. A minibatch therefore contains its random draws (noise,
    masks, seeds). The PT loss must depend on each meta-parameter. The training loop checks both at its first
    hypergradient (see `check_problem`). The first hypergradient compares second derivatives with differences (see
    `check_second_derivatives`).
    """

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        """Return the PT loss of a PT minibatch, a scalar, with encoder and PT head in training mode.

        A module may update its BatchNorm statistics in `pretrained.buffers` in place, as usual in torch: the training
        loop passes the real buffers, the hypergradient a copy. A buffer that a module assigns anew is only in the
        dictionary that `functional_call` was given, and has to be copied from there.
        """

    def encode(self, encoder: Params, batch: Any) -> Tensor:
        """Return the features of an FT minibatch, a tensor of any shape, with the encoder in evaluation mode.

        Args:
            encoder: the parameters of the encoder and the PT buffers, in one dictionary.
            batch: an FT minibatch.
        """

    def head_loss(self, head: Params, features: Tensor, batch: Any) -> Tensor:
        """Return the FT loss of an FT minibatch, a scalar, given the features of the minibatch."""


def name_of(problem: MetaProblem, method: str) -> str:
    """Return the name by which the user knows a method of a problem: that in its optional dictionary `names`."""
    names: dict[str, str] = getattr(problem, "names", {})
    return names.get(method, method)


class GaussNewtonProblem(MetaProblem, Protocol):
    """A problem whose PT loss is a convex function of the outputs of a network, as the Gauss-Newton matrix requires.

    `pretrain_loss(pretrained, meta, batch)` must equal `outputs_loss(pretrain_outputs(pretrained, meta, batch), meta,
    batch)`.
    """

    def pretrain_outputs(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        """Return the outputs of the network for a PT minibatch, such as logits, a tensor of any shape."""

    def outputs_loss(self, outputs: Tensor, meta: Params, batch: Any) -> Tensor:
        """Return the PT loss, a scalar, a convex function of `outputs`."""


class ForwardProblem(MetaProblem, Protocol):
    """A problem that computes the product with the mixed derivative of its PT loss without a graph of the PT gradient.

    Where the PT loss is linear in functions of the meta-parameters, as with task weights, one forward-mode pass
    suffices.
    """

    def mixed_product(self, pretrained: Pretrained, meta: Params, batch: Any, vector: Vector) -> tuple[Params, Tensor]:
        """Return v d2L / (dw dmeta), named like `meta`, and L, the PT loss of a PT minibatch; w is encoder and PT head.

        Args:
            pretrained: encoder, PT head and buffers, where the derivative is taken.
            meta: the meta-parameters.
            batch: a PT minibatch.
            vector: v, one tensor per parameter of the encoder, then of the PT head.
        """


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
        loss = self._value(self._problem.pretrain_loss, pretrained, meta, batch)
        return _loss("pretrain_loss", loss, pretrained.vector())

    def encode(self, encoder: Params, batch: Any) -> Tensor:
        return _attached("encode", self._value(self._problem.encode, encoder, batch), encoder.values())

    def head_loss(self, head: Params, features: Tensor, batch: Any) -> Tensor:
        loss = self._value(self._problem.head_loss, head, features, batch)
        return _loss(name_of(self._problem, "head_loss"), loss, [features, *head.values()])

    def _value(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a method of the problem returns; a subclass may compute it in another way."""
        return function(*arguments)


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
