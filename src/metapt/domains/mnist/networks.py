"""The networks of the synthetic experiments, as functions of their parameters.

The classifier is 784 -> 64, ReLU, then a linear output layer. With separate heads the hidden layer is the encoder, and
PT and FT have an output layer each. With a shared head the whole network is the encoder, and the heads are empty.

The weighting CNN gives an importance weight in (0, 2) to each PT image.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.mnist.config import Heads
from metapt.domains.mnist.data import SIDE
from metapt.hypergrad import Params, Pretrained

PIXELS = SIDE * SIDE
HIDDEN = 64
CHANNELS = (32, 64)
KERNELS = (5, 3)
FLAT = CHANNELS[1] * 5 * 5  # 28 -> 24 -> 12 -> 10 -> 5, without padding


def _uniform(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Params:
    """Return {name}.weight of a shape and {name}.bias, uniform in ± 1 / sqrt(inputs of a unit) as in torch."""
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    weight = torch.empty(shape).uniform_(-bound, bound, generator=generator)
    return {
        f"{name}.weight": weight,
        f"{name}.bias": torch.empty(shape[0]).uniform_(-bound, bound, generator=generator),
    }


def initial(
    heads: Heads, pretrain_classes: int, finetune_classes: int, generator: torch.Generator, device: str
) -> tuple[Pretrained, Params]:
    """Return random weights on `device`, drawn on the CPU: encoder with PT head, and the FT head."""
    hidden = _uniform("hidden", (HIDDEN, PIXELS), generator)
    output = _uniform("output", (pretrain_classes, HIDDEN), generator)
    if heads == "shared":
        return Pretrained(hidden | output, {}).to(device), {}
    head = _uniform("output", (finetune_classes, HIDDEN), generator)
    return Pretrained(hidden, output).to(device), {name: value.to(device) for name, value in head.items()}


def features(encoder: Params, images: Tensor) -> Tensor:
    """Return features [batch, 64] of images [batch, 28, 28], or logits if the output layer is part of the encoder."""
    hidden = F.relu(F.linear(images.flatten(1), encoder["hidden.weight"], encoder["hidden.bias"]))
    return logits(encoder, hidden) if "output.weight" in encoder else hidden


def logits(head: Params, features: Tensor) -> Tensor:
    """Return logits [batch, classes] of features; an empty head returns its input."""
    return F.linear(features, head["output.weight"], head["output.bias"]) if head else features


def outputs(encoder: Params, head: Params, images: Tensor) -> Tensor:
    """Return logits [batch, classes] of the whole network for images [batch, 28, 28]."""
    return logits(head, features(encoder, images))


def weighting(generator: torch.Generator) -> Params:
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
