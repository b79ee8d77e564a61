"""Compare second derivatives with differences of gradients.

torch differentiates a gradient by the rules that its operations and the user's functions have for it. Where such a rule
is wrong, as in a function that keeps an intermediate result, there is a wrong number and no error. A difference of two
gradients needs no such rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from metapt.hypergrad.params import Params, Vector, add, dot, like, norm, vjp, vjp_graph

_STEPS = {torch.float64: (1e-7, 1e-9, 1e-5), torch.float32: (1e-3, 1e-2, 1e-4)}
"""Lengths of the differences, relative to the weights. The next one is tried where the one before does not agree."""

_TOLERANCES = {torch.float64: 1e-4, torch.float32: 0.05}
"""The largest distance of a product from the difference, relative to the larger of the two."""

Loss = Callable[[Params, Params], Tensor]
"""A function of weights and hyperparameters that returns a scalar, the same in equal calls."""


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
        is_gradient: whether the derivatives w.r.t. weights and hyperparameters are those of the loss; looked at only
            where one of the two differs.
        loss: the loss, with its graph.
    """

    hessian: Gap
    mixed: Gap | None
    is_gradient: bool
    loss: Tensor


def compare(loss: Loss, weights: Params, meta: Params, what: str) -> SecondDerivatives | None:
    """Compare products with second derivatives of a loss with differences of its gradient, in one direction.

    It costs two gradients, one with a graph, and a product, where both agree at once.

    Args:
        loss: the loss.
        weights: where the derivatives are taken, leaves that require a gradient, of float64 or float32.
        meta: the hyperparameters, likewise; may be empty.
        what: the name of the loss, for error messages.

    Returns:
        The comparison, or None where the loss or its gradient is not finite, or of another type.

    Raises:
        RuntimeError: the loss has no graph, or its derivative is refused (see `twice`).
    """
    names, w = list(weights), list(weights.values())
    dtype = w[0].dtype
    if dtype not in _STEPS:
        return None
    value = loss(weights, meta)
    gradient = vjp_graph(value, w, what)
    plain = [each.detach() for each in gradient]
    noise = 30 * torch.finfo(dtype).eps * float(norm(plain))
    if not math.isfinite(noise + float(value.detach())):
        return None

    def slope(point: Vector, hyper: Params) -> Vector:
        leaves = [each.detach().requires_grad_() for each in point]
        return vjp([loss(dict(zip(names, leaves, strict=True)), hyper)], leaves)

    draws = torch.Generator().manual_seed(0)
    direction = _direction(w, draws)
    toward = _direction(list(meta.values()), draws)

    @cache
    def by_meta(step: float) -> Vector:
        there = like(meta, add([each.detach() for each in meta.values()], toward, step))
        return [(each - here) / step for each, here in zip(slope(w, there), plain, strict=True)]

    def by_weights(step: float) -> Vector:
        there = add([each.detach() for each in w], direction, step)
        return [(each - here) / step for each, here in zip(slope(there, meta), plain, strict=True)]

    if meta:  # a product with a vector along which the gradient changes with the hyperparameters
        change = by_meta(_STEPS[dtype][0])
        size = float(norm(change))
        if 0 < size < math.inf:
            direction = add(direction, change, float(norm(direction)) / size)
    products = vjp(gradient, [*w, *meta.values()], direction, retain_graph=True)
    hessian = _gap(products[: len(w)], by_weights, noise, dtype)
    mixed = None
    if meta:
        along = [dot(products[len(w) :], toward)]
        mixed = _gap(along, lambda step: [dot(by_meta(step), direction)], noise * float(norm(direction)), dtype)
    differs = hessian.differs or (mixed is not None and mixed.differs)
    is_gradient = not differs or all(
        _is_slope(lambda point: loss(dict(zip(names, point, strict=True)), meta), w, plain, each, dtype)
        for each in (plain, direction)
    )
    if differs and is_gradient and meta:
        slopes = vjp([value], list(meta.values()))
        is_gradient = _is_slope(
            lambda point: loss(weights, like(meta, point)), list(meta.values()), slopes, toward, dtype
        )
    return SecondDerivatives(hessian, mixed, is_gradient, value)


def _direction(vector: Vector, draws: torch.Generator) -> Vector:
    """Return a random direction that changes each tensor by about its size; of the norm of the vector, or 1 if less."""
    if not vector:
        return []
    random = [torch.randn(each.shape, generator=draws, dtype=torch.float64).to(each) for each in vector]
    sizes = [float(each.detach().square().mean().sqrt()) if each.numel() else 0.0 for each in vector]
    whole = float(norm([each.detach() for each in vector]))
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
            return Gap(least, agrees=False, differs=True)
        seen.append(found)
    return Gap(least, agrees=False, differs=False)


def _is_slope(
    loss: Callable[[Vector], Tensor], point: Vector, gradient: Vector, direction: Vector, dtype: torch.dtype
) -> bool:
    """Return whether the derivative of the loss in a direction is the product with the gradient."""
    length = max(float(norm([each.detach() for each in point])), 1.0) / (float(norm(direction)) or 1.0)
    direction = [length * each for each in direction]
    step, tolerance = (1e-5, 1e-6) if dtype == torch.float64 else (1e-2, 0.01)

    def at(step: float) -> float:
        there = add([each.detach() for each in point], direction, step)
        return float(loss([each.requires_grad_() for each in there]).detach())

    ahead, behind = at(step), at(-step)
    found, expected = (ahead - behind) / (2 * step), float(dot(gradient, direction))
    size = max(abs(found), abs(expected))
    noise = 30 * torch.finfo(dtype).eps * (abs(ahead) + abs(behind)) / step
    if abs(found - expected) <= tolerance * size + noise:
        return True
    closer = (at(step / 2) - at(-step / 2)) / step  # how far it moves is how far the difference is off, or more
    return abs(closer - expected) <= tolerance * size + 2 * noise + abs(closer - found)
