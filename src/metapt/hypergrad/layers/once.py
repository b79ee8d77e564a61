"""A decorator for derivatives that can't be differentiated again: the attempt raises an error.

torch's own decorator, `torch.autograd.function.once_differentiable`, raises its error only where the derivative with
respect to all leaves is asked for: `torch.autograd.grad` avoids the error otherwise and returns a wrong number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_Backward = Callable[..., tuple[Tensor | None, ...]]


def once_differentiable(backward: _Backward) -> _Backward:
    """Wrap the `backward` of a `torch.autograd.Function`, so that every derivative of it raises a RuntimeError."""

    @functools.wraps(backward)
    def checked(context: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            gradients = backward(context, *cotangents)
        if not torch.is_grad_enabled():
            return gradients
        made = [value for value in gradients if value is not None]
        ends = iter(_End.apply(len(made), *made, *cotangents, *context.saved_tensors))  # type: ignore[no-untyped-call]
        return tuple(None if value is None else next(ends) for value in gradients)

    return checked


class _End(torch.autograd.Function):
    """The identity on the first `count` tensors, as functions of all tensors, whose derivative raises an error."""

    @staticmethod
    def forward(context: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tensors[:count]

    @staticmethod
    def backward(context: Any, *cotangents: Tensor) -> Any:
        raise RuntimeError(
            "BatchNorm, Convolution and recomputed parts of metapt have no third derivative: use torch.nn's own "
            "layers, and no recomputation."
        )
