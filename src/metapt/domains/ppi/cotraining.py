"""Co-training (Section 5, baselines): one network with a PT head and an FT head, trained on PT and FT data."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from metapt.domains.ppi.batches import CoTrainBatches
from metapt.domains.ppi.problem import CoTrainProblem, encoder_of
from metapt.hypergrad import Params, Pretrained
from metapt.hypergrad.params import Vector
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer


class CoTrainer(Pretrainer):
    """Train a network on both data sets in each step. Its `encoder` holds all parameters (see `problem.whole`).

    With the gradients "alternate" it takes a step on PT data, then one on FT data; with "pcgrad" one step along the sum
    of both gradients after conflicting components are projected out (Yu et al. 2020); with "pcgrad_shared" the same,
    where only the encoder's part of the gradients is projected and each head keeps its own.
    """

    problem: CoTrainProblem
    batches: CoTrainBatches

    def __init__(
        self,
        problem: CoTrainProblem,
        batches: CoTrainBatches,
        network: Pretrained,
        optimizer: OptimizerSpec,
        gradients: Literal["alternate", "pcgrad", "pcgrad_shared"],
    ) -> None:
        super().__init__(problem, batches, network, optimizer)
        # `whole` puts the parameters of the encoder first.
        self._projects = len(encoder_of(network.encoder) if gradients == "pcgrad_shared" else network.encoder)
        self._step = self._alternate if gradients == "alternate" else self._projected

    def step(self, meta: Params) -> Tensor:
        """Take a step on the next pair of minibatches (two steps if they alternate), and return the PT loss before it.

        The meta-parameters are not used.
        """
        return self._step()

    def _alternate(self) -> Tensor:
        batch = self.batches.pretrain()
        losses = []
        for head, part in (("pretrain_head", batch.pretrain), ("finetune_head", batch.finetune)):
            loss = self.problem.part({**self.pretrained.encoder, **self.pretrained.buffers}, head, part).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            losses.append(loss.detach())
        return losses[0]

    def _projected(self) -> Tensor:
        losses = [part.mean() for part in self.problem.losses(self.pretrained, self.batches.pretrain())]
        values = list(self.pretrained.encoder.values())
        first, second = (_gradient(loss, values) for loss in losses)
        for value, gradient in zip(values, without_conflicts(first, second, self._projects), strict=True):
            value.grad = gradient
        self._optimizer.step()
        return losses[0].detach()


def without_conflicts(first: Vector, second: Vector, projected: int) -> Vector:
    """Return the sum of two gradients after PCGrad (Yu et al. 2020, Algorithm 1) on the first `projected` tensors.

    Where these conflict (negative inner product), each gradient loses its component along the other one. The other
    tensors are summed as they are.
    """
    flat = [torch.cat([part.flatten() for part in gradient[:projected]]) for gradient in (first, second)]
    conflict = torch.dot(*flat).clamp(max=0.0)
    tiny = torch.finfo(conflict.dtype).tiny
    x, y = (own - conflict / other.square().sum().clamp_min(tiny) * other for own, other in (flat, flat[::-1]))
    shared = torch.split(x + y, [part.numel() for part in first[:projected]])
    summed = [part.view_as(like) for part, like in zip(shared, first[:projected], strict=True)]
    return [*summed, *(a + b for a, b in zip(first[projected:], second[projected:], strict=True))]


def _gradient(loss: Tensor, values: Vector) -> Vector:
    """Return the gradient of a loss, zero for the head that the loss does not depend on."""
    return list(torch.autograd.grad(loss, values, allow_unused=True, materialize_grads=True))
