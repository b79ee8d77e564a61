"""The augmentation policy that is learned: the strength of each ECG's warp (Section 6.1, "Meta-Parameterized SimCLR").

The strength is scale(m) * 2 sigmoid(network(signal)): a global scale times a factor between 0 and 2 for each ECG.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.ecg.augment import Smoothing, displacement
from metapt.domains.ecg.data.sources import LEADS
from metapt.domains.ecg.resnet1d import KERNEL, as_images
from metapt.hypergrad import Params
from metapt.hypergrad.layers.batch_norm import batch_norm
from metapt.hypergrad.layers.relu import relu_

LAYERS = 4
SCALE = "scale"
"""Name of the global scale m among the meta-parameters."""
_STRENGTH_AT_ONE = 100.0


@dataclass(frozen=True)
class Policy:
    """The warp, and how its strength depends on the meta-parameters (see `metapt.domains.ecg.config.Warp`)."""

    smoothing: Smoothing
    scale: Literal["square", "log"]
    initial_scale: float
    network_width: int

    def initial(self, generator: torch.Generator) -> Params:
        """Return the initial meta-parameters: the scale, and a network with torch's default initialisation."""
        start = self.initial_scale if self.scale == "square" else math.log(self.initial_scale)
        meta: Params = {SCALE: torch.tensor(float(start))}
        channels = len(LEADS)
        for layer in range(LAYERS if self.network_width else 0):
            width = self.network_width
            bound = (channels * KERNEL) ** -0.5
            shape = (width, channels, 1, KERNEL)
            weight = (2 * torch.rand(shape, generator=generator) - 1) * bound
            meta[f"network.{layer}.weight"] = weight.to(memory_format=torch.channels_last)
            meta[f"network.{layer}.norm_weight"] = torch.ones(width)
            meta[f"network.{layer}.norm_bias"] = torch.zeros(width)
            channels = width
        if self.network_width:
            bound = channels**-0.5
            meta["network.out.weight"] = (2 * torch.rand(1, channels, generator=generator) - 1) * bound
            meta["network.out.bias"] = (2 * torch.rand(1, generator=generator) - 1) * bound
        return meta

    def strength(self, meta: Params, signals: Tensor) -> Tensor:
        """Return the standard deviation of each ECG's velocity, [batch], for signals [batch, samples, leads]."""
        scale = self.global_strength(meta)
        if not self.network_width:
            return scale.expand(len(signals))
        return scale * _network(meta, signals)

    def global_strength(self, meta: Params) -> Tensor:
        """Return the strength for a network output of 1, a scalar."""
        scale = meta[SCALE]
        return _STRENGTH_AT_ONE * scale * scale if self.scale == "square" else scale.exp()

    def displacement(self, strength: Tensor, velocity: Tensor) -> Tensor:
        """Return the displacement field of the warp, see `augment.displacement`."""
        return displacement(strength, velocity, self.smoothing)


def _network(meta: Params, signals: Tensor) -> Tensor:
    """Return the network's output [batch] in (0, 2) for signals [batch, samples, leads].

    Four layers of convolution, BatchNorm and ReLU; average over time; linear layer; 2 sigmoid. BatchNorm always uses
    the statistics of the minibatch, since a meta-parameter has no running ones.
    """
    hidden = as_images(signals)
    for layer in range(LAYERS):
        hidden = F.conv2d(hidden, meta[f"network.{layer}.weight"], stride=(1, 2), padding=(0, KERNEL // 2))
        weight, bias = meta[f"network.{layer}.norm_weight"], meta[f"network.{layer}.norm_bias"]
        hidden = relu_(batch_norm(hidden, weight, bias))
    pooled = hidden.mean((2, 3))
    return 2 * torch.sigmoid(F.linear(pooled, meta["network.out.weight"], meta["network.out.bias"])).squeeze(1)
