"""The `MetaProblem`s of the synthetic experiments, digit classification whose PT is rotated or weighted.

The classifier is 784 -> 64, ReLU, then a linear output layer. With separate heads the hidden layer is the encoder, and
PT and FT have an output layer each. With a shared head the whole network is the encoder, and the heads are empty.
Networks are functions of their parameters.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.mnist.config import Heads
from metapt.domains.mnist.data import SIDE
from metapt.hypergrad import Params, Pretrained

HIDDEN = 64
CHANNELS = (32, 64)
KERNELS = (5, 3)
FLAT = CHANNELS[1] * 5 * 5  # 28 -> 24 -> 12 -> 10 -> 5, without padding


def _uniform(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Params:
    """Return {name}.weight of a shape and {name}.bias, uniform in ± 1 / sqrt(inputs of a unit) as in torch."""
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    shapes = {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return {each: torch.empty(size).uniform_(-bound, bound, generator=generator) for each, size in shapes.items()}


def initial_weights(
    heads: Heads, pretrain_classes: int, finetune_classes: int, generator: torch.Generator, device: str
) -> tuple[Pretrained, Params]:
    """Return random weights on `device`, drawn on the CPU: encoder with PT head, and the FT head."""
    hidden = _uniform("hidden", (HIDDEN, SIDE * SIDE), generator)
    output = _uniform("output", (pretrain_classes, HIDDEN), generator)
    if heads == "shared":
        return Pretrained(hidden | output, {}).to(device), {}
    head = _uniform("output", (finetune_classes, HIDDEN), generator)
    return Pretrained(hidden, output).to(device), {name: value.to(device) for name, value in head.items()}


def _features(encoder: Params, images: Tensor) -> Tensor:
    """Return features [batch, 64] of images [batch, 28, 28], or logits if the output layer is part of the encoder."""
    hidden = F.relu(F.linear(images.flatten(1), encoder["hidden.weight"], encoder["hidden.bias"]))
    return _output_layer(encoder, hidden) if "output.weight" in encoder else hidden


def _output_layer(head: Params, features: Tensor) -> Tensor:
    """Return logits [batch, classes] of features; an empty head returns its input."""
    return F.linear(features, head["output.weight"], head["output.bias"]) if head else features


def logits(encoder: Params, head: Params, images: Tensor) -> Tensor:
    """Return logits [batch, classes] of the whole network for images [batch, 28, 28]."""
    return _output_layer(head, _features(encoder, images))


def weighting_network(generator: torch.Generator) -> Params:
    """Return random weights of the weighting CNN: two convolutions, each with BatchNorm, and a linear layer."""
    params: Params = {}
    inputs = 1
    for index, (channels, kernel) in enumerate(zip(CHANNELS, KERNELS, strict=True), start=1):
        params |= _uniform(f"conv{index}", (channels, inputs, kernel, kernel), generator)
        params |= {f"norm{index}.weight": torch.ones(channels), f"norm{index}.bias": torch.zeros(channels)}
        inputs = channels
    return params | _uniform("linear", (1, FLAT), generator)


def example_weights(params: Params, images: Tensor) -> Tensor:
    """Return twice the sigmoid of the weighting CNN's output [batch], in (0, 2), for images [batch, 28, 28].

    BatchNorm uses the statistics of the given images.
    """
    hidden = images.unsqueeze(1).to(memory_format=torch.channels_last)  # twice as fast on a CPU as torch's default
    for index in range(1, len(CHANNELS) + 1):
        convolution, norm = f"conv{index}", f"norm{index}"
        kernel = params[f"{convolution}.weight"].to(memory_format=torch.channels_last)
        hidden = F.conv2d(hidden, kernel, params[f"{convolution}.bias"])
        hidden = F.batch_norm(hidden, None, None, params[f"{norm}.weight"], params[f"{norm}.bias"], training=True)
        hidden = F.relu(F.max_pool2d(hidden, 2))  # the same as ReLU, then pooling, on a quarter of the pixels
    return 2 * torch.sigmoid(F.linear(hidden.flatten(1), params["linear.weight"], params["linear.bias"]).squeeze(1))


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate square images [batch, side, side] counter-clockwise by `degrees` [batch], bilinearly, with zeros outside.

    The derivative w.r.t. an angle is that of the interpolation, which has kinks.
    """
    angle = torch.deg2rad(degrees)[:, None, None]
    cos, sin = torch.cos(angle), torch.sin(angle)
    side = images.shape[-1]
    centres = (torch.arange(side, dtype=images.dtype, device=images.device) * 2 + 1) / side - 1  # of pixels, in [-1, 1]
    x, y = centres, centres[:, None]
    grid = torch.stack([x * cos - y * sin, x * sin + y * cos], dim=-1)
    turned = F.grid_sample(images.unsqueeze(1), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return turned.squeeze(1)


class Images(NamedTuple):
    """A minibatch: images [batch, 28, 28] in [0, 1], labels [batch]."""

    images: Tensor
    labels: Tensor


class RotationBatch(NamedTuple):
    """A PT minibatch with standard normal draws [batch] for its rotations."""

    images: Tensor
    labels: Tensor
    noise: Tensor


def _losses(outputs: Tensor, batch: Images | RotationBatch) -> Tensor:
    """Return the loss of each example, [batch]."""
    return F.cross_entropy(outputs, batch.labels, reduction="none")


class DigitProblem:
    """FT by digit classification with the network of the synthetic experiments."""

    def encode(self, encoder: Params, batch: Images) -> Tensor:
        return _features(encoder, batch.images)

    def head_loss(self, head: Params, features: Tensor, batch: Images) -> Tensor:
        return _losses(_output_layer(head, features), batch).mean()


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
        return logits(pretrained.encoder, pretrained.head, images)

    def outputs_loss(self, outputs: Tensor, meta: Params, batch: RotationBatch) -> Tensor:
        return _losses(outputs, batch).mean()


class WeightingProblem(DigitProblem):
    """PT with a loss weighted per example by a CNN of its image, whose parameters are the meta-parameters."""

    tested: ClassVar = True

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Images) -> Tensor:
        outputs = logits(pretrained.encoder, pretrained.head, batch.images)
        return torch.mean(self.weights(meta, batch) * _losses(outputs, batch))

    def weights(self, meta: Params, batch: Images) -> Tensor:
        """Return the weights of the examples, [batch]."""
        return example_weights(meta, batch.images)


class ExampleWeightsProblem(WeightingProblem):
    """PT with one weight per example, meta["weights"] [batch]; every PT minibatch holds the same examples."""

    tested: ClassVar = True

    def weights(self, meta: Params, batch: Images) -> Tensor:
        return meta["weights"]
