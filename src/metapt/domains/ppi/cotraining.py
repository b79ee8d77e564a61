"""Co-training (Section 5, baselines): one network with a PT head and an FT head, trained on PT and FT data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.ppi.gin import GinEncoder
from metapt.domains.ppi.problem import LabelledGraphs, PpiBatches, task_losses, task_weights
from metapt.hypergrad import Params, Pretrained
from metapt.hypergrad.params import Vector
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.twostage.heads import head_of, logits


class BothGraphs(NamedTuple):
    """A PT minibatch and an FT training minibatch, for co-training."""

    pretrain: LabelledGraphs
    finetune: LabelledGraphs


@dataclass(frozen=True)
class CoTrainProblem:
    """One network on PT and FT data with a weight per task, evaluated on FT validation data (one-stage optimisation).

    Its "encoder" is an encoder with the heads `pretrain_head` and `finetune_head` (see `twostage.heads.whole`).

    All parameters, the FT head included, are pre-trained, so that the FT solver is an unroll of zero steps. The loss is
    the sum of the PT and FT losses, each the mean over its tasks.
    """

    tested: ClassVar = True
    encoder: GinEncoder

    def losses(self, pretrained: Pretrained, batch: BothGraphs) -> tuple[Tensor, Tensor]:
        """Return the losses [PT tasks] and [FT tasks]."""
        network = {**pretrained.encoder, **pretrained.buffers}
        return self.part(network, "pretrain_head", batch.pretrain), self.part(network, "finetune_head", batch.finetune)

    def part(self, network: Params, head: str, batch: LabelledGraphs) -> Tensor:
        """Return the losses of the tasks of one head, in training mode."""
        features = self.encoder(network, batch.graphs, training=True, keep=batch.keep)
        return task_losses(logits(head_of(network, head), features), batch.labels)

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: BothGraphs) -> Tensor:
        pretrain, finetune = self.losses(pretrained, batch)
        weights = task_weights(meta)
        return (weights[: len(pretrain)] * pretrain).mean() + (weights[len(pretrain) :] * finetune).mean()

    def encode(self, encoder: Params, batch: LabelledGraphs) -> Tensor:
        return logits(head_of(encoder, "finetune_head"), self.encoder(encoder, batch.graphs, training=False))

    def head_loss(self, head: Params, features: Tensor, batch: LabelledGraphs) -> Tensor:
        return F.binary_cross_entropy_with_logits(features, batch.labels)


class CoTrainBatches(PpiBatches):
    """Minibatches of co-training: each training minibatch is a PT minibatch and an FT minibatch."""

    def pretrain(self) -> BothGraphs:  # type: ignore[override]
        return BothGraphs(super().pretrain(), self._trained("train"))

    def hypergradient(self) -> BothGraphs:  # type: ignore[override]
        return BothGraphs(super().hypergradient(), self._trained("hypergradient train"))

    def _trained(self, name: str) -> LabelledGraphs:
        """Return an FT training minibatch with dropout."""
        batch = self._finetune(name)
        return batch._replace(keep=self._dropout[name](len(batch.graphs.graph)))


class CoTrainer(Pretrainer):
    """Train a network on both data sets in each step. Its `encoder` holds all parameters (see `CoTrainProblem`).

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
            self.optimizer.step()
            losses.append(loss.detach())
        return losses[0]

    def _projected(self) -> Tensor:
        losses = [part.mean() for part in self.problem.losses(self.pretrained, self.batches.pretrain())]
        values = list(self.pretrained.encoder.values())
        # A loss does not depend on the other loss's head.
        first, second = (
            torch.autograd.grad(loss, values, allow_unused=True, materialize_grads=True) for loss in losses
        )
        for value, gradient in zip(values, without_conflicts(list(first), list(second)), strict=True):
            value.grad = gradient
        self.optimizer.step()
        return losses[0].detach()


def without_conflicts(first: Vector, second: Vector) -> Vector:
    """Return the sum of two gradients after PCGrad (Yu et al. 2020, Algorithm 1).

    Where they conflict (negative inner product), each gradient loses its component along the other one.
    """
    flat = [torch.cat([part.flatten() for part in gradient]) for gradient in (first, second)]
    conflict = torch.dot(*flat).clamp(max=0.0)
    tiny = torch.finfo(conflict.dtype).tiny
    x, y = (own - conflict / other.square().sum().clamp_min(tiny) * other for own, other in (flat, flat[::-1]))
    summed = torch.split(x + y, [part.numel() for part in first])
    return [part.view_as(like) for part, like in zip(summed, first, strict=True)]
