"""The FT solver whose heads are ridge regressions, solved in closed form and differentiated through the solution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor

from metapt.hypergrad.finetune import Features, FineTuned, finished, leave_one_out
from metapt.hypergrad.optimizers import OptimizerState
from metapt.hypergrad.params import Params, vjp
from metapt.hypergrad.problem import MetaProblem


class TargetsProblem(MetaProblem, Protocol):
    """A problem whose FT labels are numbers, so that a ridge regression can predict them."""

    def targets(self, batch: Any) -> Tensor:
        """Return the labels of an FT minibatch, [n, tasks], of a floating type."""


@dataclass(frozen=True)
class RidgeHead:
    """Linear heads by ridge regression on the labels of all tasks at once.

    Let f be the features of the n fitted examples, centred and divided by their root mean square, and y the centred
    labels. Then

        W = argmin 1/n |f W - y|^2 + l2 |W|^2 = (f'f / n + l2)^-1 f'y / n.

    The loss on held-out examples is the squared error divided by the variance of the labels, the mean over the tasks
    whose labels differ; a head that predicts the mean has loss 1. One matrix serves all tasks, so that thousands of
    examples cost less than their encoding. The derivative goes through the closed-form solution. These heads only
    evaluate the features; the FT head is returned unchanged.

    Args:
        l2: the ridge, above 0, in units of the mean square of the features.
        cross_fit: hold out each minibatch in turn, the validation minibatch included.
        minibatches: FT training minibatches per call.
    """

    l2: float = 1e-2
    cross_fit: bool = False
    minibatches: int = 1
    optimizer: ClassVar[None] = None
    uses_head_loss: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.l2 > 0:
            raise ValueError(f"l2 is {self.l2}; legal: a positive number")
        if self.minibatches < 1:
            raise ValueError(f"minibatches is {self.minibatches}; legal: 1 or more")

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
            raise ValueError("RidgeHead needs at least one FT training minibatch to fit on")
        if not hasattr(problem, "targets"):
            raise ValueError("a ridge head needs a problem with targets (see TargetsProblem)")
        targets = cast(TargetsProblem, problem).targets
        features = Features(problem, encoder, buffers, [*train_batches, validation_batch])
        folds = leave_one_out(features.batches) if self.cross_fit else [(train_batches, validation_batch)]
        fitted, held = [], []
        for rest, held_out in folds:
            x, y = torch.cat([features(batch) for batch in rest]), torch.cat([targets(batch) for batch in rest])
            fitted_error, held_error = self._errors(x, y, features(held_out), targets(held_out))
            fitted.append(fitted_error)
            held.append(held_error)
        loss = torch.stack(held).mean()
        gradient = features.encoder_gradient(vjp([loss], features.all()))
        return finished(gradient, head, {}, fitted, loss, torch.zeros_like(loss.detach()))

    def _errors(self, x: Tensor, y: Tensor, held_x: Tensor, held_y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the squared error on the fitted and on the held-out examples, each over the variance of its labels.

        Args:
            x, held_x: features, [n, features].
            y, held_y: labels, [n, tasks].
        """
        mean_x, mean_y = x.mean(0), y.mean(0)
        x, y = x - mean_x, y - mean_y
        size = x.square().mean().sqrt()
        x, held_x = x / size, (held_x - mean_x) / size
        gram = x.T @ x / len(x) + self.l2 * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        weights = torch.cholesky_solve(x.T @ y / len(x), torch.linalg.cholesky_ex(gram).L)
        return _error(x @ weights, y), _error(held_x @ weights, held_y - mean_y)


def _error(predicted: Tensor, y: Tensor) -> Tensor:
    """Return the squared error divided by the variance of the labels, the mean over the tasks whose labels differ.

    Args:
        predicted, y: predictions and labels, [n, tasks].

    Raises:
        ValueError: no task has labels that differ.
    """
    variance = y.var(0, correction=0)
    defined = variance != 0  # labels that are not finite count, so that the error is not finite either
    if not defined.any():
        raise ValueError("a part of the FT data has no task with both labels: take fewer folds, or more FT data")
    return ((predicted - y).square().mean(0)[defined] / variance[defined]).mean()
