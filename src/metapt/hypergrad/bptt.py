"""The exact hypergradient by backpropagation through all PT and FT steps, the reference of tests and a study.

Memory grows with the number of steps; the approximations avoid this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metapt.hypergrad.checks import check_arguments, check_unchanged
from metapt.hypergrad.distributed import check_counts
from metapt.hypergrad.finetune import unrolled
from metapt.hypergrad.optimizers import DifferentiableOptimizer, take_steps
from metapt.hypergrad.params import Params, Pretrained, copied, detached, leaves, like, unconnected, vjp
from metapt.hypergrad.problem import Checked, MetaProblem
from metapt.hypergrad.trial import Given, check_second_derivatives


class ExactHypergradient(NamedTuple):
    """The exact hypergradient and the results of both stages, detached from any graph.

    Attributes:
        gradient: named and shaped like the meta-parameters.
        pretrained: encoder and PT head after PT.
        encoder: the encoder after FT.
        head: the FT head after FT.
        validation_loss: mean FT loss over the validation minibatches, a scalar.
        pretrain_losses: PT loss before each PT step, shape [PT steps].
    """

    gradient: Params
    pretrained: Pretrained
    encoder: Params
    head: Params
    validation_loss: Tensor
    pretrain_losses: Tensor


@torch.enable_grad()
def exact_hypergradient(
    problem: MetaProblem,
    pretrained: Pretrained,
    meta: Params,
    head: Params,
    *,
    pretrain_batches: Sequence[Any],
    train_batches: Sequence[Any],
    validation_batches: Sequence[Any],
    pretrain_optimizer: DifferentiableOptimizer,
    finetune_optimizer: DifferentiableOptimizer,
    network: bool = True,
) -> ExactHypergradient:
    """Return d(FT validation loss) / d(meta), the left-hand side of Eq. 3, through PT and FT from the initial weights.

    It is exact where the gradients of the losses are: a term under `detach` or `torch.no_grad` (a stop-gradient, a
    straight-through estimate) changes the steps that PT takes, but counts as a constant. A warning says so.

    Args:
        problem: the three losses. The running statistics of BatchNorm count as constants; FT uses those at the end of
            PT.
        pretrained: initial encoder, PT head and buffers.
        meta: the meta-parameters; the gradient has their names and shapes.
        head: initial FT head.
        pretrain_batches: PT minibatches, one per PT step.
        train_batches: FT training minibatches, one per FT step.
        validation_batches: FT validation minibatches, one or more; the loss is the mean over them.
        pretrain_optimizer: optimiser of the PT steps.
        finetune_optimizer: optimiser of the FT steps.
        network: FT changes encoder and head; if false, the head only.

    Raises:
        TypeError: an argument is of a wrong type (see `check_arguments`), or a function of the problem returns no
            tensor.
        ValueError: there is no validation minibatch, a loss is no scalar, or a loss or features have no graph.
        ConfigError: processes that share the problem have different numbers of minibatches.
        RuntimeError: a loss can't be differentiated twice (see `check_second_derivatives`), or PT does not depend on
            the meta-parameters.
    """
    check_arguments(problem, pretrained, meta, head)
    given = {"PT": pretrain_batches, "FT training": train_batches, "FT validation": validation_batches}
    check_counts(problem, {f"{name} minibatches": len(batches) for name, batches in given.items()})
    if not validation_batches:
        raise ValueError("there is no validation minibatch to take the loss of")
    first = pretrain_batches[0] if pretrain_batches else None
    users, where = problem, Given(pretrained, meta, head, first, validation_batches[0])
    if pretrain_batches:
        check_unchanged(users, where, uses_head_loss=True)
    problem = Checked(problem)
    phi = leaves(meta)
    (*start, buffers), first_head = pretrained.leaves(), leaves(head)

    def pretrain_loss(batch: Any, encoder: Params, head: Params) -> Tensor:
        nonlocal buffers
        buffers = copied(buffers)  # the graph holds those of the step before
        return problem.pretrain_loss(Pretrained(encoder, head, buffers), phi, batch)

    states = [pretrain_optimizer.init(part) for part in start]
    (pt_encoder, pt_head), _, pretrain_losses = take_steps(
        pretrain_optimizer, pretrain_loss, start, states, pretrain_batches, "pretrain_loss"
    )
    trained = Pretrained(pt_encoder, pt_head, buffers)

    def encode(encoder: Params, batch: Any) -> Tensor:
        return problem.encode({**encoder, **trained.buffers}, batch)

    state = finetune_optimizer.init(first_head)
    tuned = unrolled(problem, encode, trained.encoder, first_head, state, train_batches, finetune_optimizer, network)
    losses = [problem.head_loss(tuned.head, encode(tuned.encoder, batch), batch) for batch in validation_batches]
    loss = torch.stack(losses).mean()
    gradient = like(meta, vjp([loss], list(phi.values()), needed=unconnected(meta) if pretrain_batches else ""))
    if pretrain_batches:
        check_second_derivatives(users, where, products=True, head_steps=bool(train_batches), network=network)
    final = Pretrained(detached(trained.encoder), detached(trained.head), trained.buffers)
    encoder, tuned_head = detached(tuned.encoder), detached(tuned.head)
    before = torch.stack(pretrain_losses) if pretrain_losses else torch.zeros(0)
    return ExactHypergradient(gradient, final, encoder, tuned_head, loss.detach(), before)
