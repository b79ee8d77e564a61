"""Compare second derivatives with differences of gradients, the first time that a problem is differentiated.

torch differentiates a gradient by the rules that its operations and the user's functions have for it. Where such a rule
is wrong, as in a function that keeps an intermediate result, there is a wrong number and no error. A difference of two
gradients needs no such rule.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metapt.hypergrad.differences import Gap, Loss, SecondDerivatives, compare, is_comparable
from metapt.hypergrad.distributed import local_of
from metapt.hypergrad.nested import cloned, in_double, listed, mapped
from metapt.hypergrad.params import Params, Pretrained, gpus_of, joined, leaves, parted
from metapt.hypergrad.problem import MetaProblem, name_of
from metapt.hypergrad.twice import suspects

log = logging.getLogger(__name__)

_EXAMPLES = 16  # of a minibatch, to save time and memory

UNCHANGED = "the arguments stay as they are"
OUTPUTS = "the PT loss is that of the outputs"
MIXED = "the product with the mixed derivative of the PT loss"
HESSIAN = "the product with the Hessian of the PT loss"
HEAD = "the product with the Hessian of the FT loss"

Compared = tuple[Loss, Params, Params]  # and weights and hyperparameters where its derivatives are compared


class Given(NamedTuple):
    """Where the functions of a problem are evaluated."""

    pretrained: Pretrained
    meta: Params
    head: Params
    pretrain_batch: Any
    finetune_batch: Any


_found: dict[int, dict[str, Gap | None]] = {}  # by the identity of the problem


def tried(problem: MetaProblem) -> dict[str, Gap | None]:
    """Return what was found of a problem so far, which is kept as long as the problem lives.

    It says how second derivatives agree with differences, by what was compared; None of other checks.
    """
    if id(problem) not in _found:
        try:
            weakref.finalize(problem, _found.pop, id(problem), None)
        except TypeError:  # an object that allows no weak references is tried each time
            return {}
        _found[id(problem)] = {}
    return _found[id(problem)]


def check_second_derivatives(
    problem: MetaProblem, given: Given, *, products: bool, head_steps: bool, network: bool
) -> None:
    """Compare the second derivatives that a hypergradient takes with differences of gradients, each once per problem.

    They are computed in float64 if the functions can, else in the precision of the arguments, where a difference is a
    warning, not an error; and on a few examples if a minibatch can be cut. Random draws are equal in all evaluations.
    Where the gradient is not that of the loss, as with terms under detach, which one may want, a warning says so. A
    problem that tests have compared is left out (see `is_tested`).

    Args:
        problem, given: the functions, and where they are evaluated.
        products: the Hessian of the PT loss is used.
        head_steps: FT differentiates the FT loss twice w.r.t. the head.
        network: so it does w.r.t. the encoder.

    Raises:
        RuntimeError: a second derivative is wrong.
    """
    problem = local_of(problem)
    if is_tested(problem):
        return
    found = tried(problem)

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
        gaps = _compared(pretraining, (given.pretrained, given.meta, given.pretrain_batch), "pretrain_loss", products)
        if gaps is not None:
            found |= {MIXED: gaps[0], HESSIAN: gaps[1]} if products else {MIXED: gaps[0]}
    if head_steps and given.head and HEAD not in found:
        what = f"{name_of(problem, 'head_loss')} of encode" if network else name_of(problem, "head_loss")
        gaps = _compared(finetuning, (given.pretrained, given.head, given.finetune_batch), what, True)
        if gaps is not None:
            found[HEAD] = gaps[1]


def is_tested(problem: MetaProblem) -> bool:
    """Return whether the class of a problem says, by an attribute `tested` of its own, that tests have compared it.

    A subclass does not inherit it, since it may have another loss.
    """
    return "tested" in vars(type(problem)) and bool(problem.tested)  # type: ignore[attr-defined]


@torch.enable_grad()
def _compared(
    make: Callable[..., Compared], arguments: tuple[Any, ...], what: str, products: bool
) -> tuple[Gap | None, Gap | None] | None:
    """Compare and judge, in some precision; return the gaps of the mixed derivative and of the Hessian.

    Return None where the loss or its gradient is not finite, so that another minibatch has to be looked at.
    """
    devices = gpus_of(arguments[0].vector())

    def run(arguments: tuple[Any, ...]) -> SecondDerivatives | None:
        loss, weights, meta = make(*arguments)

        def seeded(weights: Params, meta: Params) -> Tensor:
            torch.default_generator.manual_seed(0)
            for device in devices:
                torch.cuda.default_generators[device].manual_seed(0)
            value = loss(weights, meta)
            if value.dtype != torch.float64 and all(each.dtype == torch.float64 for each in weights.values()):
                raise TypeError(f"{what} is of type {value.dtype}; legal: torch.float64, the type of the parameters")
            return value

        return compare(seeded, weights, meta, what)

    with torch.random.fork_rng(devices=devices):
        compared, exact = _in_some_precision(run, arguments, products)
    if compared is None:
        return None if is_comparable(arguments[0].vector()[0].dtype) else (None, None)
    _judge(what, compared, products, exact)
    return compared.mixed, compared.hessian


def _in_some_precision(
    run: Callable[[tuple[Any, ...]], SecondDerivatives | None], arguments: tuple[Any, ...], products: bool
) -> tuple[SecondDerivatives | None, bool]:
    """Compare in float64 if that is possible and says something, else as it is; return also whether it was float64."""
    single = any(value.dtype != torch.float64 for value in arguments[0].vector())
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
    """Return a few examples of a minibatch if all of its tensors are dense and have as many; else None."""
    values = [value for value in listed(batch) if value.dim()]
    dense = all(value.layout is torch.strided and not value.is_nested for value in values)
    sizes = {len(value) for value in values} if dense else set()
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
