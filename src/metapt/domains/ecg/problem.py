"""The `MetaProblem`s of ECGs: SimCLR with a learned warp, and supervised learning with the same warp (OptSLA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor
from torch.nn import functional as F

from metapt.domains.ecg import contrastive
from metapt.domains.ecg.augment import Draws, crop_and_jitter, warp
from metapt.domains.ecg.policy import Policy
from metapt.domains.ecg.resnet1d import Encoder, logits, project
from metapt.hypergrad import Params, Pretrained


class UnlabelledBatch(NamedTuple):
    """A PT minibatch: signals [n, samples, 12], and draws for all first views, then for all second views (2n)."""

    signals: Tensor
    draws: Draws


class LabelledBatch(NamedTuple):
    """An FT minibatch: signals [n, samples, 12], labels [n, classes] of 0 and 1."""

    signals: Tensor
    labels: Tensor


class JointBatch(NamedTuple):
    """A PT minibatch and an FT minibatch."""

    unlabelled: UnlabelledBatch
    labelled: LabelledBatch


class AugmentedBatch(NamedTuple):
    """A labelled minibatch with draws for one view of each ECG."""

    signals: Tensor
    labels: Tensor
    draws: Draws


def classification_loss(head: Params, features: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy, the mean over ECGs and classes."""
    return F.binary_cross_entropy_with_logits(logits(head, features), labels)


def views(policy: Policy, meta: Params, signals: Tensor, draws: Draws) -> Tensor:
    """Return k views of each of n signals [n, samples, 12] by crop, jitter and warp: [k * n, samples, 12]."""
    copies = len(draws.velocity) // len(signals)
    field = policy.displacement(policy.strength(meta, signals).repeat(copies), draws.velocity)
    return warp(crop_and_jitter(signals.repeat(copies, 1, 1), draws), field)


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
        pairs = views(self.policy, meta, batch.signals, batch.draws)
        features = self.encoder({**pretrained.encoder, **pretrained.buffers}, pairs, training=True)
        return contrastive.similarities(project(pretrained.head, features), self.temperature)

    def outputs_loss(self, outputs: Tensor, meta: Params, batch: UnlabelledBatch) -> Tensor:
        return contrastive.cross_entropy(outputs)

    def encode(self, encoder: Params, batch: LabelledBatch) -> Tensor:
        return self.encoder(encoder, batch.signals, training=False)

    def head_loss(self, head: Params, features: Tensor, batch: LabelledBatch) -> Tensor:
        return classification_loss(head, features, batch.labels)

    def targets(self, batch: LabelledBatch) -> Tensor:
        """Return the labels, the targets of a ridge head."""
        return batch.labels


@dataclass(frozen=True)
class JointProblem(SimclrProblem):
    """PT by the sum of NT-Xent and the FT loss of labelled ECGs.

    The encoder of this problem includes the FT head (see `SupervisedProblem.whole`).
    """

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: JointBatch) -> Tensor:  # type: ignore[override]
        body = pretrained._replace(encoder=_body(pretrained.encoder))
        features = self.encoder({**body.encoder, **body.buffers}, batch.labelled.signals, training=True)
        supervised = classification_loss(_head(pretrained.encoder), features, batch.labelled.labels)
        return super().pretrain_loss(body, meta, batch.unlabelled) + supervised


@dataclass(frozen=True)
class SupervisedProblem:
    """Supervised learning on augmented ECGs, evaluated on the original ones: hyperparameter optimisation in one stage.

    The encoder of this problem includes the classification head. FT has nothing to train, so use `Unroll(0)`.
    """

    tested: ClassVar = True
    encoder: Encoder
    policy: Policy

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: AugmentedBatch) -> Tensor:
        network = {**pretrained.encoder, **pretrained.buffers}
        signals = views(self.policy, meta, batch.signals, batch.draws)
        return classification_loss(_head(network), self.encoder(_body(network), signals, training=True), batch.labels)

    def encode(self, encoder: Params, batch: LabelledBatch) -> Tensor:
        return logits(_head(encoder), self.encoder(_body(encoder), batch.signals, training=False))

    def head_loss(self, head: Params, features: Tensor, batch: LabelledBatch) -> Tensor:
        return F.binary_cross_entropy_with_logits(features, batch.labels)

    @staticmethod
    def whole(encoder: Params, head: Params) -> Params:
        """Return encoder and classification head as the parameters of one network."""
        return encoder | {f"head.{name}": value for name, value in head.items()}


def _head(network: Params) -> Params:
    return {name.removeprefix("head."): value for name, value in network.items() if name.startswith("head.")}


def _body(network: Params) -> Params:
    return {name: value for name, value in network.items() if not name.startswith("head.")}
