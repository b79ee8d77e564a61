"""Exact derivatives through the steps of a training run, which are taken again from the last one to the first.

Backpropagation through a whole run needs the graph of one step at a time, and the weights before it. The weights are
kept at the first step of each of about sqrt(n) segments of a run of n steps; the others are computed anew, a segment
at a time (Griewank 1992, "Achieving logarithmic growth of temporal and spatial complexity in reverse automatic
differentiation"; with one level of checkpoints). Memory is that of 2 sqrt(n) states. The work is that of two runs and
of a second derivative in each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metapt.hypergrad import MetaProblem, Params, Pretrained
from metapt.hypergrad.optimizers import DifferentiableOptimizer, OptimizerState
from metapt.hypergrad.params import add, copied, detached, joined, leaves, like, parted, vjp, vjp_graph
from metapt.training.batches import Batches
from metapt.training.progress import steps

Loss = Callable[[Params, Params, Params, Any], Tensor]
"""Returns the loss, a scalar, given weights, buffers (which it may update in place), hyperparameters and minibatch."""


class State(NamedTuple):
    """The state of a run before a step: its weights, its buffers and the state of its optimiser."""

    weights: Params
    buffers: Params
    optimizer: OptimizerState


class Replay:
    """A training run, and its derivatives.

    The run itself uses the differentiable optimiser, so that the derivative is exact for this run. No derivative is
    taken w.r.t. the buffers.

    Args:
        loss: of a step.
        weights: initial weights; they are not changed.
        buffers: initial buffers, such as the statistics of BatchNorm; they are not changed.
        optimizer: optimiser of the weights.
        batches: where minibatches come from; after `run` and `derivatives` they are at the end of the run.
        draw: takes the minibatch of the next step from `batches`.
    """

    def __init__(
        self,
        loss: Loss,
        weights: Params,
        buffers: Params,
        optimizer: DifferentiableOptimizer,
        batches: Batches,
        draw: Callable[[], Any],
    ) -> None:
        self._loss, self._optimizer, self._batches, self._draw = loss, optimizer, batches, draw
        self._now = State(detached(weights), detached(buffers), optimizer.init(detached(weights)))
        self._segments: list[tuple[State, dict[str, Any]]] = []
        self._segment = 1
        self._hyperparameters: Params = {}
        self.steps = 0

    @property
    def weights(self) -> Params:
        """Return the present weights, without a copy."""
        return self._now.weights

    @property
    def buffers(self) -> Params:
        """Return the present buffers, without a copy."""
        return self._now.buffers

    def run(self, hyperparameters: Params, count: int, label: str | None = None) -> Params:
        """Take `count` steps, once, and return the weights after them."""
        if self.steps:
            raise ValueError(f"this run has taken its {self.steps} steps; make another one")
        self._hyperparameters, self._segment = detached(hyperparameters), max(1, math.isqrt(count))
        for step in steps(0, count, label):
            if step % self._segment == 0:
                self._segments.append((self._now, self._batches.state_dict()))
            self._now = self._step(self._now, self._draw())
            self.steps += 1
        return self.weights

    def derivatives(
        self, cotangent: Params, horizons: Sequence[int], label: str | None = None
    ) -> Iterator[tuple[int, Params, Params]]:
        """Yield the derivative of a function of the last weights through the last steps, for each horizon.

        Args:
            cotangent: derivative of the function w.r.t. the last weights; a weight that is left out has derivative 0.
            horizons: numbers of steps, each from 1 to that of the run; they are taken in ascending order.
            label: label of the progress.

        Yields:
            The horizon h, the derivative w.r.t. the hyperparameters of the last h steps, and that w.r.t. the weights
            before them.

        Raises:
            ValueError: there is no horizon, or one is longer than the run, or below 1.
        """
        wanted = sorted(set(horizons))
        if not wanted or wanted[0] < 1 or wanted[-1] > self.steps:
            raise ValueError(
                f"horizons {wanted} of a run of {self.steps} steps; legal: one or more from 1 to {self.steps}"
            )
        end = self._batches.state_dict()
        zeros = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        weights = zeros | detached(cotangent)
        state = {name: torch.zeros_like(value) for name, value in _moments(self._now.optimizer).items()}
        total = {name: torch.zeros_like(value) for name, value in self._hyperparameters.items()}
        points: list[tuple[State, Any]] = []
        try:
            for taken in steps(0, wanted[-1], label):
                step = self.steps - 1 - taken
                if not points:
                    points = self._segment_of(step)
                weights, state, direct = self._back(*points.pop(), weights, state)
                total = like(total, add(list(total.values()), list(direct.values())))
                if taken + 1 in wanted:
                    yield taken + 1, total, weights
        finally:
            self._batches.load_state_dict(end)

    def _step(self, point: State, batch: Any) -> State:
        """Return the state after a training step."""
        weights, buffers = leaves(point.weights), copied(point.buffers)
        with torch.enable_grad():
            loss = self._loss(weights, buffers, self._hyperparameters, batch)
        gradients = like(weights, vjp([loss], list(weights.values())))
        after, moments = self._optimizer.step(point.weights, gradients, point.optimizer)
        return State(after, buffers, moments)

    def _segment_of(self, step: int) -> list[tuple[State, Any]]:
        """Return the states and minibatches of the steps from the beginning of the segment of `step` to `step`."""
        point, batches = self._segments[step // self._segment]
        self._batches.load_state_dict(batches)
        found = []
        for _ in range(step % self._segment + 1):
            batch = self._draw()
            found.append((point, batch))
            if len(found) <= step % self._segment:
                point = self._step(point, batch)
        return found

    @torch.enable_grad()
    def _back(
        self, point: State, batch: Any, weights: Params, state: OptimizerState
    ) -> tuple[Params, OptimizerState, Params]:
        """Return the derivatives w.r.t. weights, optimiser state and hyperparameters of a step.

        `weights` and `state` are the derivatives w.r.t. the weights and the optimiser state that the step returns.
        """
        before, phi = leaves(point.weights), leaves(self._hyperparameters)
        moments = leaves(_moments(point.optimizer))
        loss = self._loss(before, copied(point.buffers), phi, batch)
        gradients = like(before, vjp_graph(loss, list(before.values()), "the loss"))
        after, new = self._optimizer.step(before, gradients, point.optimizer | moments)
        found = vjp(
            [*after.values(), *(new[name] for name in moments)],
            [*before.values(), *moments.values(), *phi.values()],
            [*weights.values(), *(state[name] for name in moments)],
        )
        ends = len(before), len(before) + len(moments)
        return like(before, found[: ends[0]]), like(moments, found[ends[0] : ends[1]]), like(phi, found[ends[1] :])


def _moments(state: OptimizerState) -> OptimizerState:
    """Return what has a derivative in the state of an optimiser: all but its counts."""
    return {name: value for name, value in state.items() if value.is_floating_point()}


def pretraining(
    problem: MetaProblem, batches: Batches, pretrained: Pretrained, optimizer: DifferentiableOptimizer
) -> Replay:
    """Return a PT run, not yet taken, from the given weights and buffers; `joined` gives its weights their names."""

    def loss(weights: Params, buffers: Params, meta: Params, batch: Any) -> Tensor:
        return problem.pretrain_loss(parted(weights, pretrained, buffers), meta, batch)

    weights = joined(pretrained.encoder, pretrained.head)
    return Replay(loss, weights, pretrained.buffers, optimizer, batches, batches.pretrain)
