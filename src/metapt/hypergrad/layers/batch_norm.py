"""BatchNorm (Ioffe and Szegedy 2015) whose second derivative costs little more than its first.

torch composes the second derivative of BatchNorm from dozens of elementwise operations, which take most of the time of
a hypergradient of a convolutional network. With x^ = (x - mean) s, s = (variance + eps)^-1/2, a = w s, and

    P(u) = u - avg(u) - x^ avg(x^ u)        (averages per channel, over batch and positions)

the derivative is dx = a P(dy), dw = sum(dy x^), db = sum(dy). For cotangents g, gw, gb of these three, its derivatives
are

    d/d(dy) = a P(g) + gw x^ + gb
    d/dw    = s k,                               k = <g, dy> - n avg(g) avg(dy) - n avg(g x^) avg(dy x^)
    d/dx    = s P(u) - w k s^2 x^ / n,           u = -a avg(dy x^) g + (gw - a avg(g x^)) dy

All are combinations of g, dy and x with one coefficient per channel. The coefficients need three sums besides dw and
db.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metapt.hypergrad.layers.passes import once_differentiable


class BatchNorm(nn.Module):
    """`torch.nn.BatchNorm1d` or `2d` with the same parameters, buffers and results, fast to differentiate twice.

    The input is [batch, channels, ...]; channels-last layout is the fastest.

    Args:
        channels: number of channels.
        eps, momentum: as in torch.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))
        self.eps, self.momentum = eps, momentum

    def forward(self, values: Tensor) -> Tensor:
        if not self.training:
            return F.batch_norm(values, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        self.num_batches_tracked.add_(1)
        return batch_norm(values, self.weight, self.bias, self.running_mean, self.running_var, self.momentum, self.eps)


def batch_norm(
    values: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return the values normalised by their own mean and variance per channel, times `weight`, plus `bias`.

    Args:
        values: [batch, channels, ...].
        weight, bias: [channels].
        running_mean, running_var: [channels], updated in place if given.
        momentum, eps: as in `torch.nn.BatchNorm1d`.

    Returns:
        [batch, channels, ...].

    Raises:
        ValueError: there is one value per channel, which has no variance; or the values have no channels, or not as
            many as the other tensors.
    """
    parts = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    for name, part in parts.items():  # torch's kernels do not check this, and read beyond the tensors
        if part is not None and (values.dim() < 2 or part.shape != values.shape[1:2]):
            raise ValueError(
                f"BatchNorm's {name} has shape {tuple(part.shape)}, for values of shape {tuple(values.shape)}; legal: "
                "values [batch, channels, ...] and one number per channel"
            )
    if values.numel() == values.shape[1]:
        raise ValueError(
            f"BatchNorm in training needs more than one value per channel; got an input of shape {tuple(values.shape)}"
        )
    result: Tensor = _Forward.apply(values, weight, bias, running_mean, running_var, momentum, eps)  # type: ignore[no-untyped-call]
    return result


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        values: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        result, mean, scale = torch.native_batch_norm(
            values, weight, bias, running_mean, running_var, True, momentum, eps
        )
        context.save_for_backward(values, weight, mean, scale)
        context.save_for_forward(values, weight, mean, scale)
        context.eps = eps
        return result

    @staticmethod
    def jvp(context: Any, *tangents: Any) -> Tensor:
        """Return the derivative along the tangents dx, dw, db: a P(dx) + dw x^ + db."""
        values, weight, mean, scale = context.saved_tensors
        if torch.is_grad_enabled():  # a derivative of this one needs mean and scale as functions of the values
            variance, mean = torch.var_mean(values.to(mean.dtype), [0, *range(2, values.dim())], correction=0)
            scale = torch.rsqrt(variance + context.eps)
        given = zip((values, weight, weight), tangents, strict=False)
        dx, dw, db = (torch.zeros_like(value) if tangent is None else tangent for value, tangent in given)
        flat, n = _Channels(values), values.numel() // len(weight)
        dx_, x_ = flat(dx).to(mean.dtype), flat(values).to(mean.dtype)
        avg_dx = flat.sum(dx_) / n
        slope = dw - weight * scale * scale * (flat.sum(dx_ * x_) / n - mean * avg_dx)
        offset = db - weight * scale * avg_dx - slope * scale * mean
        return flat.combine((weight * scale, dx_), (slope * scale, x_), offset=offset)

    @staticmethod
    def backward(context: Any, *cotangents: Tensor) -> Any:
        values, weight, mean, scale = context.saved_tensors
        gradients = _Backward.apply(cotangents[0], values, weight, mean, scale, context.eps)  # type: ignore[no-untyped-call]
        return *gradients, None, None, None, None


class _Backward(torch.autograd.Function):
    """The first derivative. `mean` and `scale` are functions of `values`; `backward` includes their derivatives."""

    @staticmethod
    def forward(
        context: Any, dy: Tensor, values: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_batch_norm_backward(
            dy, values, weight, None, None, mean, scale, True, eps, [True, True, True]
        )
        _, dw, db = gradients
        context.save_for_backward(dy, values, weight, mean, scale, dw, db)
        return gradients

    @staticmethod
    @once_differentiable
    def backward(context: Any, *cotangents: Tensor) -> Any:
        dy, values, w, mean, s, dw, db = context.saved_tensors
        g, gw, gb = cotangents
        flat, n = _Channels(values), values.numel() // len(w)
        g_, dy_, x_ = flat(g), flat(dy), flat(values)
        sum_gx, sum_g = _sums(g, values, mean, s)
        sum_gdy, _ = _sums(g, dy, torch.zeros_like(mean), torch.ones_like(s))
        # Pairs [2, channels]: averages of a tensor and of its product with x^, or coefficients of 1 and x^.
        avg_g, avg_dy = (torch.stack([sum_g, sum_gx, db, dw]) / n).split(2)
        k = sum_gdy - n * (avg_g * avg_dy).sum(0)
        a = w * s
        offset, slope = torch.stack([gb, gw]) - a * avg_g
        c = slope * s
        d_dy = flat.combine((a, g_), (c, x_), offset=offset - c * mean)
        c_g = -a * avg_dy[1]
        offset, slope_x = -s * (c_g * avg_g + slope * avg_dy)
        c_x = s * (slope_x - w * k * s * s / n)
        d_x = flat.combine((s * c_g, g_), (c, dy_), (c_x, x_), offset=offset - c_x * mean)
        return d_dy, d_x, s * k, None, None, None


def _sums(dy: Tensor, values: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums per channel of dy * (values - mean) * scale and of dy, [channels] each.

    One kernel computes both in one pass, without the product in memory. They don't depend on the weight, which is
    passed because the kernel returns empty tensors for channels-last values on a GPU without one.
    """
    _, products, sums = torch.ops.aten.native_batch_norm_backward(
        dy, values, scale, None, None, mean, scale, True, 0.0, [False, True, True]
    )
    return products, sums


class _Channels:
    """Sums and linear combinations per channel, on rows of all positions and channels of an example.

    The coefficients of the channels are repeated along a row, which is faster than broadcasting.
    """

    def __init__(self, values: Tensor) -> None:
        self._shape, self._dtype = values.movedim(1, -1).shape, values.dtype
        self._repeats = self._shape[1:-1].numel()

    def __call__(self, values: Tensor) -> Tensor:
        """Return values [batch, channels, ...] as rows [batch, ... * channels], channels innermost.

        In channels-last layout this is a view.
        """
        return values.movedim(1, -1).reshape(self._shape[0], -1)

    def sum(self, rows: Tensor) -> Tensor:
        """Return the sum of the rows per channel, [channels]."""
        return rows.sum(0).view(self._repeats, -1).sum(0)

    def combine(self, *terms: tuple[Tensor, Tensor], offset: Tensor) -> Tensor:
        """Return offset [channels] plus the sum of coefficient [channels] * rows, shaped like the values.

        The sum is of the type of the offset, the result of the type of the values.
        """
        (first, *others), rows = zip(*terms, strict=True)
        start, factor, *factors = torch.stack([offset, first, *others]).repeat(1, self._repeats)
        total = torch.addcmul(start, rows[0], factor)
        for factor, each in zip(factors, rows[1:], strict=True):
            total.addcmul_(each, factor)
        return total.view(self._shape).movedim(-1, 1).to(self._dtype)
