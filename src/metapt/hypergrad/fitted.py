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

from metapt.hypergrad.finetune import Features, FineTuned, finished, leave_one_out
from metapt.hypergrad.inverse import ConjugateGradient, SolveResult, Status
from metapt.hypergrad.optimizers import OptimizerState
from metapt.hypergrad.params import Params, Vector, add, detached, dot, leaves, like, norm, vjp, vjp_graph
from metapt.hypergrad.problem import MetaProblem, name_of


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


class _HeldOut(NamedTuple):
    """The loss on a held-out minibatch, its derivatives, and how the implicit differentiation ended."""

    loss: Tensor
    cotangents: Vector
    head_gradient_norm: Tensor
    status: Status


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
        if not train_batches:
            raise ValueError("FittedHead needs at least one FT training minibatch to fit the head on")
        features = Features(problem, encoder, buffers, [*train_batches, validation_batch])
        folds = leave_one_out(features.batches) if self.cross_fit else [(train_batches, validation_batch)]
        fitted, statuses, train_losses, validation_losses, head_gradients = detached(head), [], [], [], []
        cotangents = [torch.zeros_like(value) for value in features.all()]
        for rest, held_out in folds:
            fit = self._fit(problem, fitted, rest, features)
            fitted = fit.head
            evaluated = self._evaluate(problem, fit, rest, held_out, features)
            cotangents = add(cotangents, evaluated.cotangents, 1 / len(folds))
            statuses += [fit.status, evaluated.status]
            train_losses.append(fit.loss)
            validation_losses.append(evaluated.loss)
            head_gradients.append(evaluated.head_gradient_norm)
        if self.cross_fit:
            fit = self._fit(problem, fitted, features.batches, features)
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
        """
        with torch.no_grad():
            encoded = {id(batch): problem.encode(encoder, batch) for batch in batches}
        return self._fit(problem, head, batches, lambda batch: encoded[id(batch)])

    def _objective(
        self, problem: MetaProblem, head: Params, batches: Sequence[Any], features: Callable[[Any], Tensor]
    ) -> Tensor:
        losses = [problem.head_loss(head, features(batch), batch) for batch in batches]
        penalty = torch.stack([torch.sum(value * value) for value in head.values()]).sum()
        return torch.stack(losses).mean() + self.l2 / 2 * penalty

    def _fit(
        self, problem: MetaProblem, head: Params, batches: Sequence[Any], features: Callable[[Any], Tensor]
    ) -> Fit:
        """Minimise by Newton's method with exact Hessian-vector products and a backtracking line search."""
        if not head:
            raise ValueError("FittedHead needs an FT head with parameters; for a head without any take Unroll(0)")
        current = leaves(head)
        objective = self._objective(problem, current, batches, features)
        first = None
        for _ in range(self.max_steps):
            values = list(current.values())
            gradient = vjp_graph(objective, values, name_of(problem, "head_loss"))
            downhill = [-value.detach() for value in gradient]
            size = float(norm(downhill))
            first = size if first is None else first
            if not math.isfinite(size):
                return Fit(detached(current), objective.detach(), Status.NON_FINITE)
            if size <= self.tolerance * max(first, self.l2):
                return Fit(detached(current), objective.detach(), Status.OK)
            solved = self._solve(gradient, values, downhill)
            direction = solved.value
            if solved.status is Status.NON_FINITE:
                return Fit(detached(current), objective.detach(), solved.status)
            decrease = float(dot(downhill, direction))
            if decrease <= 4 * torch.finfo(objective.dtype).eps * abs(float(objective.detach())):
                # The decrease is below the rounding error of the loss, so a line search can't see it; the step is
                # right.
                return Fit(
                    like(current, add(list(detached(current).values()), direction)), objective.detach(), Status.OK
                )
            moved = self._search(problem, current, direction, decrease, float(objective.detach()), batches, features)
            if moved is None:
                return Fit(detached(current), objective.detach(), Status.MAX_STEPS)
            current, objective = moved
        return Fit(detached(current), objective.detach(), Status.MAX_STEPS)

    def _search(
        self,
        problem: MetaProblem,
        head: Params,
        direction: Vector,
        decrease: float,
        start: float,
        batches: Sequence[Any],
        features: Callable[[Any], Tensor],
    ) -> tuple[Params, Tensor] | None:
        """Return head and objective after the first step of 1, 1/2, 1/4, ... that meets Armijo's condition, or None."""
        origin = detached(head)
        for halvings in range(30):
            length = 0.5**halvings
            moved = leaves(like(head, add(list(origin.values()), direction, length)))
            objective = self._objective(problem, moved, batches, features)
            rounding = 4 * torch.finfo(objective.dtype).eps * abs(start)
            if float(objective.detach()) <= start - 1e-4 * length * decrease + rounding:
                return moved, objective
        return None

    def _solve(self, gradient: Vector, values: Vector, b: Vector) -> SolveResult:
        """Solve with the Hessian w.r.t. the head, l2 included, to the precision of the dtype."""
        rtol = max(1e-10, 10 * torch.finfo(values[0].dtype).eps)
        solver = ConjugateGradient(rtol=rtol, max_steps=4 * sum(value.numel() for value in values))
        return solver(lambda vector: vjp(gradient, values, vector, retain_graph=True), b)

    def _evaluate(
        self, problem: MetaProblem, fit: Fit, train: Sequence[Any], held_out: Any, features: Features
    ) -> _HeldOut:
        """Return the held-out loss and its total derivative w.r.t. all features, through the fitted head by the IFT."""
        head = leaves(fit.head)
        values = list(head.values())
        loss = problem.head_loss(head, features(held_out), held_out)
        gradients = vjp([loss], [*values, *features.all()])
        head_gradient, direct = gradients[: len(values)], gradients[len(values) :]
        objective = self._objective(problem, head, train, features)
        train_gradient = vjp_graph(objective, values, name_of(problem, "head_loss"))
        solved = self._solve(train_gradient, values, head_gradient)
        through_head = vjp(train_gradient, features.all(), solved.value)
        return _HeldOut(loss.detach(), add(direct, through_head, -1.0), norm(head_gradient), solved.status)
