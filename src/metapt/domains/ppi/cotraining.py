"""Co-training (Section 5, baselines): one network with a PT head and an FT head, trained on PT and FT data."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from metapt.domains.ppi.batches import CoTrainBatches
from metapt.domains.ppi.problem import CoTrainProblem, project_conflicts
from metapt.hypergrad import Params, Pretrained
from metapt.hypergrad.params import Vector
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer


class CoTrainer(Pretrainer):
    """Train a network on both data sets in each step. Its `encoder` holds all parameters (see `problem.whole`).

    With the gradients "alternate" it takes a step on PT data, then one on FT data; with "pcgrad" one step along the sum
    of both gradients after conflicting components are projected out (Yu et al. 2020).
    """

    problem: CoTrainProblem
    batches: CoTrainBatches

    def __init__(
        self,
        problem: CoTrainProblem,
        batches: CoTrainBatches,
        network: Pretrained,
        optimizer: OptimizerSpec,
        gradients: Literal["alternate", "pcgrad"],
    ) -> None:
        super().__init__(problem, batches, network, optimizer)
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
            self._take_step()
            losses.append(loss.detach())
        return losses[0]

    def _projected(self) -> Tensor:
        losses = [part.mean() for part in self.problem.losses(self.pretrained, self.batches.pretrain())]
        values = list(self.pretrained.encoder.values())
        gradients = [_gradient(loss, values) for loss in losses]
        for value, gradient in zip(values, project_conflicts(gradients), strict=True):
            value.grad = gradient
        self._take_step()
        return losses[0].detach()


def _gradient(loss: Tensor, values: Vector) -> Vector:
    """Return the gradient of a loss, zero for the head that the loss does not depend on."""
    return list(torch.autograd.grad(loss, values, allow_unused=True, materialize_grads=True))
