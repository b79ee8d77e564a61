"""Products of a vector with the Hessian or the Gauss-Newton matrix of the PT loss.

All products use one graph, so one minibatch, one dropout mask and one set of batch statistics.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from metapt.hypergrad.inverse import Matvec
from metapt.hypergrad.params import Vector, vjp, vjp_graph


def hessian(gradient: Vector, params: Vector, zeros: Sequence[Tensor] = ()) -> Matvec:
    """Return the product v -> H v with the Hessian, the derivative of the gradient w.r.t. `params` (Pearlmutter 1994).

    Rows of H are skipped where a part of v is one of the very objects `zeros`, as in the first product of each solver.
    """
    known = {id(value) for value in zeros}

    def matvec(vector: Vector) -> Vector:
        parts = [(row, value) for row, value in zip(gradient, vector, strict=True) if id(value) not in known]
        return vjp([row for row, _ in parts], params, [value for _, value in parts], retain_graph=True)

    return matvec


def gauss_newton(outputs: Tensor, loss: Tensor, params: Vector) -> Matvec:
    """Return the product v -> J^T B J v with the Gauss-Newton matrix (Schraudolph 2002).

    J is the Jacobian of the outputs and B the Hessian of the loss w.r.t. the outputs. The matrix is positive
    semi-definite whenever the loss is convex in the outputs. J v takes two reverse passes: J^T u is linear in a dummy
    u, and its derivative w.r.t. u, applied to v, is J v. `outputs` is a node of the graph of `loss`.
    """
    (output_gradient,) = vjp_graph(loss, [outputs], "outputs_loss")
    dummy = torch.ones_like(outputs, requires_grad=True)  # not zero, which would hide a detached derivative
    pullback = vjp_graph(outputs, params, "pretrain_outputs", dummy)

    def matvec(vector: Vector) -> Vector:
        (pushed,) = vjp(pullback, [dummy], vector, retain_graph=True)
        (curved,) = vjp([output_gradient], [outputs], [pushed], retain_graph=True)
        return vjp([outputs], params, [curved], retain_graph=True)

    return matvec
