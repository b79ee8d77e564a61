"""The second part of a hypergradient, the products with inverse Hessian and mixed derivative, as a CUDA graph."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from metapt.hypergrad import MetaProblem, Params, Pretrained
from metapt.hypergrad.hybrid import How, Implicit, implicit
from metapt.hypergrad.inverse import Matvec, SolveResult, Status, Unread
from metapt.hypergrad.params import Vector, detached, norm
from metapt.training.capture import Captured, drawing


class CapturedImplicit:
    """`implicit`, captured, of a problem whose weights stay in the same memory, for inverses that are `Unread`."""

    def __init__(self) -> None:
        self._given: tuple[MetaProblem, Pretrained, How]
        self._captured = Captured(
            self._unread, self._tensors, lambda *given: self._unread(*given)[0], "a hypergradient"
        )

    def __call__(
        self, problem: MetaProblem, pretrained: Pretrained, meta: Params, batch: Any, g2: Vector, how: How
    ) -> Implicit:
        """Return what `implicit` does; where a number is not finite, by `implicit`, which says why."""
        self._given = problem, pretrained, how
        kind = repr(how.inverse), *how[1:]
        with drawing(batch, self._tensors()) as plain:
            _, product, value, residual, loss, gradient = self._captured(detached(meta), plain, g2, kind)
        first, last = torch.stack([norm(g2), residual]).tolist()
        if not math.isfinite(first + last):
            return implicit(problem, pretrained, meta, batch, g2, how)
        solved = cast(Unread, how.inverse).judged(value, first, last)
        return Implicit(product, solved, loss.clone(), gradient)  # the loss is kept for longer

    def _unread(self, meta: Params, batch: Any, g2: Vector, kind: Any) -> Any:
        problem, pretrained, how = self._given
        norms: list[Tensor] = []

        def unread(matvec: Matvec, b: Vector) -> SolveResult:
            value, residual = cast(Unread, how.inverse).unread(matvec, b)
            norms.append(residual)
            return SolveResult(value, Status.OK, math.nan, 0)

        found = implicit(problem, pretrained, meta, batch, g2, how._replace(inverse=unread))
        return norm(found.product), found.product, found.solved.value, norms[0], found.loss, found.gradient

    def _tensors(self) -> list[Tensor]:
        _, pretrained, _ = self._given
        return [*pretrained.vector(), *pretrained.buffers.values()]
