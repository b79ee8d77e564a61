"""The encoder: a ResNet-18 (He et al. 2016) with convolutions over time (appendix "General details for all methods").

Signals are [batch, samples, leads], as WFDB stores them. Seen as images of height 1 they are in torch's channels-last
layout, in which convolutions with few channels run up to twice as fast.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metapt.domains.ecg.data.sources import LEADS
from metapt.hypergrad import Params, Pretrained
from metapt.hypergrad.layers.batch_norm import BatchNorm
from metapt.hypergrad.layers.convolution import Convolution, convolution
from metapt.hypergrad.layers.precision import Precision, computing_in
from metapt.hypergrad.layers.recompute import recomputed_part
from metapt.training import pretrained_file
from metapt.training.pretrained_file import Learned

KERNEL = 15
STAGES = 4
BLOCKS = 2
RECOMPUTED = 6
"""Number of blocks, from the first on, that are recomputed.

Each block keeps about as much memory, and the first ones take the least time to recompute.
"""
PROJECTION = 128
"""Width of the projection that NT-Xent compares."""

Maps = dict[BatchNorm, tuple[Tensor, Tensor]]
"""What each BatchNorm does in eval mode: a scale and a shift [channels]."""


def _convolution(inputs: int, outputs: int, stride: int, kernel: int = KERNEL) -> Convolution:
    return Convolution(inputs, outputs, (1, kernel), (1, stride), (0, kernel // 2))


class Block(nn.Module):
    """Two convolutions and a shortcut, [B, inputs, 1, L] -> [B, outputs, 1, L / stride].

    Computes relu(bn(conv(relu(bn(conv(x))))) + shortcut(x)). The stride is 2 if `inputs` and `outputs` differ, else 1.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.first = _convolution(inputs, outputs, stride)
        self.first_norm = BatchNorm(outputs)
        self.second = _convolution(outputs, outputs, 1)
        self.second_norm = BatchNorm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1:
            self.shortcut = nn.Sequential(_convolution(inputs, outputs, stride, kernel=1), BatchNorm(outputs))

    def forward(self, signals: Tensor, maps: Maps | None = None) -> Tensor:
        inner = torch.relu_(_normalised(self.first, self.first_norm, signals, maps))
        around = signals
        if isinstance(self.shortcut, nn.Sequential):
            layer, norm = cast(tuple[Convolution, BatchNorm], self.shortcut)
            around = _normalised(layer, norm, signals, maps)
        return torch.relu_(_normalised(self.second, self.second_norm, inner, maps) + around)


class ResNet1d(nn.Module):
    """[batch, samples, 12 leads] -> features [batch, 8 * width].

    A convolution of stride 2 without pooling; four stages of two blocks with 1, 2, 4 and 8 times `width` channels, each
    but the first with stride 2; the average over time.
    """

    def __init__(self, width: int, recompute: bool = False) -> None:
        super().__init__()
        self._recomputed = RECOMPUTED if recompute else 0
        self.stem = _convolution(len(LEADS), width, 2)
        self.stem_norm = BatchNorm(width)
        widths = [width, *(width << stage for stage in range(STAGES) for _ in range(BLOCKS))]
        self.blocks = nn.Sequential(*(Block(*between) for between in itertools.pairwise(widths)))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, signals: Tensor) -> Tensor:
        maps = None if self.training else _maps([module for module in self.modules() if isinstance(module, BatchNorm)])
        values = torch.relu_(_normalised(self.stem, self.stem_norm, as_images(signals), maps))
        for number, block in enumerate(self.blocks):
            values = _recomputed(block, values) if self.training and number < self._recomputed else block(values, maps)
        return values.mean((2, 3), dtype=signals.dtype)


def _recomputed(block: nn.Module, values: Tensor) -> Tensor:
    """Return `block(values)`, without its intermediate results in memory."""
    part = partial(torch.func.functional_call, block)
    return recomputed_part(part, dict(block.named_parameters()), dict(block.named_buffers()), values)


def _normalised(layer: Convolution, norm: BatchNorm, signals: Tensor, maps: Maps | None) -> Tensor:
    """Return `norm(layer(signals))`. With the map of the norm this is one convolution with other weights and a bias."""
    if maps is None:
        result: Tensor = norm(layer(signals))
        return result
    scale, shift = maps[norm]
    return convolution(signals, layer.weight * scale.view(-1, 1, 1, 1), layer.stride, layer.padding, shift)


def _maps(norms: list[BatchNorm]) -> Maps:
    """Return the scale and the shift [channels] of each norm in eval mode, computed for all channels of all at once."""
    parts = zip(*((norm.weight, norm.bias, norm.running_mean, norm.running_var) for norm in norms), strict=True)
    weight, bias, mean, variance = map(torch.cat, parts)
    scale = weight * torch.rsqrt(variance + norms[0].eps)
    shift = bias - mean * scale
    sizes = [len(norm.weight) for norm in norms]
    return dict(zip(norms, zip(torch.split(scale, sizes), torch.split(shift, sizes), strict=True), strict=True))


def as_images(signals: Tensor) -> Tensor:
    """Return [batch, samples, channels] as [batch, channels, 1, samples], channels-last and without a copy."""
    return signals.transpose(1, 2).unsqueeze(2)


def features(width: int) -> int:
    """Return the number of features of an encoder of this width."""
    return width << (STAGES - 1)


class Encoder:
    """The encoder, with `width` channels in the first stage, as a pure function of its parameters and buffers.

    `precision` is that of the convolutions; features have the type of the signals. With `recompute` the first blocks
    are computed anew for each derivative in training, which saves memory.
    """

    def __init__(self, width: int, precision: Precision = "float32", recompute: bool = False) -> None:
        self._precision: Precision = precision
        with torch.device("meta"):
            self._modes = {training: ResNet1d(width, recompute).train(training) for training in (True, False)}

    def __call__(self, parameters: Params, signals: Tensor, *, training: bool) -> Tensor:
        """Return features [batch, 8 * width] of signals [batch, samples, 12]; `parameters` include the buffers.

        In training, BatchNorm uses the statistics of the minibatch and updates those in the buffers in place; otherwise
        it uses these.
        """
        module = self._modes[training]
        with computing_in(self._precision, signals.device):
            result: Tensor = torch.func.functional_call(module, parameters, (signals,), tie_weights=False)
        return result


def project(head: Params, features: Tensor) -> Tensor:
    """Return SimCLR's projections [batch, 128]: a linear layer without bias, ReLU, a linear layer."""
    return F.linear(F.relu(F.linear(features, head["hidden"])), head["weight"], head["bias"])


def initial_pretrained(width: int, generator: torch.Generator) -> Pretrained:
    """Return encoder and projection head with random weights.

    Convolutions are initialised as by He et al. (fan-out), linear layers as by torch.
    """
    network = ResNet1d(width)
    with torch.no_grad():
        for value in network.parameters():
            if value.dim() == 4:
                outputs, _, _, kernel = value.shape
                value.normal_(0.0, (2 / (outputs * kernel)) ** 0.5, generator=generator)
    size = features(width)
    projection = linear(size, PROJECTION, generator)
    head = {"hidden": linear(size, size, generator)["weight"], **projection}
    encoder = {name: value.detach() for name, value in network.named_parameters()}
    return Pretrained(encoder, head, dict(network.named_buffers()))


def load_pretrained(path: Path, width: int, device: str) -> Learned:
    """Read pretrained.pt with an encoder of this width; see `pretrained_file.load_pretrained`."""
    with torch.device("meta"):
        network = ResNet1d(width)
    like = Pretrained(dict(network.named_parameters()), {}, dict(network.named_buffers()))
    return pretrained_file.load_pretrained(path, like, f"width {width}", device)


def initial_head(width: int, classes: int, generator: torch.Generator) -> Params:
    """Return an FT head with random weights."""
    return linear(features(width), classes, generator)


def linear(inputs: int, outputs: int, generator: torch.Generator) -> Params:
    """Return the weights of a linear layer, initialised as by torch."""
    return {"weight": uniform(inputs, generator, outputs, inputs), "bias": uniform(inputs, generator, outputs)}


def uniform(inputs: int, generator: torch.Generator, *shape: int) -> Tensor:
    """Return initial weights of a layer whose units have so many inputs, uniform in ± 1 / sqrt(inputs) as in torch."""
    return (2 * torch.rand(shape, generator=generator) - 1) * (1 / math.sqrt(inputs))
