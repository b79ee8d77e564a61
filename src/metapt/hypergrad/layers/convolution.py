"""A convolution whose second derivative uses the kernels of its first.

torch's own second derivative is a convolution with minibatch and channels exchanged, for which its kernels are slow. A
convolution C(x, w) is linear in x and in w. Let Cx(dy, w) be its derivative w.r.t. x and Cw(dy, x) that w.r.t. w, both
for a cotangent dy. Their derivatives are again C, Cx and Cw:

    d Cx(dy, w):  C(g, w) w.r.t. dy,    Cw(dy, g) w.r.t. w          (g: a cotangent, like x)
    d Cw(dy, x):  C(x, g) w.r.t. dy,    Cx(dy, g) w.r.t. x          (g: a cotangent, like w)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from metapt.hypergrad.layers import fourier, pairs
from metapt.hypergrad.layers.pairs import Argument, Pair
from metapt.hypergrad.layers.passes import once_differentiable, read, wanted
from metapt.hypergrad.layers.precision import as_forward, remember_precision

_ONEDNN_BLOCK = 16
"""Channels that oneDNN computes at once with AVX-512; 8 with AVX2."""


class Convolution(nn.Module):
    """`torch.nn.Conv2d` without bias, fast to differentiate twice: [batch, inputs, H, W] -> [batch, outputs, H', W'].

    Args:
        inputs, outputs: numbers of channels.
        kernel: height and width of the kernel.
        stride, padding: as of `convolution`.
    """

    def __init__(self, inputs: int, outputs: int, kernel: Pair, stride: Pair = (1, 1), padding: Pair = (0, 0)) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, *kernel))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        self.stride, self.padding = stride, padding

    def forward(self, values: Tensor) -> Tensor:
        return convolution(values, self.weight, self.stride, self.padding)


def convolution(values: Tensor, weight: Tensor, stride: Pair, padding: Pair, bias: Tensor | None = None) -> Tensor:
    """Return `torch.nn.functional.conv2d` of the arguments; under `torch.autocast` in its lower precision.

    Args:
        values: [batch, inputs, H, W].
        weight: [outputs, inputs, kernel height, kernel width].
        stride: vertical and horizontal step.
        padding: zeros added above and below, and left and right.
        bias: [outputs].

    Returns:
        [batch, outputs, H', W'].
    """
    if torch.is_autocast_enabled(values.device.type):  # cast here, so that the derivatives also get tensors of one type
        values, weight, bias = _lowered(values), _lowered(weight), None if bias is None else _lowered(bias)
    result: Tensor = _Convolution.apply(values, weight, bias, stride, padding)  # type: ignore[no-untyped-call]
    return result


def _lowered(values: Tensor) -> Tensor:
    """Return the values in the type to which autocast casts; in their own if they are of double precision."""
    return values if values.dtype is torch.float64 else values.to(torch.get_autocast_dtype(values.device.type))


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, w: Tensor, b: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
        remember_precision(context)
        context.save_for_backward(x, w)
        context.geometry = (stride, padding)
        return _forward(x, w, context.geometry, b)

    @staticmethod
    @as_forward
    def backward(context: Any, *cotangents: Tensor) -> Any:
        x, w = context.saved_tensors
        (dy,) = cotangents
        dx = dw = db = None
        if wanted(context, 0):
            dx = _Adjoint.apply(dy, w, x.detach(), context.geometry, "x", True)  # type: ignore[no-untyped-call]
        if wanted(context, 1):
            valued = read(context, 1)
            dw = _Adjoint.apply(dy, x, w.detach(), context.geometry, "w", valued)  # type: ignore[no-untyped-call]
        if wanted(context, 2):
            db = dy.sum((0, 2, 3))
        return dx, dw, db, None, None


class _Adjoint(torch.autograd.Function):
    """Cx(dy, w) or Cw(dy, x), like the argument `wrt`, of which it uses only the shape; NaN if `valued` is false."""

    @staticmethod
    def forward(
        context: Any, dy: Tensor, other: Tensor, like: Tensor, geometry: tuple[Pair, Pair], wrt: Argument, valued: bool
    ) -> Tensor:
        remember_precision(context)
        context.save_for_backward(dy, other)
        context.geometry, context.other = geometry, "w" if wrt == "x" else "x"
        if not valued:
            return like.new_full((), torch.nan).expand_as(like)
        x, w = (like, other) if wrt == "x" else (other, like)
        return _adjoint(dy, x, w, geometry, wrt)

    @staticmethod
    @once_differentiable
    @as_forward
    def backward(context: Any, *cotangents: Tensor) -> Any:
        dy, other = context.saved_tensors
        (g,) = cotangents
        x, w = (other, g) if context.other == "x" else (g, other)
        d_dy = _forward(x, w, context.geometry) if wanted(context, 0) else None
        d_other = _adjoint(dy, x, w, context.geometry, context.other) if wanted(context, 1) else None
        return d_dy, d_other, None, None, None, None


def _forward(x: Tensor, w: Tensor, geometry: tuple[Pair, Pair], b: Tensor | None = None) -> Tensor:
    if fourier.faster(x, w, *geometry):
        return fourier.forward(x, w, b, *geometry)
    if pairs.faster(x, w, *geometry):
        return pairs.forward(x, w, b, *geometry)
    return torch.conv2d(x, w, b, *geometry)


def _adjoint(dy: Tensor, x: Tensor, w: Tensor, geometry: tuple[Pair, Pair], wrt: Argument) -> Tensor:
    """Return Cx(dy, w) or Cw(dy, x); it uses only the shape of the argument that the derivative is w.r.t."""
    if fourier.faster(x, w, *geometry):
        function = fourier.input_gradient if wrt == "x" else fourier.weight_gradient
        return function(dy, x, w, *geometry)
    (down, along), padding = geometry
    if wrt == "w" and w.shape[1] < _ONEDNN_BLOCK and w.shape[2:] == (1, 1) and padding == (0, 0):
        # With a stride, oneDNN 3.12 writes outside of its memory (https://github.com/uxlfoundation/oneDNN/issues/6035).
        x, geometry = x[:, :, ::down, ::along], ((1, 1), padding)
    if pairs.faster(x, w, *geometry, wrt):
        return pairs.adjoint(dy, x, w, *geometry, wrt)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dy, x, w, None, *geometry, (1, 1), False, (0, 0), 1, (wrt == "x", wrt == "w", False)
    )
    result: Tensor = dx if wrt == "x" else dw
    return result
