"""Approximate solvers of linear systems H x = b that use only products with the matrix H, the Hessian of the PT loss.

Each solver is a frozen dataclass called with `(matvec, b)`. A failed solve is reported as a status with advice, not as
an exception: a long run should not end because the Hessian of one minibatch was indefinite.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from metapt.hypergrad.params import Vector, add, all_finite, dot, norm, scaled, zeros_like

Matvec = Callable[[Vector], Vector]


class Status(enum.Enum):
    """How a solve ended; the value says so in words, with advice."""

    OK = "solved as asked"
    DIVERGED = "the series diverged: lower step_size below 2 over the Hessian's largest eigenvalue, or use fewer terms"
    INDEFINITE = "the Hessian has negative curvature: use damping or (with `pretrain_outputs`) the Gauss-Newton matrix"
    MAX_STEPS = "not solved to the tolerance: raise max_steps, loosen the tolerance, or add damping"
    SINGULAR = "the matrix is singular: add damping"
    NON_FINITE = (
        "the right-hand side or a product with the matrix was not finite: look for NaN in the minibatches, "
        "then for FT or PT that diverges"
    )


class SolveResult(NamedTuple):
    """An approximate solution of `matvec(value) = b`.

    If b, a product with the matrix or the solution is not finite, `value` is NaN throughout, whatever the status. What
    is computed from it is then NaN too, and no caller can mistake it for a solution.

    Attributes:
        value: the solution, like b.
        status: how the solve ended.
        residual_norm: |b - matvec(value)|, damping included; NaN if it is not known without a further product.
        steps: number of products with the matrix.
    """

    value: Vector
    status: Status
    residual_norm: float
    steps: int


class Inverse(Protocol):
    """An approximation of the inverse of a matrix."""

    def __call__(self, matvec: Matvec, b: Vector) -> SolveResult:
        """Return an approximate solution of `matvec(value) = b`; change neither argument."""


@runtime_checkable
class Unread(Protocol):
    """An `Inverse` that can be computed without reading a number, so that nothing waits for a GPU."""

    def unread(self, matvec: Matvec, b: Vector) -> tuple[Vector, Tensor]:
        """Return a solution, and the norm by which it is judged."""

    def judged(self, value: Vector, first: float, last: float) -> SolveResult:
        """Return the result, given a solution, the norm of b and that norm, both finite."""


@dataclass(frozen=True)
class Identity:
    """The identity in place of the inverse, without any product (T1 - T2; Luketina et al. 2016)."""

    def __call__(self, matvec: Matvec, b: Vector) -> SolveResult:
        return SolveResult(b, Status.OK, math.nan, 0) if all_finite(b) else _not_finite(b, Status.NON_FINITE, 0)

    def unread(self, matvec: Matvec, b: Vector) -> tuple[Vector, Tensor]:
        return b, norm(b)

    def judged(self, value: Vector, first: float, last: float) -> SolveResult:
        return SolveResult(value, Status.OK, math.nan, 0)


@dataclass(frozen=True)
class Neumann:
    """The truncated Neumann series a * sum_{i=0..terms} (I - a H)^i b (Section 3.1; Lorraine et al. 2020, Algorithm 3).

    It converges to the exact solution as terms -> infinity if 0 < a * eigenvalue < 2 for each eigenvalue of H.
    `residual_norm` is |(I - a H)^terms b|, the residual of the series without its last term.

    Args:
        terms: number of Hessian-vector products; 0 gives a * b.
        step_size: a; the released code of the paper uses the PT learning rate.

    >>> H = torch.diag(torch.tensor([1.0, 4.0]))
    >>> Neumann(terms=60, step_size=0.4)(lambda v: [H @ v[0]], [torch.ones(2)]).value
    [tensor([1.0000, 0.2500])]
    """

    terms: int
    step_size: float

    def __post_init__(self) -> None:
        if self.terms < 0:
            raise ValueError(f"terms is {self.terms}; legal: 0 or more")
        if not (self.step_size > 0 and math.isfinite(self.step_size)):
            raise ValueError(f"step_size is {self.step_size}; legal: a positive number")

    def __call__(self, matvec: Matvec, b: Vector) -> SolveResult:
        value, residual = self.unread(matvec, b)
        first, last = torch.stack([norm(b), residual]).tolist()
        if not math.isfinite(last):
            grown = math.isfinite(first) and self._grows(matvec, b)
            return _not_finite(b, Status.DIVERGED if grown else Status.NON_FINITE, self.terms)
        return self.judged(value, first, last)

    def unread(self, matvec: Matvec, b: Vector) -> tuple[Vector, Tensor]:
        term, total = b, b
        for _ in range(self.terms):
            term = add(term, matvec(term), -self.step_size)
            total = add(total, term)
        return scaled(total, self.step_size), norm(term)

    def judged(self, value: Vector, first: float, last: float) -> SolveResult:
        # Slower growth is harmless with few terms, and an indefinite Hessian always has it.
        status = Status.DIVERGED if last > 2 * first else Status.OK
        return SolveResult(value, status, last, self.terms)

    def _grows(self, matvec: Matvec, b: Vector) -> bool:
        """Return whether a series that is not finite has overflowed although its first products were finite.

        It computes the products again, so that a series that stays finite needs no norm of each term.
        """
        term, limit = b, 2 * float(norm(b))
        for _ in range(self.terms):
            product = matvec(term)
            if not all_finite(product):
                return float(norm(term)) > limit
            term = add(term, product, -self.step_size)
            if not all_finite(term):
                return True
        return False


@dataclass(frozen=True)
class ConjugateGradient:
    """(H + damping * I)^-1 b by conjugate gradients (Hestenes and Stiefel 1952).

    The solve stops when |residual| <= rtol * |b|, after `max_steps` products, or at a direction of negative curvature.
    In the last case it returns the solution so far, or b itself in the first step (as in the Newton method of Steihaug
    1983).

    Args:
        rtol: tolerance of the residual, relative to |b|.
        max_steps: largest number of products with H.
        damping: added to the diagonal of H.
        relative_damping: added to the diagonal of H, too, times the Rayleigh quotient b.Hb / b.b, so that one value
            suits networks and losses of any scale.
    """

    rtol: float = 1e-3
    max_steps: int = 20
    damping: float = 0.0
    relative_damping: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.rtol < 1:
            raise ValueError(f"rtol is {self.rtol}; legal: between 0 and 1")
        if self.max_steps < 1:
            raise ValueError(f"max_steps is {self.max_steps}; legal: 1 or more")
        _check_damping(self.damping)
        _check_damping(self.relative_damping)

    def __call__(self, matvec: Matvec, b: Vector) -> SolveResult:
        value, residual, direction = zeros_like(b), b, b
        square = float(dot(b, b))
        target = self.rtol**2 * square
        steps, status, damping = 0, Status.OK, self.damping
        while square > target or not math.isfinite(square):
            if not math.isfinite(square):
                status = Status.NON_FINITE
                break
            if steps == self.max_steps:
                status = Status.MAX_STEPS
                break
            product = matvec(direction)
            if steps == 0 and self.relative_damping:
                damping += self.relative_damping * max(0.0, float(dot(direction, product)) / square)
            product = add(product, direction, damping)
            steps += 1
            curvature = float(dot(direction, product))
            if not curvature > 0:
                status = Status.INDEFINITE if math.isfinite(curvature) else Status.NON_FINITE
                if steps == 1:
                    value, residual = b, add(b, product, -1.0)
                    square = float(dot(residual, residual))
                break
            length = square / curvature
            value = add(value, direction, length)
            residual = add(residual, product, -length)
            previous, square = square, float(dot(residual, residual))
            direction = add(residual, direction, square / previous)
        if status is Status.NON_FINITE:
            return _not_finite(b, status, steps)
        return SolveResult(value, status, math.sqrt(square), steps)


@dataclass(frozen=True)
class Dense:
    """(H + damping * I)^-1 b from the whole matrix: exact, for tests and problems of a few hundred parameters.

    The matrix takes one product per column. If it is singular up to rounding, where the solution would be noise, b
    itself is returned; if the solution overflows, NaN.

    Args:
        damping: added to the diagonal of H.
    """

    damping: float = 0.0

    def __post_init__(self) -> None:
        _check_damping(self.damping)

    def __call__(self, matvec: Matvec, b: Vector) -> SolveResult:
        flat = _flatten(b)
        basis = torch.eye(flat.numel(), dtype=flat.dtype, device=flat.device)
        matrix = torch.stack([_flatten(matvec(_unflatten(column, b))) for column in basis], dim=1)
        matrix = matrix + self.damping * basis
        if not all_finite([flat, matrix]):
            return _not_finite(b, Status.NON_FINITE, flat.numel())
        solution, info = torch.linalg.solve_ex(matrix, flat)
        if bool((info != 0) | (torch.linalg.matrix_rank(matrix) < flat.numel())):
            return SolveResult(b, Status.SINGULAR, math.nan, flat.numel())
        residual = float(torch.linalg.vector_norm(matrix @ solution - flat))
        if not math.isfinite(residual):  # a pivot is so small that the solution overflows
            return _not_finite(b, Status.SINGULAR, flat.numel())
        return SolveResult(_unflatten(solution, b), Status.OK, residual, flat.numel())


def _check_damping(damping: float) -> None:
    if not (damping >= 0 and math.isfinite(damping)):
        raise ValueError(f"damping is {damping}; legal: 0 or more")


def _not_finite(b: Vector, status: Status, steps: int) -> SolveResult:
    return SolveResult([torch.full_like(value, math.nan) for value in b], status, math.nan, steps)


def _flatten(vector: Vector) -> Tensor:
    return torch.cat([value.reshape(-1) for value in vector])


def _unflatten(flat: Tensor, like: Vector) -> Vector:
    parts = torch.split(flat, [value.numel() for value in like])
    return [part.reshape(value.shape) for part, value in zip(parts, like, strict=True)]
