"""What a domain tells the method: three pure losses."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from metapt.hypergrad.params import Params, Pretrained, Vector


class MetaProblem(Protocol):
    """Pre-training with meta-parameters, then fine-tuning, on minibatches of any type.

    Each function is pure: it changes none of its arguments (but `pretrained.buffers`, see below), and called twice on the same
    arguments it returns the same number. So a minibatch carries its random draws (noise, masks, seeds) with it. The PT loss must
    depend on each meta-parameter. The training loop checks both at its first hypergradient (see `check_problem`).
    """

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        """The PT loss of a PT minibatch, a scalar. Encoder and PT head are in training mode.

        A module may update its BatchNorm statistics in `pretrained.buffers` in place, as it does anywhere in torch: the training
        loop hands it the real buffers, the hypergradient a copy.
        """

    def encode(self, encoder: Params, batch: Any) -> Tensor:
        """Features of an FT minibatch, encoder in evaluation mode.

        Args:
            encoder: the encoder's parameters and the PT buffers, in one dictionary.
        """

    def head_loss(self, head: Params, features: Tensor, batch: Any) -> Tensor:
        """The FT loss of an FT minibatch given its features, a scalar."""


class GaussNewtonProblem(MetaProblem, Protocol):
    """A problem whose PT loss is split where it becomes convex, as the Gauss-Newton matrix needs.

    `pretrain_loss(pretrained, meta, batch)` must equal `outputs_loss(pretrain_outputs(pretrained, meta, batch), meta, batch)`.
    """

    def pretrain_outputs(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        """What the network says about a PT minibatch (logits, say), any shape."""

    def outputs_loss(self, outputs: Tensor, meta: Params, batch: Any) -> Tensor:
        """The PT loss as a convex function of `outputs`, a scalar."""


class ForwardProblem(MetaProblem, Protocol):
    """A problem that knows the product with its mixed derivative without a graph of the PT gradient.

    Where the PT loss is linear in functions of the meta-parameters, as with task weights, one forward-mode pass gives it.
    """

    def mixed_product(self, pretrained: Pretrained, meta: Params, batch: Any, vector: Vector) -> tuple[Params, Tensor]:
        """v d2L / (dw dmeta), with L the PT loss of a PT minibatch and w encoder and PT head; and L itself.

        Args:
            vector: v, a tensor for each parameter of the encoder, then of the PT head.
        """
