"""Plain training: minimisation of a loss that is a pure function of parameters, and fits of FT heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from metapt.errors import ConfigError, TrainingError
from metapt.hypergrad import FittedHead, MetaProblem, Params, Pretrained, Status
from metapt.hypergrad.distributed import check_counts
from metapt.hypergrad.params import all_finite, copied, detached, leaves
from metapt.training.optimizers import OptimizerSpec
from metapt.training.overlap import Kept


def minimise(loss: Callable[[Params], Tensor], params: Params, optimizer: OptimizerSpec, steps: int) -> Params:
    """Return the parameters after steps down a loss, a scalar, which draws its own minibatches; `params` stay."""
    current = leaves(copied(params))
    stepper = optimizer.stepper(current)
    for _ in range(steps):
        loss(current).backward()  # type: ignore[no-untyped-call]
        stepper.step()
    return detached(current)


@torch.enable_grad()
def finetune_head(
    problem: MetaProblem, pretrained: Pretrained, head: Params, batches: Iterable[Any], l2: float = 1e-3
) -> Params:
    """Return the FT head that minimises mean_i head_loss(head, encode(encoder, batch_i), batch_i) + l2 / 2 |head|^2.

    The encoder is frozen, in evaluation mode (see `MetaProblem.encode`), and runs once per minibatch. The head is
    fitted by Newton's method (`FittedHead`) until the norm of the gradient has shrunk to a billionth or to the
    precision of the dtype. If the loss is convex in the head, the result depends on the encoder and the minibatches
    only. Arms are then compared by their encoders, without a number of FT steps or a learning rate to choose (linear
    evaluation: Alain and Bengio 2016, "Understanding intermediate layers using linear classifier probes").

    Args:
        problem: provides `encode` and `head_loss`.
        pretrained: encoder and buffers; neither is changed. The PT head is not used.
        head: where the fit starts, such as zeros; tensors of any shape; not changed.
        batches: FT minibatches, each with the same weight, such as a `DataLoader`.
        l2: the ridge, above 0.

    Returns:
        Tensors of the names, shapes and dtypes of `head`.

    Raises:
        ConfigError: there is no minibatch, the head has no parameters, `l2` is not above 0, a loader fills the tensors
            of a minibatch anew, or processes that share the problem have different numbers of minibatches.
        TrainingError: the loss is not finite, or the fit does not reach a minimum.
        ValueError: `encode` or `head_loss` changes a minibatch or features in place.
    """
    kept = [Kept(batch) for batch in batches]
    for each in kept[:1]:
        each.check()
    batches = [each.batch for each in kept]
    check_counts(problem, {"FT training minibatches": len(batches)})
    if not head:
        raise ConfigError("the FT head has no parameters with requires_grad=True, so that there is nothing to fit")
    if not batches:
        raise ConfigError("the FT head can't be fitted on no minibatches; give one or more")
    if not l2 > 0:
        raise ConfigError(f"l2 is {l2}; legal: a positive number (without it separable data have no best head)")
    frozen = pretrained.leaves()  # it has copies of the buffers
    fit = FittedHead(l2=l2, tolerance=1e-9).fit(problem, {**frozen.encoder, **frozen.buffers}, head, batches)
    if fit.status is Status.NON_FINITE or not all_finite([fit.loss, *fit.head.values()]):
        raise TrainingError(
            "the FT loss or its gradient is not finite: look for NaN in the FT minibatches and in the encoder."
        )
    if fit.status is not Status.OK:
        raise TrainingError(
            "the FT head has not reached a minimum of its loss: raise l2, or use a head whose loss is convex."
        )
    return fit.head


@torch.no_grad()
def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the percentage [...] of right predictions, given logits [..., examples, classes], labels [..., examples].

    It is NaN if one of the logits is NaN, as of a network that has diverged.
    """
    right = (logits.argmax(-1) == labels).float()
    return 100 * right.masked_fill(logits.isnan().any(-1), torch.nan).mean(-1)
