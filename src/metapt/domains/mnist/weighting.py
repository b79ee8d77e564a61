"""The weighting CNN: an importance weight in (0, 2) for each PT image."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.mnist import mlp
from metapt.hypergrad import Params

CHANNELS = (32, 64)
KERNELS = (5, 3)
FLAT = CHANNELS[1] * 5 * 5  # 28 -> 24 -> 12 -> 10 -> 5, without padding


def network(generator: torch.Generator) -> Params:
    """Return random weights of the two convolutions (with BatchNorm) and the linear layer."""
    params: Params = {}
    inputs = 1
    for index, (channels, kernel) in enumerate(zip(CHANNELS, KERNELS, strict=True), start=1):
        bound = 1 / math.sqrt(inputs * kernel * kernel)
        for name, shape in {"weight": (channels, inputs, kernel, kernel), "bias": (channels,)}.items():
            params[f"conv{index}.{name}"] = torch.empty(shape).uniform_(-bound, bound, generator=generator)
        params[f"norm{index}.weight"] = torch.ones(channels)
        params[f"norm{index}.bias"] = torch.zeros(channels)
        inputs = channels
    return params | mlp.linear("linear", FLAT, 1, generator)


def weights(params: Params, images: Tensor) -> Tensor:
    """Return twice the sigmoid of the CNN's output [batch], in (0, 2), for images [batch, 28, 28].

    BatchNorm uses the statistics of the given images.
    """
    hidden = images.unsqueeze(1).to(memory_format=torch.channels_last)  # twice as fast on a CPU as torch's default
    for index in range(1, len(CHANNELS) + 1):
        kernel = params[f"conv{index}.weight"].to(memory_format=torch.channels_last)
        hidden = F.conv2d(hidden, kernel, params[f"conv{index}.bias"])
        hidden = F.batch_norm(
            hidden, None, None, params[f"norm{index}.weight"], params[f"norm{index}.bias"], training=True
        )
        hidden = F.relu(F.max_pool2d(hidden, 2))  # the same as ReLU, then pooling, on a quarter of the pixels
    return 2 * torch.sigmoid(F.linear(hidden.flatten(1), params["linear.weight"], params["linear.bias"]).squeeze(1))
