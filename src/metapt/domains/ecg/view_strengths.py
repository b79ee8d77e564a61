"""SimCLR as a function of all strengths of its views and of the temperature, to be differentiated w.r.t. each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from metapt.domains.ecg import contrastive
from metapt.domains.ecg.augment import Draws, warp
from metapt.domains.ecg.policy import SCALE
from metapt.domains.ecg.problem import SimclrProblem, UnlabelledBatch
from metapt.domains.ecg.resnet1d import project
from metapt.hypergrad import Params, Pretrained

CROP, NOISE, TEMPERATURE = "crop", "noise", "temperature"
STRENGTHS = {"strength": SCALE, CROP: CROP, NOISE: NOISE, TEMPERATURE: TEMPERATURE}
"""Hyperparameter -> its name among the meta-parameters, where it is the logarithm."""


@dataclass(frozen=True)
class ViewStrengthsProblem(SimclrProblem):
    """`SimclrProblem` whose meta-parameters are logarithms: of the warp's strength, crop, noise and temperature.

    The minibatches are drawn with the crop `crop` and the noise `noise`; others scale these draws. `temperature` is
    that of the initial meta-parameters.
    """

    crop: float
    noise: float

    def __post_init__(self) -> None:
        if self.policy.scale != "log" or self.policy.network_width:
            raise ValueError(
                f"the warp has the scale {self.policy.scale!r} and a network of width {self.policy.network_width}; "
                "legal: scale 'log' and width 0"
            )

    def initial(self, device: torch.device | str = "cpu") -> Params:
        """Return the logarithms of the strengths with which minibatches are drawn."""
        values = {CROP: self.crop, NOISE: self.noise, TEMPERATURE: self.temperature, SCALE: self.policy.initial_scale}
        return {name: torch.tensor(math.log(value), device=device) for name, value in values.items()}

    def pretrain_outputs(self, pretrained: Pretrained, meta: Params, batch: UnlabelledBatch) -> Tensor:
        draws, copies = batch.draws, len(batch.draws.velocity) // len(batch.signals)
        draws = draws._replace(
            crop_length=draws.crop_length * (meta[CROP] - math.log(self.crop)).exp(),
            jitter=draws.jitter * (meta[NOISE] - math.log(self.noise)).exp(),
        )
        strength = self.policy.strength(meta, batch.signals).repeat(copies)
        field = self.policy.displacement(strength, draws.velocity)
        views = warp(crop_and_jitter(batch.signals.repeat(copies, 1, 1), draws), field)
        features = self.encoder({**pretrained.encoder, **pretrained.buffers}, views, training=True)
        return contrastive.similarities(project(pretrained.head, features), meta[TEMPERATURE].exp())


def crop_and_jitter(signals: Tensor, draws: Draws) -> Tensor:
    """Crop and add noise as `augment.crop_and_jitter`, but differentiably.

    A sample that lies partly in the crop is scaled down by that part.
    """
    samples = signals.shape[1]
    length = (draws.crop_length * samples).unsqueeze(1)
    start = draws.crop_start.unsqueeze(1) * (samples - length)
    time = torch.arange(samples, device=signals.device, dtype=signals.dtype).view(1, -1, 1)
    cropped = (torch.minimum(time + 1, start + length) - torch.maximum(time, start)).clamp(0, 1)
    return signals * (1 - cropped) + draws.noise * draws.jitter.view(-1, 1, 1) * signals.std(1, keepdim=True)
