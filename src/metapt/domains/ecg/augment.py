"""Random views of ECGs: crop, jitter, then a random temporal warp (appendix "ECG Data Augmentations").

All functions are batched and run on the signals' device. The random numbers come in as `Draws`, so a view is a pure
function of signals, draws and the warp's strength. It is differentiable only with respect to the strength, through the
warp.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

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


def draw(
    views: int,
    samples: int,
    leads: int,
    jitter: Literal["fixed", "uniform"],
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
    *,
    crop: float,
    noise: float,
) -> Draws:
    """Draw the random numbers of `views` views on the generator's device.

    A crop zeroes a share of a lead that is drawn from 0 to `crop`. A `fixed` jitter is `noise` times each lead's
    standard deviation, a `uniform` one is drawn from 0 to `noise` for each view.
    """

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=generator.device, dtype=dtype)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=generator.device, dtype=dtype)

    share = uniform(views) if jitter == "uniform" else torch.ones(views, device=generator.device, dtype=dtype)
    start, length = uniform(views, leads), uniform(views, leads)
    return Draws(start, crop * length, noise * share, normal(views, samples, leads), normal(views, samples))


def crop_and_jitter(signals: Tensor, draws: Draws) -> Tensor:
    """Set a part of each lead of signals [views, samples, leads] to zero and add white noise; no derivative."""
    with torch.no_grad():
        samples = signals.shape[1]
        length = draws.crop_length * samples
        start = draws.crop_start * (samples - length)
        time = torch.arange(samples, device=signals.device, dtype=signals.dtype).view(1, -1, 1)
        kept = (time < start.unsqueeze(1)) | (time >= (start + length).unsqueeze(1))
        scale = draws.jitter.view(-1, 1, 1) * signals.std(1, keepdim=True)
        return torch.addcmul(signals * kept, draws.noise, scale)


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
