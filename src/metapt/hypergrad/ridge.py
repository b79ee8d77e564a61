"""The fine-tuning leg with a ridge regression for a head: solved at once, and differentiated through its solution."""

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
    """A problem whose FT labels can be regressed on."""

    def targets(self, batch: Any) -> Tensor:
        """Labels of an FT minibatch, [n, tasks], floating."""


@dataclass(frozen=True)
class RidgeHead:
    """Linear heads by ridge regression of each task's labels, all tasks at once.

    With features f, centred and divided by their root mean square size r over the fitted minibatches, and centred labels y,

        W = argmin 1/n |f W - y|^2 + l2 |W|^2 = (f'f / n + l2)^-1 f'y / n,

    and a held-out minibatch is priced by the squared error over the labels' variance, the mean over the tasks with both labels
    (1 for a head that knows nothing). One matrix serves all tasks, so that thousands of examples cost less than their encoding,
    and the derivative goes straight through the solution. The FT head itself is left as it is: this one prices the features.

    Args:
        l2: ridge, in units of the features' mean square.
        cross_fit: hold out each minibatch in turn, the validation one too.
        minibatches: FT training minibatches that the training loop gives.
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
        fits, prices = [], []
        for rest, held_out in folds:
            x, y = torch.cat([features(batch) for batch in rest]), torch.cat([targets(batch) for batch in rest])
            fit, price = self._price(x, y, features(held_out), targets(held_out))
            fits.append(fit)
            prices.append(price)
        loss = torch.stack(prices).mean()
        gradient = features.encoder_gradient(vjp([loss], features.all()))
        return finished(gradient, head, {}, fits, loss, torch.zeros_like(loss.detach()))

    def _price(self, x: Tensor, y: Tensor, held_x: Tensor, held_y: Tensor) -> tuple[Tensor, Tensor]:
        """Error on the fitted and on the held-out examples, over the labels' variance there."""
        mean_x, mean_y = x.mean(0), y.mean(0)
        x, y = x - mean_x, y - mean_y
        size = x.square().mean().sqrt()
        x, held_x = x / size, (held_x - mean_x) / size
        gram = x.T @ x / len(x) + self.l2 * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        weights = torch.cholesky_solve(x.T @ y / len(x), torch.linalg.cholesky_ex(gram).L)
        return _error(x @ weights, y), _error(held_x @ weights, held_y - mean_y)


def _error(predicted: Tensor, y: Tensor) -> Tensor:
    """Squared error over variance, the mean over the tasks [n, tasks] whose labels differ."""
    variance = y.var(0, correction=0)
    defined = variance != 0  # labels that are not finite stay in, so that the error is not finite either
    if not defined.any():
        raise ValueError("a part of the FT data has no task with both labels: take fewer folds, or more FT data")
    return ((predicted - y).square().mean(0)[defined] / variance[defined]).mean()
