"""The `MetaProblem`s of protein graphs: multitask PT with task weights, and co-training with them (Section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from metapt.domains.ppi.gin import GinEncoder, GraphBatch, logits
from metapt.hypergrad import Params, Pretrained
from metapt.hypergrad.params import Vector

WEIGHTS = "task_weights"


class LabelledGraphs(NamedTuple):
    """A minibatch of graphs, their labels [graphs, tasks] of 0 and 1, and dropout masks (None: no dropout)."""

    graphs: GraphBatch
    labels: Tensor
    keep: Tensor | None


class BothGraphs(NamedTuple):
    """A PT minibatch and an FT training minibatch, for co-training."""

    pretrain: LabelledGraphs
    finetune: LabelledGraphs


def task_weights(meta: Params) -> Tensor:
    """Return the task weights 2 sigmoid(phi), [tasks], in (0, 2)."""
    return 2 * torch.sigmoid(meta[WEIGHTS])


def initial_meta(tasks: int) -> Params:
    """Return the logits of weight 1 for each task."""
    return {WEIGHTS: torch.zeros(tasks)}


def task_losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy of each task, the mean over graphs: [tasks]."""
    return F.binary_cross_entropy_with_logits(outputs, labels, reduction="none").mean(0)


@dataclass(frozen=True)
class MultitaskProblem:
    """Multitask PT with L = 1/T sum_t 2 sigmoid(phi_t) CE_t, and FT of a linear head on other tasks."""

    tested: ClassVar = True
    encoder: GinEncoder  # the network

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: LabelledGraphs) -> Tensor:
        return self.outputs_loss(self.pretrain_outputs(pretrained, meta, batch), meta, batch)

    def pretrain_outputs(self, pretrained: Pretrained, meta: Params, batch: LabelledGraphs) -> Tensor:
        """Return logits [graphs, PT tasks]."""
        parameters = {**pretrained.encoder, **pretrained.buffers}
        return logits(pretrained.head, self.encoder(parameters, batch.graphs, training=True, keep=batch.keep))

    def outputs_loss(self, outputs: Tensor, meta: Params, batch: LabelledGraphs) -> Tensor:
        return (task_weights(meta) * task_losses(outputs, batch.labels)).mean()

    def mixed_product(
        self, pretrained: Pretrained, meta: Params, batch: LabelledGraphs, vector: Vector
    ) -> tuple[Params, Tensor]:
        """Return the product of a vector v with d2L/(dw dphi), and the loss; see `ForwardProblem`.

        L is linear in the task weights. The product is therefore dweights/dphi / T times the derivative of the task
        losses along v, which takes one forward-mode pass.
        """
        names = [*((0, name) for name in pretrained.encoder), *((1, name) for name in pretrained.head)]
        parts: tuple[Params, Params] = ({}, {})
        with torch.no_grad(), forward_ad.dual_level():
            for (part, name), tangent in zip(names, vector, strict=True):
                value = pretrained[part][name].detach()
                parts[part][name] = forward_ad.make_dual(value, tangent.detach())  # type: ignore[no-untyped-call]
            outputs = self.pretrain_outputs(Pretrained(*parts, pretrained.buffers), meta, batch)
            losses = task_losses(outputs, batch.labels)
            primal, pushed = forward_ad.unpack_dual(losses)  # type: ignore[no-untyped-call]
        half = torch.sigmoid(meta[WEIGHTS].detach())
        loss = (2 * half * primal).mean()
        slope = torch.zeros_like(primal) if pushed is None else pushed
        return {WEIGHTS: 2 * half * (1 - half) * slope / len(primal)}, loss

    def encode(self, encoder: Params, batch: LabelledGraphs) -> Tensor:
        return self.encoder(encoder, batch.graphs, training=False)

    def head_loss(self, head: Params, features: Tensor, batch: LabelledGraphs) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits(head, features), batch.labels)

    def targets(self, batch: LabelledGraphs) -> Tensor:
        """Return the FT labels, the targets of a ridge head."""
        return batch.labels


@dataclass(frozen=True)
class CoTrainProblem:
    """One network on PT and FT data with a weight per task, evaluated on FT validation data (one-stage optimisation).

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


def whole(encoder: Params, pretrain_head: Params, finetune_head: Params) -> Params:
    """Return the encoder and both heads as the parameters of one network."""
    heads = {"pretrain_head": pretrain_head, "finetune_head": finetune_head}
    return encoder | {f"{part}.{name}": value for part, head in heads.items() for name, value in head.items()}


def head_of(network: Params, part: str) -> Params:
    """Return a head of such a network."""
    return {name.removeprefix(f"{part}."): value for name, value in network.items() if name.startswith(f"{part}.")}


def encoder_of(network: Params) -> Params:
    """Return the encoder of such a network."""
    return {name: value for name, value in network.items() if not name.split(".")[0].endswith("_head")}
