"""The network of the synthetic experiments: 784 -> 64, ReLU, then a linear output layer.

With separate heads the hidden layer is the encoder, and PT and FT have an output layer each. With a shared head the
whole network is the encoder, and the heads are empty.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.mnist.config import Heads
from metapt.domains.mnist.data.sources import SIDE
from metapt.hypergrad import Params, Pretrained

PIXELS = SIDE * SIDE
HIDDEN = 64


def linear(name: str, inputs: int, outputs: int, generator: torch.Generator) -> Params:
    """Return {name}.weight [outputs, inputs] and {name}.bias [outputs], uniform in ± 1 / sqrt(inputs) as in torch."""
    bound = 1 / math.sqrt(inputs)
    weight = torch.empty(outputs, inputs).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(outputs).uniform_(-bound, bound, generator=generator)
    return {f"{name}.weight": weight, f"{name}.bias": bias}


def initial(
    heads: Heads, pretrain_classes: int, finetune_classes: int, generator: torch.Generator, device: str
) -> tuple[Pretrained, Params]:
    """Return random weights on `device`, drawn on the CPU: encoder with PT head, and the FT head."""
    hidden = linear("hidden", PIXELS, HIDDEN, generator)
    output = linear("output", HIDDEN, pretrain_classes, generator)
    if heads == "shared":
        return Pretrained(hidden | output, {}).to(device), {}
    head = linear("output", HIDDEN, finetune_classes, generator)
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
