"""Products with second derivatives of a loss beside differences of its gradient, in one direction."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from metapt.hypergrad.params import Params, Vector, add, dot, like, norm, vjp, vjp_graph

Loss = Callable[[Params, Params], Tensor]  # of weights and hyperparameters; a scalar, the same in equal calls

_STEPS = {torch.float64: (1e-7, 1e-9, 1e-5), torch.float32: (1e-3, 1e-2, 1e-4)}
"""Lengths of the differences, relative to the weights. The next one is tried where the one before does not agree."""

_TOLERANCES = {torch.float64: 1e-4, torch.float32: 0.05}
"""The largest distance of a product from the difference, relative to the larger of the two."""


class Gap(NamedTuple):
    """How a product agrees with differences.

    Attributes:
        distance: relative to the larger of the two, the least over the lengths of the difference.
        agrees: whether it is small.
        differs: whether two lengths of the difference agree with each other and not with the product. Where neither
            holds, as with kinks of the loss or little precision, the comparison says nothing.
    """

    distance: float
    agrees: bool
    differs: bool


class SecondDerivatives(NamedTuple):
    """The second derivatives of a loss beside differences of its gradient.

    Attributes:
        hessian: of the product with the Hessian.
        mixed: of the product with the mixed derivative; None without hyperparameters.
        is_gradient: whether the first derivatives are those of the loss; looked at only where a second one differs.
        loss: the loss, with its graph.
    """

    hessian: Gap
    mixed: Gap | None
    is_gradient: bool
    loss: Tensor


def compare(loss: Loss, weights: Params, meta: Params, what: str) -> SecondDerivatives | None:
    """Compare products with second derivatives of a loss with differences of its gradient, in one direction.

    It costs two gradients, one with a graph, and a product, where both agree at once. Weights and hyperparameters are
    leaves. Return None where they are neither float64 nor float32, or the loss or its gradient is not finite.
    """
    w, phi = list(weights.values()), list(meta.values())
    dtype = w[0].dtype
    if not is_comparable(dtype):
        return None
    value = loss(weights, meta)
    gradient = vjp_graph(value, w, what)
    plain = _plain(gradient)
    noise = 30 * torch.finfo(dtype).eps * float(norm(plain))
    if not math.isfinite(noise + float(value.detach())):
        return None
    draws = torch.Generator().manual_seed(0)
    direction, toward = _direction(w, draws), _direction(phi, draws)

    def difference(point: Vector, hyper: Params, step: float) -> Vector:
        leaves = [each.detach().requires_grad_() for each in point]
        slope = vjp([loss(like(weights, leaves), hyper)], leaves)
        return [(there - here) / step for there, here in zip(slope, plain, strict=True)]

    @cache
    def by_meta(step: float) -> Vector:
        return difference(w, like(meta, add(_plain(phi), toward, step)), step)

    if meta:  # a product with a vector along which the gradient changes with the hyperparameters
        change = by_meta(_STEPS[dtype][0])
        size = float(norm(change))
        if 0 < size < math.inf:
            direction = add(direction, change, float(norm(direction)) / size)
    products = vjp(gradient, [*w, *phi], direction, retain_graph=True)
    hessian = _gap(
        products[: len(w)], lambda step: difference(add(_plain(w), direction, step), meta, step), noise, dtype
    )
    mixed = None
    if meta:
        along = [dot(products[len(w) :], toward)]
        mixed = _gap(along, lambda step: [dot(by_meta(step), direction)], noise * float(norm(direction)), dtype)
    differs = hessian.differs or (mixed is not None and mixed.differs)
    is_gradient = not differs or all(
        _is_slope(lambda point: loss(like(weights, point), meta), w, plain, each, dtype) for each in (plain, direction)
    )
    if differs and is_gradient and meta:
        slopes = vjp([value], phi)
        is_gradient = _is_slope(lambda point: loss(weights, like(meta, point)), phi, slopes, toward, dtype)
    return SecondDerivatives(hessian, mixed, is_gradient, value)


def is_comparable(dtype: torch.dtype) -> bool:
    """Return whether numbers of this type are precise enough for differences."""
    return dtype in _STEPS


def _plain(vector: Vector) -> Vector:
    return [value.detach() for value in vector]


def _direction(vector: Vector, draws: torch.Generator) -> Vector:
    """Return a random direction that changes each tensor by about its size; of the norm of the vector, or 1 if less."""
    if not vector:
        return []
    random = [torch.randn(each.shape, generator=draws, dtype=torch.float64).to(each) for each in vector]
    sizes = [float(each.detach().square().mean().sqrt()) if each.numel() else 0.0 for each in vector]
    whole = float(norm(_plain(vector)))
    least = 0.1 * max(sizes) or 1.0
    scaled = [max(size, least) * each for size, each in zip(sizes, random, strict=True)]
    length = max(whole, 1.0) / float(norm(scaled))
    return [length * each for each in scaled]


def _gap(product: Vector, difference: Callable[[float], Vector], noise: float, dtype: torch.dtype) -> Gap:
    seen: list[Vector] = []
    least = math.inf
    for step in _STEPS[dtype]:
        found = difference(step)
        away = float(norm(add(found, product, -1.0)))
        size = max(float(norm(found)), float(norm(product)))
        if not math.isfinite(away + size):
            continue
        least = min(least, away / (size or 1.0))
        if away - noise / step <= _TOLERANCES[dtype] * size:
            return Gap(away / (size or 1.0), agrees=True, differs=False)
        # In low precision a loss may stay the same between two points.
        if (dtype == torch.float64 or float(norm(found))) and any(
            float(norm(add(found, other, -1.0))) <= 0.1 * away for other in seen
        ):
            behind = difference(-step)  # at a kink the two sides are apart
            smooth = float(norm(add(found, behind, -1.0))) <= 0.1 * away
            return Gap(least, agrees=False, differs=smooth)
        seen.append(found)
    return Gap(least, agrees=False, differs=False)


def _is_slope(
    loss: Callable[[Vector], Tensor], point: Vector, gradient: Vector, direction: Vector, dtype: torch.dtype
) -> bool:
    """Return whether the derivative of the loss in a direction is the product with the gradient."""
    length = max(float(norm(_plain(point))), 1.0) / (float(norm(direction)) or 1.0)
    direction = [length * each for each in direction]
    step, tolerance = (1e-5, 1e-6) if dtype == torch.float64 else (1e-2, 0.01)

    def at(step: float) -> float:
        there = add(_plain(point), direction, step)
        return float(loss([each.requires_grad_() for each in there]).detach())

    ahead, behind = at(step), at(-step)
    found, expected = (ahead - behind) / (2 * step), float(dot(gradient, direction))
    size = max(abs(found), abs(expected))
    noise = 30 * torch.finfo(dtype).eps * (abs(ahead) + abs(behind)) / step
    if abs(found - expected) <= tolerance * size + noise:
        return True
    closer = (at(step / 2) - at(-step / 2)) / step  # how far it moves is how far the difference is off, or more
    return abs(closer - expected) <= tolerance * size + 2 * noise + abs(closer - found)
