"""The `MetaProblem`s of the synthetic experiments: digit classification whose PT is rotated or weighted."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.mnist import networks
from metapt.domains.mnist.data import CLASSES
from metapt.hypergrad import Params, Pretrained


class Images(NamedTuple):
    """A minibatch: images [batch, 28, 28] in [0, 1], labels [batch]."""

    images: Tensor
    labels: Tensor


class RotationBatch(NamedTuple):
    """A PT minibatch with standard normal draws [batch] for its rotations."""

    images: Tensor
    labels: Tensor
    noise: Tensor


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate images [batch, height, width] counter-clockwise by `degrees` [batch], bilinearly, with zeros outside.

    The derivative w.r.t. an angle is that of the interpolation, which has kinks. Images must be square; others are
    sheared.
    """
    angle = torch.deg2rad(degrees)[:, None, None]
    cos, sin = torch.cos(angle), torch.sin(angle)
    height, width = images.shape[1:]
    y, x = _centres(height, images)[:, None], _centres(width, images)
    grid = torch.stack([x * cos - y * sin, x * sin + y * cos], dim=-1)
    turned = F.grid_sample(images.unsqueeze(1), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return turned.squeeze(1)


def _centres(size: int, like: Tensor) -> Tensor:
    """Return the centres of `size` pixels that span [-1, 1]."""
    return (torch.arange(size, dtype=like.dtype, device=like.device) * 2 + 1) / size - 1


class DigitProblem:
    """FT by digit classification with the network of the synthetic experiments."""

    def encode(self, encoder: Params, batch: Images) -> Tensor:
        return networks.features(encoder, batch.images)

    def head_loss(self, head: Params, features: Tensor, batch: Images) -> Tensor:
        return F.cross_entropy(networks.logits(head, features), batch.labels, reduction="none").mean()

    def targets(self, batch: Images) -> Tensor:
        """Return the labels as indicators of the classes [batch, classes], the targets of a ridge head."""
        return F.one_hot(batch.labels, CLASSES).to(batch.images.dtype)


class RotationProblem(DigitProblem):
    """PT on images that are rotated by mean + deviation * noise degrees.

    `meta` holds scalars, in degrees: "mean" and, where it is learned, "deviation" (else 1), the standard deviation.
    """

    tested: ClassVar = True

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: RotationBatch) -> Tensor:
        return self.outputs_loss(self.pretrain_outputs(pretrained, meta, batch), meta, batch)

    def pretrain_outputs(self, pretrained: Pretrained, meta: Params, batch: RotationBatch) -> Tensor:
        """Return logits [batch, classes] of the rotated images."""
        images = rotate(batch.images, meta["mean"] + meta.get("deviation", 1.0) * batch.noise)
        return networks.outputs(pretrained.encoder, pretrained.head, images)

    def outputs_loss(self, outputs: Tensor, meta: Params, batch: RotationBatch) -> Tensor:
        return F.cross_entropy(outputs, batch.labels, reduction="none").mean()


class WeightingProblem(DigitProblem):
    """PT with a loss weighted per example by a CNN of its image, whose parameters are the meta-parameters."""

    tested: ClassVar = True

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Images) -> Tensor:
        return torch.mean(networks.example_weights(meta, batch.images) * _losses(pretrained, batch))


class ExampleWeightsProblem(DigitProblem):
    """PT with one weight per example, meta["weights"] [batch]; every PT minibatch holds the same examples."""

    tested: ClassVar = True

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Images) -> Tensor:
        return torch.mean(meta["weights"] * _losses(pretrained, batch))


def _losses(pretrained: Pretrained, batch: Images) -> Tensor:
    """Return the PT loss of each example, [batch]."""
    outputs = networks.outputs(pretrained.encoder, pretrained.head, batch.images)
    return F.cross_entropy(outputs, batch.labels, reduction="none")
