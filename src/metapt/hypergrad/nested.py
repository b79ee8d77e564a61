"""Tensors in minibatches of any type: changed one by one in a copy, listed, and compared."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metapt.hypergrad.params import Params


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of a value with `change` applied to its tensors and to NumPy's numeric arrays that torch can hold.

    The value is a tensor, an array, or a mapping, list, tuple or plain object of such; what else it has is shared.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc" or not value.flags.writeable:
            return value
        try:
            tensor = torch.from_numpy(value)
        except (TypeError, ValueError):  # of another byte order, or of negative strides
            return value
        return change(tensor).numpy()
    if isinstance(value, tuple | list):
        values = [mapped(each, change) for each in value]
        return type(value)(*values) if hasattr(value, "_fields") else type(value)(values)
    if isinstance(value, dict) or (isinstance(value, Mapping) and not hasattr(value, "__dict__")):
        changed = copy.copy(value) if hasattr(value, "__setitem__") else dict(value)
        for key in value:
            changed[key] = mapped(value[key], change)
        return changed
    if inspect.isroutine(value) or isinstance(value, type | nn.Module):
        return value
    try:
        state: Any = object.__getstate__(value)
        changed = copy.copy(value) if state else value
    except TypeError:  # of an object that can't be copied, such as one with a lock
        return value
    for attributes in state if isinstance(state, tuple) else [state]:  # in __dict__ and in slots
        for name, each in (attributes or {}).items():
            object.__setattr__(changed, name, mapped(each, change))
    return changed


def listed(value: Any) -> list[Tensor]:
    """Return the tensors and arrays of a value (see `mapped`), in a fixed order; arrays as tensors of their memory."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(value, keep)
    return found


def cloned(value: Any) -> Any:
    """Return a copy of a value whose tensors share no memory with it, and have its strides (see `mapped`)."""
    spans: dict[tuple[int, torch.dtype], list[tuple[int, int]]] = {}  # of memory, joined where they overlap
    for memory, start, end in sorted(filter(None, map(_span, listed(value))), key=lambda span: span[1]):
        joined = spans.setdefault(memory, [])
        if joined and start < joined[-1][1]:
            start, end = joined[-1][0], max(end, joined.pop()[1])
        joined.append((start, end))
    copies: dict[tuple[int, torch.dtype, int], Tensor] = {}

    def clone(tensor: Tensor) -> Tensor:
        span = _span(tensor)
        if span is None:
            return tensor.detach().clone().requires_grad_(tensor.requires_grad)
        memory, start, _ = span
        first, last = next(each for each in spans[memory] if each[0] <= start < each[1])
        if (*memory, first) not in copies:
            copies[*memory, first] = tensor.detach().as_strided((last - first,), (1,), first).clone()
        copied = copies[*memory, first].as_strided(tensor.size(), tensor.stride(), start - first)
        return copied.requires_grad_(tensor.requires_grad)

    return mapped(value, clone)


def _span(tensor: Tensor) -> tuple[tuple[int, torch.dtype], int, int] | None:
    """Return the memory of a view with gaps, and where it begins and ends; None if its copy has the same strides.

    With other strides sums round differently.
    """
    special = tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
    if tensor.layout is not torch.strided or special or not tensor.numel():
        return None
    if torch.empty_like(tensor, device="meta").stride() == tensor.stride():
        return None
    start = int(tensor.storage_offset())
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.size(), tensor.stride(), strict=True))
    return (tensor.untyped_storage().data_ptr(), tensor.dtype), start, start + extent


def in_double(value: Any) -> Any:
    """Return a copy of a value whose numbers of floating types are float64, or complex128 (see `mapped`)."""

    def convert(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.detach().to(torch.complex128)
        return tensor.detach().to(torch.float64) if tensor.is_floating_point() else tensor

    return mapped(value, convert)


def changed(values: Params, copies: Params) -> list[str]:
    """Return the names of the copies (see `cloned`) that were changed since they were made.

    An operation in place counts even if it left all numbers as they were. It is not seen of a copy of a tensor that was
    made under `torch.inference_mode`, which counts none.
    """
    return [
        name
        for name, value in values.items()
        if name not in copies
        or (copies[name]._version and not value.is_inference())
        or not _equal(value.detach(), copies[name].detach())
    ]


def by_position(value: Any) -> Params:
    """Return the dense tensors of a value (see `listed`), named by their positions."""
    return {str(position): each for position, each in enumerate(listed(value)) if each.layout is torch.strided}


def same(value: Any, other: Any) -> bool:
    """Return whether two values have equal tensors at the same positions (see `listed`)."""
    left, right = by_position(value), by_position(other)
    return left.keys() == right.keys() and all(_equal(left[place].detach(), right[place].detach()) for place in left)


def _equal(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors have the same numbers, or are not dense; NaN equals NaN."""
    if left.layout is not torch.strided:
        return left.shape == right.shape
    return left.shape == right.shape and bool(((left == right) | ((left != left) & (right != right))).all())
