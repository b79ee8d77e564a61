"""Random views of ECGs: crop, jitter, then a random temporal warp (appendix "ECG Data Augmentations"), and its policy.

All functions are batched and run on the signals' device. The random numbers come in as `Draws`, so a view is a pure
function of signals, draws and the warp's strength. It is differentiable only with respect to the strength, through the
warp. The policy, which is learned, gives each ECG's strength (Section 6.1, "Meta-Parameterized SimCLR"): scale(m) times
2 sigmoid(network(signal)), a global scale times a factor between 0 and 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.domains.ecg.config import EcgPretraining
from metapt.domains.ecg.data.sources import LEADS
from metapt.domains.ecg.resnet1d import KERNEL, as_images, linear, uniform
from metapt.hypergrad import Params
from metapt.hypergrad.layers.batch_norm import batch_norm

LAYERS = 4  # of the policy's network
SCALE = "scale"
"""Name of the global scale m among the meta-parameters."""
_STRENGTH_AT_ONE = 100.0

SQUARINGS = 5
COARSENING = 4
"""Ratio of the time grid on which the velocity is integrated to that of the signals."""
SIGMA = 12.0
"""Standard deviation, in samples, of the Gaussian that smooths displacement (up to 1 sigma) or velocity (up to 3)."""

Smoothing = Literal["displacement", "velocity"]


class Draws(NamedTuple):
    """The random numbers of `views` views."""

    crop_start: Tensor  # place of the crop, from 0 (at the start) to 1 (at the end), [views, leads]
    crop_length: Tensor  # share of the lead that the crop zeroes, [views, leads]
    jitter: Tensor  # standard deviation of the noise over that of the lead, [views]
    noise: Tensor  # standard normal, [views, samples, leads]
    velocity: Tensor  # standard normal, [views, samples]


def draw(views: int, samples: int, given: EcgPretraining, generator: torch.Generator) -> Draws:
    """Draw the random numbers of `views` views, as PT is given them, on the generator's device."""
    random: Any = {"generator": generator, "device": generator.device}
    share = torch.rand(views, **random) if given.jitter == "uniform" else torch.ones(views, device=generator.device)
    start, length = (torch.rand(views, len(LEADS), **random) for _ in range(2))
    noise, velocity = torch.randn(views, samples, len(LEADS), **random), torch.randn(views, samples, **random)
    return Draws(start, given.crop * length, given.noise * share, noise, velocity)


def crop_and_jitter(signals: Tensor, draws: Draws) -> Tensor:
    """Return k copies of n signals [n, samples, leads], a part of each lead 0, plus white noise; no derivative.

    The `draws` are those of k * n views.
    """
    with torch.no_grad():
        samples, copies = signals.shape[1], len(draws.jitter) // len(signals)
        length = draws.crop_length * samples
        start = draws.crop_start * (samples - length)
        time = torch.arange(samples, device=signals.device, dtype=signals.dtype).view(1, -1, 1)
        kept = (time < start.unsqueeze(1)) | (time >= (start + length).unsqueeze(1))
        scale = draws.jitter.view(-1, 1, 1) * signals.std(1, keepdim=True).repeat(copies, 1, 1)
        return torch.addcmul(signals.repeat(copies, 1, 1) * kept, draws.noise, scale)


def displacement(strength: Tensor, velocity: Tensor, smoothing: Smoothing) -> Tensor:
    """Return the displacement field [views, samples] of a random warp, in samples.

    A velocity of the given `strength` [views] (its standard deviation, samples per unit time), from standard normal
    noise `velocity` [views, samples], is integrated over unit time by scaling and squaring on a coarser time grid
    (Dalca et al. 2019; Arsigny et al. 2006). If the displacement is smoothed, the field is the paper's. It folds if the
    strength is large. If the velocity is smoothed (and, away from the ends, scaled back to unit variance), the field is
    a diffeomorphism, whose typical displacement is about `strength` while that is small.
    """
    samples = velocity.shape[1]
    if smoothing == "velocity":
        velocity = _smooth(velocity, reach=3.0, unit_variance=True)
    coarse = _resize(velocity, samples // COARSENING) * (strength / COARSENING).unsqueeze(1)
    coarse = coarse / 2**SQUARINGS
    for _ in range(SQUARINGS):
        coarse = coarse + warp(coarse.unsqueeze(2), coarse).squeeze(2)
    field = _resize(coarse * COARSENING, samples)
    return field if smoothing == "velocity" else _smooth(field, reach=1.0, unit_variance=False)


def warp(signals: Tensor, field: Tensor) -> Tensor:
    """Return signals [views, samples, leads] read at t + field(t), [views, samples], by linear interpolation.

    A position beyond an end reads the value at that end.
    """
    views, samples, leads = signals.shape
    time = torch.arange(samples, device=field.device, dtype=field.dtype)
    # A NaN can't be an index. It still reaches the loss, through `fraction`.
    place = (time + field).clamp(0, samples - 1)
    left = place.detach().nan_to_num(0.0).floor().clamp_max(samples - 2)
    fraction = (place - left).unsqueeze(2)
    row = left.long() + torch.arange(0, views * samples, samples, device=field.device).unsqueeze(1)
    rows = signals.reshape(views * samples, leads)
    below = rows.index_select(0, row.reshape(-1)).view(signals.shape)
    above = rows.index_select(0, row.reshape(-1) + 1).view(signals.shape)
    return torch.lerp(below, above, fraction)


def _resize(field: Tensor, samples: int) -> Tensor:
    """Interpolate [views, n] linearly to [views, samples], with aligned ends."""
    return F.interpolate(field.unsqueeze(1), samples, mode="linear", align_corners=True).squeeze(1)


def _smooth(field: Tensor, reach: float, unit_variance: bool) -> Tensor:
    """Convolve with a Gaussian, zero-padded, whose taps sum to 1 or keep the variance of white noise."""
    kernel = _gaussian(reach, unit_variance, field.device, field.dtype)
    return F.conv1d(field.unsqueeze(1), kernel.view(1, 1, -1), padding=len(kernel) // 2).squeeze(1)


@cache
def _gaussian(reach: float, unit_variance: bool, device: torch.device, dtype: torch.dtype) -> Tensor:
    radius = math.ceil(reach * SIGMA)
    kernel = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, dtype=torch.float64) / SIGMA) ** 2)
    return (kernel / (kernel.square().sum().sqrt() if unit_variance else kernel.sum())).to(device, dtype)


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
            weight = uniform(channels * KERNEL, generator, width, channels, 1, KERNEL)
            meta[f"network.{layer}.weight"] = weight.to(memory_format=torch.channels_last)
            meta[f"network.{layer}.norm_weight"] = torch.ones(width)
            meta[f"network.{layer}.norm_bias"] = torch.zeros(width)
            channels = width
        if self.network_width:
            meta |= {f"network.out.{name}": value for name, value in linear(channels, 1, generator).items()}
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


def views(policy: Policy, strength: Tensor, signals: Tensor, draws: Draws) -> Tensor:
    """Return k views of each of n signals [n, samples, 12] at a strength [n] by crop, jitter and warp, [k * n, ...]."""
    copies = len(draws.velocity) // len(signals)
    field = displacement(strength.repeat(copies), draws.velocity, policy.smoothing)
    return warp(crop_and_jitter(signals, draws), field)


def _network(meta: Params, signals: Tensor) -> Tensor:
    """Return the network's output [batch] in (0, 2) for signals [batch, samples, leads].

    Four layers of convolution, BatchNorm and ReLU; average over time; linear layer; 2 sigmoid. BatchNorm always uses
    the statistics of the minibatch, since a meta-parameter has no running ones.
    """
    hidden = as_images(signals)
    for layer in range(LAYERS):
        hidden = F.conv2d(hidden, meta[f"network.{layer}.weight"], stride=(1, 2), padding=(0, KERNEL // 2))
        weight, bias = meta[f"network.{layer}.norm_weight"], meta[f"network.{layer}.norm_bias"]
        hidden = torch.relu_(batch_norm(hidden, weight, bias))
    pooled = hidden.mean((2, 3))
    return 2 * torch.sigmoid(F.linear(pooled, meta["network.out.weight"], meta["network.out.bias"])).squeeze(1)
