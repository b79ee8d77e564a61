"""The FT solver that fits the head to the end and differentiates its minimum implicitly.

So the loss evaluates the representation, not a head that is still being trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from metapt.hypergrad.finetune import Features, FineTuned, finished
from metapt.hypergrad.inverse import ConjugateGradient, SolveResult, Status
from metapt.hypergrad.nested import cloned, listed, same
from metapt.hypergrad.optimizers import OptimizerState
from metapt.hypergrad.params import Params, Vector, add, detached, dot, leaves, like, norm, vjp, vjp_graph
from metapt.hypergrad.problem import MetaProblem, name_of

Objective = Callable[[Params], Tensor]  # the regularised FT loss of a head


class Fit(NamedTuple):
    """The result of a fit.

    Attributes:
        head: the fitted head.
        loss: the regularised FT loss where it was last evaluated, a scalar.
        status: how the fit ended.
    """

    head: Params
    loss: Tensor
    status: Status


def folds(
    features: Features, train_batches: Sequence[Any], validation_batch: Any, cross_fit: bool
) -> list[tuple[Sequence[Any], Any]]:
    """Return pairs of the minibatches that a head is fitted on and the one that it is evaluated on."""
    if not train_batches:
        raise ValueError("a fitted head needs at least one FT training minibatch to fit on")
    if not cross_fit:
        return [(train_batches, validation_batch)]
    batches = features.batches
    if len(batches) < 2:
        raise ValueError(
            "cross_fit needs at least two different FT minibatches: one to hold out, one to fit the head on"
        )
    return [([*batches[:index], *batches[index + 1 :]], batch) for index, batch in enumerate(batches)]


@dataclass(frozen=True)
class FittedHead:
    """The head at the minimum of the regularised FT loss, found by Newton's method and differentiated implicitly.

    head* = argmin mean_i head_loss(head, features_i) + l2 / 2 |head|^2, so that
    d head* / d features = -(d2 loss / d head2 + l2)^-1 d2 loss / (d head d features).

    With `cross_fit` each distinct minibatch, the validation minibatch included, is held out once: the head is fitted on
    the others, and the validation loss is the mean over the held-out minibatches. All FT data then evaluate the
    encoder, with heads that were not fitted on them, if the minibatches of a call have no example in common. The head
    that is returned is fitted on all minibatches with `cross_fit`, else on the training minibatches.

    Args:
        l2: the ridge, above 0; it makes the minimum unique.
        cross_fit: hold out each minibatch in turn.
        minibatches: FT training minibatches per call; a pass over the training data should have a multiple of them.
        max_steps: largest number of Newton steps in a fit.
        tolerance: the fit ends when the norm of the gradient is at most this share of its first value, or of `l2`.
    """

    l2: float = 1e-3
    cross_fit: bool = False
    minibatches: int = 1
    max_steps: int = 50
    tolerance: float = 1e-6
    optimizer: ClassVar[None] = None
    uses_head_loss: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.l2 > 0:
            raise ValueError(f"l2 is {self.l2}; legal: a positive number (without it separable data have no best head)")
        for name in ("minibatches", "max_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; legal: 1 or more")
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance is {self.tolerance}; legal: between 0 and 1")

    def __call__(
        self,
        problem: MetaProblem,
        encoder: Params,
        buffers: Params,
        head: Params,
        head_state: OptimizerState | None,
        train_batches: Sequence[Any],
        validation_batch: Any,
    ) -> FineTuned:
        features = Features(problem, encoder, buffers, [*train_batches, validation_batch])
        parts = folds(features, train_batches, validation_batch, self.cross_fit)
        fitted, statuses, train_losses, validation_losses, head_gradients = detached(head), [], [], [], []
        cotangents = [torch.zeros_like(value) for value in features.all()]
        for rest, held_out in parts:
            objective = self._objective(problem, rest, features)
            fit = self._fit(problem, fitted, objective)
            fitted = fit.head
            loss, through, head_gradient, solved = self._evaluate(problem, fitted, objective, held_out, features)
            cotangents = add(cotangents, through, 1 / len(parts))
            statuses += [fit.status, solved]
            train_losses.append(fit.loss)
            validation_losses.append(loss)
            head_gradients.append(norm(head_gradient))
        if self.cross_fit:
            fit = self._fit(problem, fitted, self._objective(problem, features.batches, features))
            fitted = fit.head
            statuses.append(fit.status)
        return finished(
            encoder_gradient=features.encoder_gradient(cotangents),
            head=fitted,
            state={},
            train_losses=train_losses,
            validation_loss=torch.stack(validation_losses).mean(),
            head_gradient_norm=torch.stack(head_gradients).mean(),
            status=next((status for status in statuses if status is not Status.OK), Status.OK),
        )

    def fit(self, problem: MetaProblem, encoder: Params, head: Params, batches: Sequence[Any]) -> Fit:
        """Return the head fitted on all `batches`, without a derivative w.r.t. the encoder.

        Args:
            problem: provides `encode` and `head_loss`.
            encoder: the parameters of the encoder and the PT buffers, as `MetaProblem.encode` takes them.
            head: where the fit starts.
            batches: FT minibatches, one or more.

        Raises:
            ValueError: a function of the problem changes a minibatch or features, which all steps share.
        """
        first = cloned(batches[0])
        before = [(value, value._version) for value in listed(list(batches)) if not value.is_inference()]
        with torch.no_grad():
            encoded = {id(batch): problem.encode(encoder, batch) for batch in batches}
        before += [(value, value._version) for value in encoded.values() if not value.is_inference()]
        fit = self._fit(problem, head, self._objective(problem, batches, lambda batch: encoded[id(batch)]))
        if any(value._version != version for value, version in before) or not same(batches[0], first):
            raise ValueError(
                f"encode or {name_of(problem, 'head_loss')} changes its minibatch or its features, in place or by "
                "putting others there; legal: to make new tensors, with inplace=False in the first layer of an FT head"
            )
        return fit

    def _objective(self, problem: MetaProblem, batches: Sequence[Any], features: Callable[[Any], Tensor]) -> Objective:
        def objective(head: Params) -> Tensor:
            losses = [problem.head_loss(head, features(batch), batch) for batch in batches]
            penalty = torch.stack([torch.sum(value * value) for value in head.values()]).sum()
            return torch.stack(losses).mean() + self.l2 / 2 * penalty

        return objective

    def _fit(self, problem: MetaProblem, head: Params, objective: Objective) -> Fit:
        """Minimise by Newton's method with exact Hessian-vector products and a backtracking line search."""
        if not head:
            raise ValueError("FittedHead needs an FT head with parameters, not frozen; without any take Unroll(0)")
        current = leaves(head)
        loss = objective(current)
        first, status = None, Status.MAX_STEPS
        for _ in range(self.max_steps):
            values = list(current.values())
            gradient = vjp_graph(loss, values, name_of(problem, "head_loss"))
            downhill = [-value.detach() for value in gradient]
            size = float(norm(downhill))
            first = size if first is None else first
            if not math.isfinite(size):
                status = Status.NON_FINITE
                break
            if size <= self.tolerance * max(first, self.l2):
                status = Status.OK
                break
            solved = self._solve(gradient, values, downhill)
            direction = solved.value
            if solved.status is Status.NON_FINITE:
                status = solved.status
                break
            start, decrease = float(loss.detach()), float(dot(downhill, direction))
            rounding = 4 * max(torch.finfo(each.dtype).eps for each in (loss, *values)) * abs(start)
            if decrease <= rounding:
                # A line search can't see a decrease below the rounding error of the loss; the step is right.
                current, status = like(current, add(list(detached(current).values()), direction)), Status.OK
                break
            moved = self._search(objective, current, direction, decrease, start, rounding)
            if moved is None:
                break
            current, loss = moved
        return Fit(detached(current), loss.detach(), status)

    def _search(
        self, objective: Objective, head: Params, direction: Vector, decrease: float, start: float, rounding: float
    ) -> tuple[Params, Tensor] | None:
        """Return head and objective after the first step of 1, 1/2, 1/4, ... that meets Armijo's condition, or None."""
        origin = list(detached(head).values())
        for halvings in range(30):
            length = 0.5**halvings
            moved = leaves(like(head, add(origin, direction, length)))
            loss = objective(moved)
            if float(loss.detach()) <= start - 1e-4 * length * decrease + rounding:
                return moved, loss
        return None

    def _solve(self, gradient: Vector, values: Vector, b: Vector) -> SolveResult:
        """Solve with the Hessian w.r.t. the head, l2 included, to the precision of the dtype."""
        rtol = max(1e-10, 10 * torch.finfo(values[0].dtype).eps)
        solver = ConjugateGradient(rtol=rtol, max_steps=4 * sum(value.numel() for value in values))
        return solver(lambda vector: vjp(gradient, values, vector, retain_graph=True), b)

    def _evaluate(
        self, problem: MetaProblem, fitted: Params, objective: Objective, held_out: Any, features: Features
    ) -> tuple[Tensor, Vector, Vector, Status]:
        """Return the held-out loss, its total derivative w.r.t. all features, and that w.r.t. the head.

        The derivative goes through the fitted head by the IFT; the status says how the solve of it ended.
        """
        head = leaves(fitted)
        values = list(head.values())
        loss = problem.head_loss(head, features(held_out), held_out)
        gradients = vjp([loss], [*values, *features.all()])
        head_gradient, direct = gradients[: len(values)], gradients[len(values) :]
        train_gradient = vjp_graph(objective(head), values, name_of(problem, "head_loss"))
        solved = self._solve(train_gradient, values, head_gradient)
        through_head = vjp(train_gradient, features.all(), solved.value)
        return loss.detach(), add(direct, through_head, -1.0), head_gradient, solved.status
