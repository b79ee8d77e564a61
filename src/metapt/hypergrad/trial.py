"""Compare second derivatives with differences of gradients, the first time that a problem is differentiated.

torch differentiates a gradient by the rules that its operations and the user's functions have for it. Where such a rule
is wrong, as in a function that keeps an intermediate result, there is a wrong number and no error. A difference of two
gradients needs no such rule.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metapt.hypergrad.distributed import local_of
from metapt.hypergrad.nested import cloned, in_double, listed, mapped
from metapt.hypergrad.params import (
    Params,
    Pretrained,
    Vector,
    add,
    dot,
    joined,
    leaves,
    like,
    norm,
    parted,
    vjp,
    vjp_graph,
)
from metapt.hypergrad.problem import MetaProblem, name_of
from metapt.hypergrad.twice import suspects

log = logging.getLogger(__name__)

_STEPS = {torch.float64: (1e-7, 1e-9, 1e-5), torch.float32: (1e-3, 1e-2, 1e-4)}
"""Lengths of the differences, relative to the weights. The next one is tried where the one before does not agree."""

_TOLERANCES = {torch.float64: 1e-4, torch.float32: 0.05}
"""The largest distance of a product from the difference, relative to the larger of the two."""

_EXAMPLES = 16  # of a minibatch, to save time and memory

UNCHANGED = "the arguments stay as they are"
MIXED = "the product with the mixed derivative of the PT loss"
HESSIAN = "the product with the Hessian of the PT loss"
HEAD = "the product with the Hessian of the FT loss"

Loss = Callable[[Params, Params], Tensor]  # of weights and hyperparameters; a scalar, the same in equal calls
Compared = tuple[Loss, Params, Params]  # and weights and hyperparameters where its derivatives are compared


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


class Tried(NamedTuple):
    """What was found of a problem so far.

    Attributes:
        problem: returns the problem, or None when it is gone.
        found: how second derivatives agree with differences, by what was compared; None of other checks.
    """

    problem: Callable[[], object]
    found: dict[str, Gap | None]


_all: dict[int, Tried] = {}  # by the identity of the problem


def tried(problem: MetaProblem) -> Tried:
    """Return what was found of a problem; it is kept as long as the problem lives."""
    known = _all.get(id(problem))
    if known is not None and known.problem() is problem:
        return known
    key = id(problem)
    try:
        known = _all[key] = Tried(weakref.ref(problem, lambda _: _all.pop(key, None)), {})
    except TypeError:  # an object that allows no weak references is tried each time
        known = Tried(lambda: problem, {})
    return known


def check_second_derivatives(
    problem: MetaProblem,
    pretrained: Pretrained,
    meta: Params,
    head: Params,
    pretrain_batch: Any,
    finetune_batch: Any,
    *,
    products: bool,
    head_steps: bool,
    network: bool,
) -> None:
    """Compare the second derivatives that a hypergradient takes with differences of gradients, each once per problem.

    They are computed in float64 if the functions can, else in the precision of the arguments, where a difference is a
    warning, not an error; and on a few examples if a minibatch can be cut. Random draws are equal in all evaluations.
    Where the gradient is not that of the loss, as with terms under detach, which one may want, a warning says so. A
    problem that tests have compared is left out (see `is_tested`).

    Args:
        problem: the functions.
        pretrained, meta, head, pretrain_batch, finetune_batch: where they are evaluated.
        products: the Hessian of the PT loss is used.
        head_steps: FT differentiates the FT loss twice w.r.t. the head.
        network: so it does w.r.t. the encoder.

    Raises:
        RuntimeError: a second derivative is wrong.
    """
    problem = local_of(problem)
    if is_tested(problem):
        return
    found = tried(problem).found

    def pretraining(pretrained: Pretrained, meta: Params, batch: Any) -> Compared:
        def loss(weights: Params, meta: Params) -> Tensor:
            encoder, head, _ = parted(weights, pretrained, {})
            return problem.pretrain_loss(Pretrained(encoder, head, cloned(pretrained.buffers)), meta, batch)

        return loss, leaves(joined(*pretrained[:2])), leaves(meta)

    def finetuning(pretrained: Pretrained, head: Params, batch: Any) -> Compared:
        trained = Pretrained(pretrained.encoder if network else {}, head)

        def encode(encoder: Params) -> Tensor:
            return problem.encode({**encoder, **pretrained.buffers}, batch)

        def loss(weights: Params, fixed: Params) -> Tensor:
            encoder, psi, _ = parted(weights, trained, {})
            return problem.head_loss(psi, encode(encoder) if network else fixed["features"], batch)

        fixed = {} if network else {"features": encode(pretrained.encoder).detach()}
        return loss, leaves(joined(*trained[:2])), leaves(fixed)

    if not found.keys() >= ({MIXED, HESSIAN} if products else {MIXED}):
        mixed, hessian = _compared(pretraining, (pretrained, meta, pretrain_batch), "pretrain_loss", products)
        found |= {MIXED: mixed, HESSIAN: hessian} if products else {MIXED: mixed}
    if head_steps and head and HEAD not in found:
        what = f"{name_of(problem, 'head_loss')} of encode" if network else name_of(problem, "head_loss")
        _, found[HEAD] = _compared(finetuning, (pretrained, head, finetune_batch), what, True)


def is_tested(problem: MetaProblem) -> bool:
    """Return whether the class of a problem says, by an attribute `tested` of its own, that tests have compared it.

    A subclass does not inherit it, since it may have another loss.
    """
    return "tested" in vars(type(problem)) and bool(problem.tested)  # type: ignore[attr-defined]


@torch.enable_grad()
def _compared(
    make: Callable[..., Compared], arguments: tuple[Any, ...], what: str, products: bool
) -> tuple[Gap | None, Gap | None]:
    """Compare and judge, in some precision; return the gaps of the mixed derivative and of the Hessian."""
    devices = devices_of(arguments[0])

    def run(arguments: tuple[Any, ...]) -> SecondDerivatives | None:
        loss, weights, meta = make(*arguments)

        def seeded(weights: Params, meta: Params) -> Tensor:
            torch.default_generator.manual_seed(0)
            for device in devices:
                torch.cuda.default_generators[device].manual_seed(0)
            value = loss(weights, meta)
            if value.dtype != next(iter(weights.values())).dtype:
                raise TypeError(f"{what} is of type {value.dtype}")
            return value

        return _compare(seeded, weights, meta, what)

    with torch.random.fork_rng(devices=devices):
        compared, exact = _in_some_precision(run, arguments, products)
    if compared is None:
        return None, None
    _judge(what, compared, products, exact)
    return compared.mixed, compared.hessian


def _in_some_precision(
    run: Callable[[tuple[Any, ...]], SecondDerivatives | None], arguments: tuple[Any, ...], products: bool
) -> tuple[SecondDerivatives | None, bool]:
    """Compare in float64 if that is possible and says something, else as it is; return also whether it was float64."""
    single = all(value.dtype != torch.float64 for value in arguments[0].vector())
    *rest, batch = arguments
    part = _first_examples(batch)
    for each in (part, batch) if part is not None else (batch,):
        try:
            with _default_dtype(torch.float64):
                compared = run(in_double((*rest, each)))
            parts = [] if compared is None else [compared.mixed, compared.hessian if products else None]
            if parts and all(gap is None or gap.differs or gap.agrees for gap in parts):
                return compared, True
        except Exception:  # whatever functions raise that can't compute in float64, or with fewer examples
            if not single and each is batch:
                raise
    return run(arguments), not single


def _first_examples(batch: Any) -> Any:
    """Return a few examples of a minibatch if all of its tensors have as many; else None."""
    sizes = {len(value) for value in listed(batch) if value.dim()}
    if len(sizes) != 1 or sizes.pop() <= _EXAMPLES:
        return None
    return mapped(batch, lambda value: value[:_EXAMPLES] if value.dim() else value)


def _judge(what: str, compared: SecondDerivatives, products: bool, exact: bool) -> None:
    """Raise RuntimeError if a second derivative is wrong; warn if that is not sure, or may be meant."""
    parts = {"the product with its Hessian": compared.hessian} if products else {}
    parts |= {"the product with its mixed derivative": compared.mixed} if compared.mixed is not None else {}
    known, functions = suspects(compared.loss)
    calls = f"It calls {' and '.join(known or functions)}. " if known or functions else ""
    for part, gap in parts.items():
        off = f"{part} is {100 * gap.distance:.2g} % off a difference of gradients"
        if (gap.distance > 0.05 and known) or (gap.differs and exact and compared.is_gradient):
            advice = calls if known else f"{calls}{_WRITE}"
            raise RuntimeError(f"{what} can't be differentiated twice, as a hypergradient needs it: {off}. {advice}")
        if gap.differs and exact:
            log.warning(
                "the gradient of %s is not the derivative of its value (%s): terms under detach() or torch.no_grad(), "
                "such as a stop-gradient, or a straight-through estimate. Training follows the gradient; a "
                "hypergradient takes these terms for constants. If that is meant, nothing is to be done",
                what,
                off,
            )
            return
        if gap.differs and functions:
            log.warning("%s may have a wrong second derivative, in low precision: %s. %s%s", what, off, calls, _WRITE)


_WRITE = (
    "Write the backward of a function with torch's operations on the tensors that it is given, and on those inputs and "
    "outputs that save_for_backward has kept: intermediate and detached tensors count as constants"
)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def devices_of(pretrained: Pretrained) -> list[int]:
    """Return the GPUs that hold parameters; what is tried leaves their random states as they are."""
    return sorted({value.device.index for value in pretrained.vector() if value.is_cuda})


def _compare(loss: Loss, weights: Params, meta: Params, what: str) -> SecondDerivatives | None:
    """Compare products with second derivatives of a loss with differences of its gradient, in one direction.

    It costs two gradients, one with a graph, and a product, where both agree at once. Weights and hyperparameters are
    leaves. Return None where they are neither float64 nor float32, or the loss or its gradient is not finite.
    """
    w, phi = list(weights.values()), list(meta.values())
    dtype = w[0].dtype
    if dtype not in _STEPS:
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
            return Gap(least, agrees=False, differs=True)
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
