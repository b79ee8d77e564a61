"""Products of a vector with the curvature of the PT loss, on one graph: one minibatch, one dropout mask, one batch statistics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from metapt.hypergrad.inverse import Matvec
from metapt.hypergrad.params import Vector, vjp, vjp_graph


def hessian(gradient: Vector, params: Vector, zeros: Sequence[Tensor] = ()) -> Matvec:
    """v -> H v, by differentiating the gradient, which must have a graph (Pearlmutter 1994).

    Args:
        zeros: tensors that are zero. Where a part of v is one of them (that very tensor, as in the first product of each
            inverse), its rows of H are not gone through.
    """
    known = {id(value) for value in zeros}

    def matvec(vector: Vector) -> Vector:
        parts = [pair for pair in zip(gradient, vector, strict=True) if id(pair[1]) not in known]
        return vjp([row for row, _ in parts], params, [value for _, value in parts], retain_graph=True)

    return matvec


def gauss_newton(outputs: Tensor, loss: Tensor, params: Vector) -> Matvec:
    """v -> J^T B J v, with J the Jacobian of the outputs and B the Hessian of the loss w.r.t. the outputs (Schraudolph 2002).

    Positive semi-definite whenever the loss is convex in the outputs. J v comes from two reverse passes: J^T u is linear in
    a dummy u, and differentiating it w.r.t. u gives J v.

    Args:
        outputs: the network's outputs, a node of the graph of `loss`.
        loss: a scalar.
        params: leaves on which `outputs` depend.
    """
    (output_gradient,) = vjp_graph(loss, [outputs], "outputs_loss")
    dummy = torch.ones_like(outputs, requires_grad=True)  # of any value; zeros would hide a derivative that is cut off
    pullback = vjp_graph(outputs, params, "pretrain_outputs", dummy)

    def matvec(vector: Vector) -> Vector:
        (pushed,) = vjp(pullback, [dummy], vector, retain_graph=True)
        (curved,) = vjp([output_gradient], [outputs], [pushed], retain_graph=True)
        return vjp([outputs], params, [curved], retain_graph=True)

    return matvec
