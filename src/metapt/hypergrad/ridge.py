"""The FT solver whose heads are ridge regressions, solved in closed form and differentiated through the solution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor

from metapt.errors import DataError
from metapt.hypergrad.finetune import Features, FineTuned, finished
from metapt.hypergrad.fitted import folds
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
        if not hasattr(problem, "targets"):
            raise ValueError("a ridge head needs a problem with targets (see TargetsProblem)")
        targets = cast(TargetsProblem, problem).targets
        features = Features(problem, encoder, buffers, [*train_batches, validation_batch])
        parts = folds(features, train_batches, validation_batch, self.cross_fit)
        predictions = []
        for rest, held_out in parts:
            x, y = torch.cat([features(batch) for batch in rest]), torch.cat([targets(batch) for batch in rest])
            predictions += self._predictions(x, y, features(held_out), targets(held_out))
        errors = _errors(predictions)
        fitted, held = errors[::2], errors[1::2]
        loss = torch.stack(held).mean()
        gradient = features.encoder_gradient(vjp([loss], features.all()))
        return finished(gradient, head, {}, fitted, loss, torch.zeros_like(loss.detach()))

    def _predictions(self, x: Tensor, y: Tensor, held_x: Tensor, held_y: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return predictions and labels of the fitted and of the held-out examples, less the mean of the fitted labels.

        Features x and held_x are [n, features], labels y and held_y [n, tasks].
        """
        mean_x, mean_y = x.mean(0), y.mean(0)
        x, y = x - mean_x, y - mean_y
        size = x.square().mean().sqrt()
        x, held_x = x / size, (held_x - mean_x) / size
        gram = x.T @ x / len(x) + self.l2 * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        factor, failed = torch.linalg.cholesky_ex(gram)  # which waits for no GPU
        weights = torch.cholesky_solve(x.T @ y / len(x), factor.masked_fill(failed > 0, torch.nan))
        return [(x @ weights, y), (held_x @ weights, held_y - mean_y)]


def _errors(predictions: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Return squared errors divided by the variance of the labels, each the mean over the tasks whose labels differ.

    The predictions are pairs of predictions and labels, [n, tasks]. One without labels that differ is a DataError.
    """
    variances = [y.var(0, correction=0) for _, y in predictions]
    defined = [variance != 0 for variance in variances]  # also labels that are not finite, so that the error isn't
    counts = torch.stack([each.sum() for each in defined]).tolist()  # at once, since reading waits for a GPU
    if not all(counts):
        raise DataError("all labels of each task are equal in a part of the FT data: take fewer folds, or more of it.")
    errors = []
    for (predicted, y), variance, own, count in zip(predictions, variances, defined, counts, strict=True):
        tasks = own.int().argsort(descending=True, stable=True)[:count]
        error = (predicted - y).square().mean(0).index_select(0, tasks) / variance.index_select(0, tasks)
        errors.append(error.mean())
    return errors
