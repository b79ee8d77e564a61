"""ReLU without a second derivative w.r.t. its input, which is zero; torch's own computes a tensor of zeros."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def relu_(values: Tensor) -> Tensor:
    """Return `torch.relu_(values)`, computed in place.

    Args:
        values: of any shape; no operation may have saved them for its derivative.
    """
    if torch.compiler.is_compiling():  # torch.compile gives wrong derivatives of Functions that change their input
        return torch.relu(values)
    result: Tensor = _Forward.apply(values)  # type: ignore[no-untyped-call]
    return result


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        context.mark_dirty(values)
        values.relu_()
        context.save_for_backward(values)
        return values

    @staticmethod
    def backward(context: Any, *cotangents: Tensor) -> Any:
        (result,) = context.saved_tensors
        return _Backward.apply(cotangents[0], result)  # type: ignore[no-untyped-call]


class _Backward(torch.autograd.Function):
    """The cotangent where the result is positive, else 0: linear in the cotangent, locally constant in the result."""

    @staticmethod
    def forward(context: Any, dy: Tensor, result: Tensor) -> Tensor:
        context.save_for_backward(result)
        return torch.ops.aten.threshold_backward(dy, result, 0.0)  # type: ignore[no-any-return]

    @staticmethod
    def backward(context: Any, *cotangents: Tensor) -> Any:
        (result,) = context.saved_tensors
        return _Backward.apply(cotangents[0], result.detach()), None  # type: ignore[no-untyped-call]
