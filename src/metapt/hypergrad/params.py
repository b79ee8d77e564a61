"""Parameters as dictionaries of tensors, vectors as lists of tensors, and the three derivatives that the method is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Params = dict[str, Tensor]
"""Named tensors, in the form that `torch.func.functional_call` takes."""

Vector = list[Tensor]
"""A vector in parameter space: one tensor per parameter, in the order of the parameters."""


class Pretrained(NamedTuple):
    """What pre-training trains: the encoder (kept for fine-tuning), the PT head (discarded), buffers (BatchNorm's statistics)."""

    encoder: Params
    head: Params
    buffers: Params = {}

    def leaves(self) -> Pretrained:
        """The same values as new leaves of the autograd graph, with buffers copied, so that no loss can change the originals."""
        buffers = {name: buffer.detach().clone() for name, buffer in self.buffers.items()}
        return Pretrained(leaves(self.encoder), leaves(self.head), buffers)

    def to(self, device: torch.device | str) -> Pretrained:
        return Pretrained(*({name: value.to(device) for name, value in part.items()} for part in self))

    def vector(self) -> Vector:
        """Encoder, then head, as one vector."""
        return [*self.encoder.values(), *self.head.values()]


def leaves(params: Params) -> Params:
    """The same values as new leaves of the autograd graph (no copy)."""
    return {name: value.detach().requires_grad_() for name, value in params.items()}


def detached(params: Params) -> Params:
    """The same values outside of any graph (no copy)."""
    return {name: value.detach() for name, value in params.items()}


def like(params: Params, values: Sequence[Tensor]) -> Params:
    """`values` under the names of `params`."""
    return dict(zip(params, values, strict=True))


def vjp(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor] | None = None,
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
) -> Vector:
    """`cotangents` times the Jacobian of `outputs` w.r.t. `inputs`; zero where there is no dependence.

    Args:
        outputs: tensors of any shape; scalars when `cotangents` is left out.
        inputs: leaves or intermediate tensors of the graph.
        cotangents: one tensor of the shape of each output.
    """
    if cotangents is None:
        pairs = [(output, torch.ones_like(output)) for output in outputs if output.requires_grad]
    else:
        pairs = [pair for pair in zip(outputs, cotangents, strict=True) if pair[0].requires_grad]
    if not pairs or not inputs:
        return [torch.zeros_like(value) for value in inputs]
    graph_outputs, graph_cotangents = zip(*pairs, strict=True)
    gradients = torch.autograd.grad(
        graph_outputs, list(inputs), graph_cotangents, create_graph=create_graph, retain_graph=retain_graph, allow_unused=True
    )
    return [torch.zeros_like(value) if gradient is None else gradient for value, gradient in zip(inputs, gradients, strict=True)]


def zeros_like(vector: Vector) -> Vector:
    return [torch.zeros_like(value) for value in vector]


def add(left: Vector, right: Vector, scale: float = 1.0) -> Vector:
    """`left + scale * right`."""
    return [torch.add(a, b, alpha=scale) for a, b in zip(left, right, strict=True)]


def dot(left: Vector, right: Vector) -> Tensor:
    """The inner product, a scalar tensor."""
    return torch.stack([torch.sum(a * b) for a, b in zip(left, right, strict=True)]).sum()


def norm(vector: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm over all tensors, a scalar tensor; 0 for an empty vector."""
    if not vector:
        return torch.zeros(())
    total: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(value) for value in vector]))
    return total


def all_finite(vector: Sequence[Tensor]) -> bool:
    """Whether the norm is finite: then every number is, and none is so large that its square is not. Integers are passed over."""
    return math.isfinite(float(norm([value for value in vector if value.is_floating_point()])))
