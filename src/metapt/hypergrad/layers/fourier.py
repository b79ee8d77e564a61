"""Convolutions along rows with long kernels and many channels, as products of short Fourier transforms.

A row is cut into pieces of n columns, which overlap by the width K of the kernel less one. With discrete Fourier
transforms over a piece x and the kernel w, and three real products for a complex one (Gauss), the convolution is

    y = A' ((G w) * (B x))          (A: [R, m], G: [R, K], B: [R, n], m = n - K + 1, R about 3 n / 2)

where * also sums over the input channels, and a stride leaves out columns of A. It is linear in x and w, so its
derivatives have the same matrices. For m = 32 and K = 15 it takes a seventh of the direct products, R / m for K.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.hypergrad.layers.pairs import Pair

_STEP = 32
"""Number of columns of a row by which pieces are apart."""
_LEAST_KERNEL = 9
_LEAST_CHANNELS = 64
"""With fewer channels the transforms take longer than what they save."""


class Transforms(NamedTuple):
    """The matrices A, G and B."""

    outputs: Tensor
    weights: Tensor
    inputs: Tensor


def faster(x: Tensor, w: Tensor, stride: Pair, padding: Pair) -> bool:
    """Return whether `torch.conv2d` of the arguments and its derivatives are to be computed here."""
    outputs, inputs, height, width = w.shape
    return (
        x.device.type == "cpu"
        and x.dtype is torch.float32
        and len(x) > 0
        and x.shape[2] == height == 1
        and padding[0] == _STEP % stride[1] == 0
        and _LEAST_KERNEL <= width <= _STEP - stride[1]
        and min(inputs, outputs) >= _LEAST_CHANNELS
    )


def forward(x: Tensor, w: Tensor, b: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    """Return `torch.conv2d` of the arguments, whose rows and kernel have height 1 and whose stride divides 32."""
    parts = transforms(w.shape[3], stride[1], x.dtype)
    products = torch.bmm(_inputs(x, parts, stride, padding), _weights(w, parts))
    rows = torch.bmm(parts.outputs.T.expand(products.shape[1], -1, -1), products.transpose(0, 1))
    rows = rows.view(len(x), -1, len(w))[:, : _columns(x, w.shape[3], stride, padding)]
    return _images(rows if b is None else rows + b)


def input_gradient(dy: Tensor, x: Tensor, w: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return the derivative of `torch.conv2d` w.r.t. x for the cotangent `dy`."""
    parts = transforms(w.shape[3], stride[1], x.dtype)
    products = torch.bmm(_cotangents(dy, parts, stride), _weights(w, parts).transpose(1, 2))
    pieces = torch.bmm(parts.inputs.T.expand(products.shape[1], -1, -1), products.transpose(0, 1))
    pieces = pieces.view(len(x), -1, *pieces.shape[1:])
    count, overlap = pieces.shape[1], pieces.shape[2] - _STEP
    rows = F.pad(pieces[:, :, :_STEP], (0, 0, 0, 0, 0, 1))
    rows[:, 1:, :overlap] += pieces[:, :, _STEP:]
    rows = rows.view(len(x), (count + 1) * _STEP, -1)
    return _images(rows[:, padding[1] : padding[1] + x.shape[3]])


def weight_gradient(dy: Tensor, x: Tensor, w: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return the derivative of `torch.conv2d` w.r.t. w for the cotangent `dy`."""
    outputs, inputs, _, width = w.shape
    parts = transforms(width, stride[1], x.dtype)
    products = torch.bmm(_cotangents(dy, parts, stride).transpose(1, 2), _inputs(x, parts, stride, padding))
    found = parts.weights.T @ products.view(len(products), -1)
    return found.view(width, outputs, inputs).permute(1, 2, 0).unsqueeze(2)


def transforms(width: int, stride: int, dtype: torch.dtype) -> Transforms:
    """Return the matrices for a kernel of this width."""
    return Transforms(*(torch.from_numpy(part).to(dtype) for part in _matrices(width, stride)))


@cache
def _matrices(width: int, stride: int) -> tuple[np.ndarray, ...]:
    """Return the matrices as arrays, which a context that changes how torch makes tensors does not change."""
    n = _STEP + width - 1
    frequencies = np.arange(n // 2 + 1)
    angles = 2 * np.pi / n * np.outer(frequencies, np.arange(n))
    real, imaginary = np.cos(angles), -np.sin(angles)
    once = 2 * frequencies % n == 0  # the frequencies that are real, and are not there as their conjugates, too
    back = np.where(once, 1.0, 2.0)[:, None] / n
    alone, re, im = real[once], real[~once], imaginary[~once]
    # (a + ib) (c - id) = (p - r) + i (p - q)  with  p = (a + b) c,  q = a (c + d),  r = b (c - d)
    inputs = np.concatenate([alone, re + im, re, im])
    weights = np.concatenate([alone, re, re + im, re - im])
    outputs = np.concatenate([back[once] * alone, *(back[~once] * each for each in (re + im, -im, -re))])
    return tuple(map(np.ascontiguousarray, (outputs[:, :_STEP:stride], weights[:, :width], inputs)))


def _columns(x: Tensor, width: int, stride: Pair, padding: Pair) -> int:
    return (x.shape[3] + 2 * padding[1] - width) // stride[1] + 1


def _inputs(x: Tensor, parts: Transforms, stride: Pair, padding: Pair) -> Tensor:
    """Return B x, [R, batch * pieces, inputs]."""
    width, n = parts.weights.shape[1], parts.inputs.shape[1]
    count = -(-_columns(x, width, stride, padding) * stride[1] // _STEP)
    rows = F.pad(_rows(x), (0, 0, padding[1], count * _STEP + width - 1 - x.shape[3] - padding[1]))
    pieces = rows.unfold(1, n, _STEP).transpose(2, 3).reshape(-1, n, x.shape[1])
    return torch.bmm(parts.inputs.expand(len(pieces), -1, -1), pieces).transpose(0, 1)


def _weights(w: Tensor, parts: Transforms) -> Tensor:
    """Return G w, [R, inputs, outputs]."""
    return torch.matmul(parts.weights, w[:, :, 0].transpose(1, 2)).permute(1, 2, 0)


def _cotangents(dy: Tensor, parts: Transforms, stride: Pair) -> Tensor:
    """Return A dy, [R, batch * pieces, outputs]."""
    size = _STEP // stride[1]
    pieces = F.pad(_rows(dy), (0, 0, 0, -dy.shape[3] % size)).reshape(-1, size, dy.shape[1])
    return torch.bmm(parts.outputs.expand(len(pieces), -1, -1), pieces).transpose(0, 1)


def _rows(values: Tensor) -> Tensor:
    """Return [batch, channels, 1, W] as [batch, W, channels]; channels-last: no copy."""
    return values[:, :, 0].transpose(1, 2)


def _images(rows: Tensor) -> Tensor:
    """Return [batch, W, channels] as [batch, channels, 1, W], channels-last."""
    return rows.contiguous().transpose(1, 2).unsqueeze(2).data  # no view: it may be changed in place
