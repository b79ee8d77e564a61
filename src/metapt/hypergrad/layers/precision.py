"""The precision in which an encoder computes; its parameters, its features and all losses stay as they are."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, get_args

import torch

Precision = Literal["float32", "bfloat16"]


def computing_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which convolutions and matrix products have operands of this precision.

    Their derivatives have the precision of the forward pass, wherever they are taken. "float32" stands for the type of
    the operands themselves.

    Raises:
        ValueError: the precision is unknown.
    """
    if precision not in get_args(Precision):
        raise ValueError(f"precision is {precision!r}; legal: {', '.join(map(repr, get_args(Precision)))}")
    return nullcontext() if precision == "float32" else torch.autocast(device.type, torch.bfloat16)
