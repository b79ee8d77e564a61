"""The `MetaProblem`s of ECGs: SimCLR with a learned warp, and supervised learning with the same warp (OptSLA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.ecg.augment import Draws, Policy, views
from metapt.domains.ecg.data.dataset import Labelled
from metapt.domains.ecg.resnet1d import Encoder, project
from metapt.hypergrad import Params, Pretrained
from metapt.twostage.heads import encoder_of, head_of, logits


class UnlabelledBatch(NamedTuple):
    """A PT minibatch: signals [n, samples, 12], and draws for all first views, then for all second views (2n)."""

    signals: Tensor
    draws: Draws


class JointBatch(NamedTuple):
    """A PT minibatch and an FT minibatch."""

    unlabelled: UnlabelledBatch
    labelled: Labelled


class AugmentedBatch(NamedTuple):
    """A labelled minibatch with draws for one view of each ECG."""

    signals: Tensor
    labels: Tensor
    draws: Draws


def similarities(projections: Tensor, temperature: float) -> Tensor:
    """Return the cosine similarity of each view to each other view over the temperature, as a matrix [2n, 2n].

    The projections [2n, d] are those of the first views of n examples, and then of their second views. The diagonal is
    minus infinity, so that no view is compared with itself.
    """
    units = F.normalize(projections, dim=1)
    diagonal = torch.eye(len(units), dtype=torch.bool, device=units.device)
    return (units @ units.T / temperature).masked_fill(diagonal, -torch.inf)


def cross_entropy(similarities: Tensor) -> Tensor:
    """Return NT-Xent, the mean over views of -log softmax at the other view of the same example.

    It is the loss of SimCLR (Chen et al. 2020, Eq. 1), a convex function of the similarities.
    """
    count = len(similarities)
    partners = torch.arange(count, device=similarities.device).roll(count // 2)
    return F.cross_entropy(similarities, partners)


def classification_loss(head: Params, features: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy, the mean over ECGs and classes."""
    return F.binary_cross_entropy_with_logits(logits(head, features), labels)


@dataclass(frozen=True)
class SimclrProblem:
    """PT by NT-Xent on two views of each ECG, FT by a linear head for all classes."""

    tested: ClassVar = True
    encoder: Encoder  # the network
    policy: Policy  # the warp; its parameters are the meta-parameters
    temperature: float  # of NT-Xent

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: UnlabelledBatch) -> Tensor:
        return self.outputs_loss(self.pretrain_outputs(pretrained, meta, batch), meta, batch)

    def pretrain_outputs(self, pretrained: Pretrained, meta: Params, batch: UnlabelledBatch) -> Tensor:
        """Return the similarities [2n, 2n] of the views."""
        pairs = views(self.policy, self.policy.strength(meta, batch.signals), batch.signals, batch.draws)
        features = self.encoder({**pretrained.encoder, **pretrained.buffers}, pairs, training=True)
        return similarities(project(pretrained.head, features), self.temperature)

    def outputs_loss(self, outputs: Tensor, meta: Params, batch: UnlabelledBatch) -> Tensor:
        return cross_entropy(outputs)

    def encode(self, encoder: Params, batch: Labelled) -> Tensor:
        return self.encoder(encoder, batch.signals, training=False)

    def head_loss(self, head: Params, features: Tensor, batch: Labelled) -> Tensor:
        return classification_loss(head, features, batch.labels)


@dataclass(frozen=True)
class JointProblem(SimclrProblem):
    """PT by the sum of NT-Xent and the FT loss of labelled ECGs.

    The encoder of this problem includes the FT head, `head` (see `twostage.heads.whole`).
    """

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: JointBatch) -> Tensor:  # type: ignore[override]
        body = pretrained._replace(encoder=encoder_of(pretrained.encoder))
        features = self.encoder({**body.encoder, **body.buffers}, batch.labelled.signals, training=True)
        supervised = classification_loss(head_of(pretrained.encoder, "head"), features, batch.labelled.labels)
        return super().pretrain_loss(body, meta, batch.unlabelled) + supervised


@dataclass(frozen=True)
class SupervisedProblem:
    """Supervised learning on augmented ECGs, evaluated on the original ones: hyperparameter optimisation in one stage.

    The encoder of this problem includes the classification head, as in `JointProblem`. FT has nothing to train, so use
    `Unroll(0)`.
    """

    tested: ClassVar = True
    encoder: Encoder
    policy: Policy

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: AugmentedBatch) -> Tensor:
        network = {**pretrained.encoder, **pretrained.buffers}
        signals = views(self.policy, self.policy.strength(meta, batch.signals), batch.signals, batch.draws)
        features = self.encoder(encoder_of(network), signals, training=True)
        return classification_loss(head_of(network, "head"), features, batch.labels)

    def encode(self, encoder: Params, batch: Labelled) -> Tensor:
        return logits(head_of(encoder, "head"), self.encoder(encoder_of(encoder), batch.signals, training=False))

    def head_loss(self, head: Params, features: Tensor, batch: Labelled) -> Tensor:
        return F.binary_cross_entropy_with_logits(features, batch.labels)
