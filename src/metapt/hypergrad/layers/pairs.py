"""Convolutions along rows of few channels, computed on pairs of columns.

On CPUs with AVX-512, torch's kernels compute 16 channels at once, and their derivative w.r.t. the weights is slow below
64. In channels-last layout, n neighbouring columns of C channels are one column of n C channels, without a copy. A
convolution of stride s, padding p and weights w[o, i, k] maps groups of 2 s columns to pairs of columns; on these it is
a convolution of stride 1 with the weights

    W[(a, o), (c, i), q] = w[o, i, 2 s (q - P) + c - s a + p]        (a in {0, 1}, c < 2 s; zero outside of the kernel)

where P is the padding in groups. Some of W is zero: a kernel of 15 columns becomes one of 18 to 20.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Pair = tuple[int, int]
Argument = Literal["x", "w"]
"""An argument of a convolution: the input, or the weights."""
_LEAST_SHARE = 0.7
_NARROW = 16
_NARROW_WEIGHTS = 32


def faster(x: Tensor, w: Tensor, stride: Pair, padding: Pair, wrt: Argument | None = None) -> bool:
    """Return whether `torch.conv2d` of the arguments, or its derivative w.r.t. one, is to be computed here."""
    outputs, inputs = w.shape[:2]
    narrow = {None: outputs < _NARROW, "x": inputs < _NARROW, "w": inputs <= _NARROW_WEIGHTS}
    return (
        narrow[wrt]
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and possible(x, w, stride, padding)
    )


def possible(x: Tensor, w: Tensor, stride: Pair, padding: Pair) -> bool:
    """Return whether each `stride` columns of a single row have one output, in pairs, and few weights are zeros."""
    (_, _, rows, columns), (height, width) = x.shape, w.shape[2:]
    step = stride[1]
    return (
        rows == height == 1
        and padding[0] == 0
        and columns % (2 * step) == 0
        and 0 <= columns + 2 * padding[1] - width < columns
        and (columns + 2 * padding[1] - width) // step + 1 == columns // step
        and width >= _LEAST_SHARE * (2 * _reach(w, stride, padding) + 1) * 2 * step
    )


def forward(x: Tensor, w: Tensor, b: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    """Return `torch.conv2d` of the arguments."""
    reach = _reach(w, stride, padding)
    wide = torch.conv2d(
        _grouped(x, 2 * stride[1]), _spread(w, stride, padding), None if b is None else b.repeat(2), (1, 1), (0, reach)
    )
    return _grouped(wide, 0.5)


def adjoint(dy: Tensor, x: Tensor, w: Tensor, stride: Pair, padding: Pair, wrt: Argument) -> Tensor:
    """Return the derivative of `torch.conv2d` w.r.t. an argument for the cotangent `dy`."""
    reach = _reach(w, stride, padding)
    wide = torch.ops.aten.convolution_backward(
        _grouped(dy, 2),
        _grouped(x, 2 * stride[1]),
        _spread(w, stride, padding),
        None,
        (1, 1),
        (0, reach),
        (1, 1),
        False,
        (0, 0),
        1,
        (wrt == "x", wrt == "w", False),
    )
    if wrt == "x":
        return _grouped(wide[0], 1 / (2 * stride[1]))
    return _gathered(wide[1], w, stride, padding)


def _grouped(values: Tensor, columns: float) -> Tensor:
    """Return [batch, channels, 1, W] as [batch, columns * channels, 1, W / columns]; channels-last: no copy."""
    batch, channels, _, width = values.shape
    rows = values.permute(0, 2, 3, 1).reshape(batch, 1, round(width / columns), round(channels * columns))
    return rows.permute(0, 3, 1, 2).data  # autograd refuses in-place operations on a view that a Function returns


def _reach(w: Tensor, stride: Pair, padding: Pair) -> int:
    """Return P: the number of groups that a pair of outputs reaches to either side of its own."""
    group = 2 * stride[1]
    last = stride[1] + w.shape[3] - 1 - padding[1]
    return max(-(-padding[1] // group), last // group)


def _places(w: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return 1 where W is an element of w: [a c q, k]."""
    step, reach = stride[1], _reach(w, stride, padding)
    a = step * torch.arange(2).view(2, 1, 1)
    c = torch.arange(2 * step).view(-1, 1)
    q = 2 * step * torch.arange(-reach, reach + 1)
    k = torch.arange(w.shape[3])
    return ((q + c - a + padding[1]).reshape(-1, 1) == k).to(w.dtype)


def _spread(w: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return W, [2 outputs, 2 s inputs, 1, 2 P + 1], in channels-last layout."""
    outputs, inputs = w.shape[:2]
    values = w[:, :, 0] @ _places(w, stride, padding).T
    wide = values.view(outputs, inputs, 2, 2 * stride[1], -1).permute(2, 0, 4, 3, 1)
    return wide.reshape(2 * outputs, 1, -1, 2 * stride[1] * inputs).permute(0, 3, 1, 2)


def _gathered(wide: Tensor, w: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return the derivative w.r.t. w, given that w.r.t. W."""
    outputs, inputs, _, width = w.shape
    parts = wide.view(2, outputs, 2 * stride[1], inputs, -1).permute(1, 3, 0, 2, 4)
    return (parts.reshape(outputs, inputs, -1) @ _places(w, stride, padding)).view(outputs, inputs, 1, width)
