"""CUDA graphs rehearsed on the CPU: operations are recorded, and computed only when they are replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .devices import READING

Result = TypeVar("Result")


class CaptureStream:
    """Do on the CPU what `metapt.training.capture.CaptureStream` does on a GPU."""

    recordings = 0

    def compute(self, function: Callable[[], Result]) -> Result:
        return function()

    def record(self, function: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """Record a function.

        All tensors and random generators stay as they were, and what it returns is NaN until the first replay. A replay
        computes the same operations on the same memory, with what Python computed when they were recorded.
        """
        type(self).recordings += 1
        recording = _Recording()
        with torch.random.fork_rng(devices=[]), recording:
            result = function()
        recording.undo()
        return recording.replay, result


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._steps: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._made: dict[int, Tensor] = {}  # by their memory
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # tensors in older memory, and what it held

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))
        if func in READING or any(isinstance(each, torch.Generator) for each in given):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        tensors = _tensors(given)
        for value in tensors:  # BatchNorm changes some that its schema doesn't say
            if _memory(value) not in self._made | self._before:
                self._before[_memory(value)] = value, value.detach().clone()
        if func is torch.ops.aten._efficientzerotensor.default:  # it has no memory
            func = torch.ops.aten.zeros.default
        result = func(*args, **kwargs)
        found = _tensors(result)
        memory = set(map(_memory, tensors))
        self._made |= {_memory(value): value for value in found if _memory(value) not in memory}
        if not func.is_view:
            self._steps.append((func, args, kwargs, found))
        return result

    def undo(self) -> None:
        """Leave everything as if nothing had been computed."""
        with torch.no_grad():
            for value in self._made.values():
                value.detach().fill_(torch.nan if value.is_floating_point() else 0)
            for value, before in self._before.values():
                value.detach().copy_(before)

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, kept in self._steps:
            result = func(*args, **kwargs)
            for target, value in zip(kept, _tensors(result), strict=True):
                if _memory(target) != _memory(value):
                    target.detach().copy_(value)


def _tensors(value: Any) -> list[Tensor]:
    return [each for each in tree_leaves(value) if isinstance(each, Tensor)]


def _memory(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()
