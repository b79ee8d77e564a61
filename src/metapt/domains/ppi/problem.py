"""Multitask PT with task weights (Section 5): the `MetaProblem` and its minibatches.

All random numbers of minibatches come from streams of the PT seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from metapt.domains.ppi.config import Network
from metapt.domains.ppi.data.dataset import Indices, PpiDataset
from metapt.domains.ppi.gin import GinEncoder, GraphBatch, dropout_masks
from metapt.domains.ppi.stages import PpiPretrainSettings
from metapt.hypergrad import Params, Pretrained
from metapt.hypergrad.params import Vector
from metapt.training.batches import StreamBatches
from metapt.training.seeds import generator
from metapt.training.streams import ShuffledStream
from metapt.twostage.heads import logits

WEIGHTS = "task_weights"


class LabelledGraphs(NamedTuple):
    """A minibatch of graphs, their labels [graphs, tasks] of 0 and 1, and dropout masks (None: no dropout)."""

    graphs: GraphBatch
    labels: Tensor
    keep: Tensor | None


def task_weights(meta: Params) -> Tensor:
    """Return the task weights 2 sigmoid(phi), [tasks], in (0, 2)."""
    return 2 * torch.sigmoid(meta[WEIGHTS])


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


class Dropout:
    """Dropout masks of training minibatches, drawn by a generator on the device."""

    def __init__(self, generator: torch.Generator, network: Network, rate: float) -> None:
        self._generator, self._network, self._rate = generator, network, rate

    def __call__(self, nodes: int) -> Tensor | None:
        if not self._rate:
            return None
        return dropout_masks(self._network.layers, nodes, self._network.width, self._rate, self._generator)


class PpiBatches(StreamBatches):
    """PT minibatches with coarse labels, and FT minibatches with fine labels.

    Each set of graphs has its own streams for graphs and dropout masks. Arms with the same seed and PT settings
    therefore see the same PT minibatches and masks, whatever else they draw. `sets` are the graphs of "pretrain",
    "hypergradient" (PT graphs), "train", "hypergradient train" (of co-training) and "validation" with the sizes of
    their minibatches; unused ones may be left out. `tasks` are the FT tasks whose labels may be used.
    """

    def __init__(
        self, dataset: PpiDataset, sets: Mapping[str, tuple[Indices, int]], job: PpiPretrainSettings, tasks: Tensor
    ) -> None:
        self._dataset, self._tasks, self._pretrain = dataset, tasks.to(dataset.device), job.pretrain
        self._indices = {name: torch.from_numpy(np.asarray(chosen)) for name, (chosen, _) in sets.items()}
        masks = {name: generator("ppi dropout", name, job.seed, device=dataset.device) for name in sets}
        self._dropout = {name: Dropout(stream, job.network, job.pretrain.dropout) for name, stream in masks.items()}
        streams = {name: [generator("ppi batches", name, job.seed)] for name in sets}
        super().__init__(
            {name: ShuffledStream(len(chosen), size, streams[name]) for name, (chosen, size) in sets.items()},
            {f"{name} dropout": own for name, own in masks.items()},
        )

    def pretrain(self) -> LabelledGraphs:
        return self._labelled("pretrain")

    def hypergradient(self) -> LabelledGraphs:
        return self._labelled("hypergradient")

    def train(self) -> LabelledGraphs:
        return self._finetune("train")

    def validation(self) -> LabelledGraphs:
        return self._finetune("validation")

    def _labelled(self, name: str) -> LabelledGraphs:
        indices = self._next(name)
        graphs = self._dataset.batch(indices, self._pretrain.offset_centres)
        return LabelledGraphs(graphs, self._dataset.coarse(indices), self._dropout[name](len(graphs.graph)))

    def _finetune(self, name: str) -> LabelledGraphs:
        indices = self._next(name)
        return LabelledGraphs(self._dataset.batch(indices), self._dataset.fine(indices)[:, self._tasks], None)

    def _next(self, name: str) -> Tensor:
        return self._indices[name][self._streams[name].next()[0]]
