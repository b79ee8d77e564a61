"""Rotation of images, differentiable in the angle."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


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
    return F.grid_sample(images.unsqueeze(1), grid, mode="bilinear", padding_mode="zeros", align_corners=False).squeeze(
        1
    )


def _centres(size: int, like: Tensor) -> Tensor:
    """Return the centres of `size` pixels that span [-1, 1]."""
    return (torch.arange(size, dtype=like.dtype, device=like.device) * 2 + 1) / size - 1
