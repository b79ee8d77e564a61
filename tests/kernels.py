"""Operators of torch that each launch a kernel on a GPU, counted on the CPU."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_WITHOUT_KERNEL = {"_local_scalar_dense", "_unsafe_view", "clone", "empty", "empty_like", "is_same_size", "lift_fresh"}
"""Operators beside views that compute nothing; a GPU copies without a kernel."""


def launches(step: Callable[[], object], without: Collection[str] = ()) -> Counter[str]:
    """Return how often a step launches each operator, leaving out what functions of the names `without` launch.

    An operator on lists of tensors (`_foreach_`) counts once where a GPU can compute it in one kernel, else once for
    each tensor. The optimisers of torch use these operators, as they do on a GPU.
    """
    counting = _Counting(without)
    with patch("torch.optim.optimizer._get_foreach_kernels_supported_devices", lambda: ["cpu"]), counting:
        step()
    return counting.counts


class _Counting(TorchDispatchMode):
    def __init__(self, without: Collection[str]) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._without = without

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not (func.is_view or name in _WITHOUT_KERNEL or name.startswith("_record_function") or self._left_out()):
            self.counts[name] += _kernels([arg for arg in args if isinstance(arg, list)]) if "_foreach" in name else 1
        return func(*args, **(kwargs or {}))

    def _left_out(self) -> bool:
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_name not in self._without:
            frame = frame.f_back
        return frame is not None


def _kernels(lists: list[list[Any]]) -> int:
    """Return the number of kernels of an operator on lists: one if their tensors are dense and laid out alike."""
    rows = list(zip(*(each for each in lists if isinstance(each[0], Tensor)), strict=True))
    alike = all(len({(value.shape, value.stride()) for value in row}) == 1 and _dense(row[0]) for row in rows)
    return 1 if alike and len({value.dtype for row in rows for value in row}) == 1 else len(rows)


def _dense(value: Tensor) -> bool:
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return last + 1 == value.numel()
