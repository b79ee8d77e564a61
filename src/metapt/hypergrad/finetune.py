"""What an FT solver is, what all have in common, and the one that takes K differentiable steps (Eq. 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from metapt.hypergrad.inverse import Status
from metapt.hypergrad.optimizers import SGD, DifferentiableOptimizer, OptimizerState, take_steps
from metapt.hypergrad.params import Params, Vector, all_finite, detached, leaves, like, norm, vjp
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

    A minibatch that occurs twice is encoded once, too. Cotangents of all features go back through the encoder in one
    pass.
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
        start, first = leaves(encoder), leaves(head)
        state = detached(head_state) if head_state else self.optimizer.init(first)
        features = None if self.network else Features(problem, encoder, buffers, [*train_batches, validation_batch])

        def encode(changed: Params, batch: Any) -> Tensor:
            return features(batch) if features else problem.encode({**changed, **buffers}, batch)

        wrt = features.all() if features else list(start.values())
        tuned = unrolled(problem, encode, start, first, state, train_batches, self.optimizer, self.network)
        loss = problem.head_loss(tuned.head, encode(tuned.encoder, validation_batch), validation_batch)
        gradients = vjp([loss], [*wrt, *tuned.head.values()])
        through, last = gradients[: len(wrt)], gradients[len(wrt) :]
        gradient = features.encoder_gradient(through) if features else like(start, through)
        return finished(gradient, tuned.head, tuned.head_state, tuned.losses, loss, norm(last))


class Unrolled(NamedTuple):
    """Encoder, head and the state of the head's optimiser after FT steps, with their graph; the losses before each."""

    encoder: Params
    head: Params
    head_state: OptimizerState
    losses: list[Tensor]


def unrolled(
    problem: MetaProblem,
    encode: Callable[[Params, Any], Tensor],
    encoder: Params,
    head: Params,
    head_state: OptimizerState,
    batches: Sequence[Any],
    optimizer: DifferentiableOptimizer,
    network: bool,
) -> Unrolled:
    """Take an FT step of the head on each minibatch, and of the encoder if `network` is true; its state is new.

    `encode` returns the features of a minibatch, given the present encoder.
    """

    def loss(batch: Any, *parts: Params) -> Tensor:
        return problem.head_loss(parts[-1], encode(parts[0] if network else encoder, batch), batch)

    name = name_of(problem, "head_loss")
    what, parts, states = name, [head], [head_state]
    if network:
        what, parts, states = f"{name} of encode", [encoder, head], [optimizer.init(encoder), head_state]
    ended, ended_states, losses = take_steps(optimizer, loss, parts, states, batches, what)
    return Unrolled(ended[0] if network else encoder, ended[-1], ended_states[-1], losses)


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
