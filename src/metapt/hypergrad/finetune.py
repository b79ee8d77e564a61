"""FT solvers: they solve the inner problem and differentiate the FT validation loss w.r.t. the pre-trained encoder.

`Unroll` takes K differentiable steps (Eq. 5). `FittedHead` finds the minimum of the head's loss and differentiates it
implicitly, so that the loss evaluates the representation, not a head that is still being trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from metapt.hypergrad.inverse import ConjugateGradient, SolveResult, Status
from metapt.hypergrad.optimizers import SGD, DifferentiableOptimizer, OptimizerState
from metapt.hypergrad.params import Params, Vector, add, all_finite, detached, dot, leaves, like, norm, vjp, vjp_graph
from metapt.hypergrad.problem import MetaProblem, name_of


class FineTuned(NamedTuple):
    """The result of an FT solver, detached from any graph.

    Attributes:
        encoder_gradient: g2, the total derivative of the validation loss w.r.t. the pre-trained encoder.
        head: the FT head after fine-tuning.
        head_state: the state of the head's optimiser after fine-tuning; empty if there is none.
        train_losses: FT loss before each unrolled step [K], or of each fitted head [folds] (of a ridge head: error).
        validation_loss: the FT loss on the validation minibatch, a scalar.
        head_gradient_norm: |dL/d(head)| on the validation minibatch (part of g1), a scalar; 0 of a ridge head.
        status: how FT ended; NON_FINITE if any value except the encoder's gradient is not finite.
    """

    encoder_gradient: Params
    head: Params
    head_state: OptimizerState
    train_losses: Tensor
    validation_loss: Tensor
    head_gradient_norm: Tensor
    status: Status


class FineTuning(Protocol):
    """An FT solver: it solves the inner problem and differentiates the FT validation loss w.r.t. the encoder.

    `Unroll`, `FittedHead` and `RidgeHead` are FT solvers; any object with these attributes that can be called is
    another.

    Attributes:
        minibatches: how many FT training minibatches the training loop gives to each call; 0 or more.
        optimizer: the optimiser of the head's FT steps, whose state is carried from call to call; None for a solver
            that takes no steps. With an optimiser the training loop can also take FT steps of the head between two
            calls.
        uses_head_loss: whether the solver calls `head_loss` of the problem; the training loop checks it only then.
    """

    @property
    def minibatches(self) -> int: ...

    @property
    def optimizer(self) -> DifferentiableOptimizer | None: ...

    @property
    def uses_head_loss(self) -> bool: ...

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
        """Fine-tune, and return g2 of Eq. 3 with what FT leaves; no argument is changed.

        Args:
            problem: the losses.
            encoder: parameters of the pre-trained encoder.
            buffers: the PT buffers, such as the statistics of BatchNorm.
            head: the FT head to start from.
            head_state: state of the head's optimiser; None for a new one.
            train_batches: FT training minibatches.
            validation_batch: FT validation minibatch.
        """


class Features:
    """Features of FT minibatches: each minibatch is encoded once, and its features are a leaf of the head's graphs.

    Cotangents of all features go back through the encoder in one pass.

    Args:
        problem: provides `encode`.
        encoder: parameters of the encoder.
        buffers: the PT buffers.
        batches: FT minibatches; one that occurs twice is encoded once.
    """

    def __init__(self, problem: MetaProblem, encoder: Params, buffers: Params, batches: Sequence[Any]) -> None:
        self.encoder = leaves(encoder)
        distinct = list({id(batch): batch for batch in batches}.values())
        self.batches = distinct
        self._encoded = {id(batch): problem.encode({**self.encoder, **buffers}, batch) for batch in distinct}
        self._leaves = {key: features.detach().requires_grad_() for key, features in self._encoded.items()}

    def __call__(self, batch: Any) -> Tensor:
        """Return the features of one of the minibatches, a leaf."""
        return self._leaves[id(batch)]

    def all(self) -> Vector:
        """Return the features of all distinct minibatches, in the order of `batches`."""
        return list(self._leaves.values())

    def encoder_gradient(self, cotangents: Vector) -> Params:
        """Return the product of the cotangents of all features with their Jacobian w.r.t. the encoder."""
        return like(self.encoder, vjp(list(self._encoded.values()), list(self.encoder.values()), cotangents))


@dataclass(frozen=True)
class Unroll:
    """K differentiable FT steps on one minibatch each, then the loss on the validation minibatch (Eq. 5).

    With `network=False` the steps change the head only: the encoder runs once per distinct minibatch, and memory grows
    by one head per step. With `network=True` they change encoder and head, as in Eq. 5, and memory grows by one network
    per step. The gradient is the sum of the direct derivative and that through the steps; with K = 0 it is the direct
    one.

    Args:
        steps: K, 0 or more.
        optimizer: the optimiser of the steps. Its state for the head is an argument and a result of each call; its
            state for the encoder is new in each call, since FT starts from the pre-trained encoder.
        network: let the steps change the encoder, too.
    """

    steps: int = 1
    optimizer: DifferentiableOptimizer = field(default_factory=lambda: SGD(lr=0.01))
    network: bool = False
    uses_head_loss: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps is {self.steps}; legal: 0 or more")

    @property
    def minibatches(self) -> int:
        """Return K: each step takes a minibatch of its own."""
        return self.steps

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
        if len(train_batches) != self.steps:
            count = len(train_batches)
            raise ValueError(f"{count} FT training minibatches for {self.steps} unrolled steps; give one per step")
        state = detached(head_state) if head_state else self.optimizer.init(head)
        solve = self._network if self.network else self._head
        return solve(problem, encoder, buffers, head, state, train_batches, validation_batch)

    def _head(
        self,
        problem: MetaProblem,
        encoder: Params,
        buffers: Params,
        head: Params,
        state: OptimizerState,
        train_batches: Sequence[Any],
        validation_batch: Any,
    ) -> FineTuned:
        features = Features(problem, encoder, buffers, [*train_batches, validation_batch])
        current = leaves(head)
        losses = []
        for batch in train_batches:
            loss = problem.head_loss(current, features(batch), batch)
            gradient = like(current, vjp_graph(loss, list(current.values()), name_of(problem, "head_loss")))
            current, state = self.optimizer.step(current, gradient, state)
            losses.append(loss.detach())
        validation_loss = problem.head_loss(current, features(validation_batch), validation_batch)
        values = list(current.values())
        gradients = vjp([validation_loss], [*values, *features.all()])
        encoder_gradient = features.encoder_gradient(gradients[len(values) :])
        return finished(encoder_gradient, current, state, losses, validation_loss, norm(gradients[: len(values)]))

    def _network(
        self,
        problem: MetaProblem,
        encoder: Params,
        buffers: Params,
        head: Params,
        state: OptimizerState,
        train_batches: Sequence[Any],
        validation_batch: Any,
    ) -> FineTuned:
        start = leaves(encoder)
        current_encoder, current_head = start, leaves(head)
        encoder_state = self.optimizer.init(start)
        losses = []
        for batch in train_batches:
            loss = problem.head_loss(current_head, problem.encode({**current_encoder, **buffers}, batch), batch)
            what = f"{name_of(problem, 'head_loss')} of encode"
            gradients = vjp_graph(loss, [*current_encoder.values(), *current_head.values()], what)
            encoder_part = like(current_encoder, gradients[: len(start)])
            head_part = like(current_head, gradients[len(start) :])
            current_encoder, encoder_state = self.optimizer.step(current_encoder, encoder_part, encoder_state)
            current_head, state = self.optimizer.step(current_head, head_part, state)
            losses.append(loss.detach())
        features = problem.encode({**current_encoder, **buffers}, validation_batch)
        validation_loss = problem.head_loss(current_head, features, validation_batch)
        gradients = vjp([validation_loss], [*start.values(), *current_head.values()])
        encoder_gradient = like(start, gradients[: len(start)])
        return finished(encoder_gradient, current_head, state, losses, validation_loss, norm(gradients[len(start) :]))


def finished(
    encoder_gradient: Params,
    head: Params,
    state: OptimizerState,
    train_losses: Sequence[Tensor],
    validation_loss: Tensor,
    head_gradient_norm: Tensor,
    status: Status = Status.OK,
) -> FineTuned:
    """Return the result of an FT solver, detached, with the status NON_FINITE if a value is not finite."""
    head, state, loss = detached(head), detached(state), validation_loss.detach()
    losses = torch.stack([each.detach() for each in train_losses]) if train_losses else loss.new_zeros(0)
    head_gradient_norm = head_gradient_norm if head else loss.new_zeros(())  # on the device of the loss
    if not all_finite([losses, loss, head_gradient_norm, *head.values(), *state.values()]):
        status = Status.NON_FINITE
    return FineTuned(encoder_gradient, head, state, losses, loss, head_gradient_norm, status)


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


def leave_one_out(batches: Sequence[Any]) -> list[tuple[Sequence[Any], Any]]:
    """Return, for each minibatch, all others and the minibatch.

    Raises:
        ValueError: there are fewer than two minibatches.
    """
    if len(batches) < 2:
        raise ValueError(
            "cross_fit needs at least two different FT minibatches: one to hold out, one to fit the head on"
        )
    return [([*batches[:index], *batches[index + 1 :]], batch) for index, batch in enumerate(batches)]


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
