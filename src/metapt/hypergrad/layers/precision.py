"""The precision in which an encoder computes; its parameters, its features and all losses stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import Any, Literal, get_args

import torch

Precision = Literal["float32", "tf32", "bfloat16"]

_IN_TF32 = ContextVar("in TF32", default=False)


def computing_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which convolutions and matrix products have operands of this precision.

    "float32" changes nothing: operands have their own type, and torch's settings say whether a GPU may round them to
    TF32. "tf32" lets a GPU do so; a CPU computes as with "float32".

    The derivatives of convolutions and recomputed parts of `hypergrad.layers` have the precision of the forward pass,
    wherever they are taken. So have those of torch's own layers, except with "tf32": a GPU computes theirs as torch's
    settings say when they are taken.

    Raises:
        ValueError: the precision is unknown.
    """
    if precision not in get_args(Precision):
        raise ValueError(f"precision is {precision!r}; legal: {', '.join(map(repr, get_args(Precision)))}")
    if precision == "bfloat16":
        return torch.autocast(device.type, torch.bfloat16)
    return tf32(True) if precision == "tf32" and device.type == "cuda" else nullcontext()


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow a GPU to compute float32 convolutions and products in TF32, or forbid it; then restore torch's settings."""
    convolutions, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    before = _IN_TF32.set(allowed)
    try:
        torch.backends.cudnn.allow_tf32 = allowed
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(products)
        _IN_TF32.reset(before)


def remember_precision(context: Any) -> None:
    """Let the backward pass of a `torch.autograd.Function` know whether its forward pass computes in "tf32"."""
    context.in_tf32 = _IN_TF32.get()


def as_forward(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Compute a backward pass in the precision that the forward pass has remembered."""

    @wraps(backward)
    def run(context: Any, *cotangents: Any) -> Any:
        with tf32(True) if context.in_tf32 else nullcontext():
            return backward(context, *cotangents)

    return run
