"""The interface between a domain and the method: three pure functions, and what a problem may offer besides."""

from __future__ import annotations

from typing import Any, Protocol

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
        loop passes the real buffers, the hypergradient a copy.
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
