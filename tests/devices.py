"""A rehearsed accelerator: tensors with the numbers of the CPU, and with the rules and the waits of a CUDA device.

A program on this device computes what it computes on the CPU. A tensor of the CPU among those of the device is an error
where CUDA raises one, and each time that the program would wait for the device is counted by its place.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

NAME = "meta"
"""Autograd knows a device of this name on each machine, and the package has no tensors there."""
_SOURCE = str(Path(__file__).parents[1] / "src" / "metapt")
_HELPERS = str(Path(_SOURCE) / "hypergrad" / "params.py")

aten = torch.ops.aten
READING = {
    aten._linalg_check_errors.default,
    aten._local_scalar_dense.default,  # item(), float(), int(), bool()
    aten._unique2.default,
    aten.bincount.default,
    aten.equal.default,
    aten.masked_select.default,
    aten.nonzero.default,
}
"""Operations whose result, or the size of it, is known on the CPU when they return."""
_INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


def rehearse(prepare: Callable[[str], Callable[[], Any]], *, rtol: float = 0.0, atol: float = 0.0) -> dict[str, int]:
    """Return how often `prepare(device)()` waits for the device in its second call, by place.

    A place is the innermost function of the package, as `module: function`.

    Args:
        prepare: takes the name of a device and returns a step, which returns tensors that must be on the device.
        rtol, atol: tolerances of the comparison with the same steps on the CPU.

    Raises:
        AssertionError: a tensor of the CPU is among those of the device, or the numbers are not those of the CPU.
    """
    waits: Counter[str] = Counter()
    with rehearsal(waits):
        step = prepare(NAME)
        step()  # constants are copied to the device once
        waits.clear()
        found = tree_leaves(step())
        assert all(isinstance(value, OnDevice) for value in found if isinstance(value, Tensor))
    step = prepare("cpu")
    step()
    torch.testing.assert_close(numbers(found), tree_leaves(step()), rtol=rtol, atol=atol, equal_nan=True)
    return dict(waits)


def queue_on_gpu(prepare: Callable[[str], Callable[[], Any]]) -> None:
    """Run `prepare("cuda")()` twice; raise a RuntimeError if the second call waits for the GPU."""
    step = prepare("cuda")
    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def rehearsal(waits: Counter[str]) -> Iterator[None]:
    """Make the device known to torch, and count waits for it."""
    supported = torch.utils._foreach_utils._get_fused_kernels_supported_devices()
    autocast, enabled = torch.autocast, torch.is_autocast_enabled
    with (
        patch.object(torch, "Generator", _Generator),
        patch.object(
            torch, "autocast", lambda kind, *a, **k: nullcontext() if kind == NAME else autocast(kind, *a, **k)
        ),
        patch.object(torch, "is_autocast_enabled", lambda kind: kind != NAME and enabled(kind)),
        patch("torch.optim.optimizer._get_fused_kernels_supported_devices", lambda: [*supported, NAME]),
        _Functions(),
        _Operations(waits),
    ):
        yield


def numbers(value: Any) -> Any:
    """Return a value with the tensors of the CPU that hold the numbers of the device's tensors."""
    return tree_map_only(OnDevice, attrgetter("data_"), value)


class OnDevice(Tensor):
    """A tensor that says it is on the device; `data_` holds its numbers."""

    data_: Tensor

    @staticmethod
    def __new__(cls, data: Tensor) -> OnDevice:
        layout = {"strides": data.stride(), "storage_offset": data.storage_offset()}
        made = Tensor._make_wrapper_subclass(cls, data.size(), dtype=data.dtype, device=NAME, **layout)
        made.data_ = data
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on the rehearsed device, outside of its rehearsal")


class _Generator(torch.Generator):
    """A generator that says it is on the device that it was made for, and draws what the CPU's draws."""

    def __new__(cls, device: torch.device | str = "cpu") -> _Generator:
        made = super().__new__(cls, "cpu")
        made._place = torch.device(device)
        return made

    @property
    def device(self) -> torch.device:
        return self._place


class _Functions(TorchFunctionMode):
    """Functions of torch that don't reach `_Operations` as they do on other devices."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and _is_device(kwargs.get("device")):
            return func(*args, **{**kwargs, "device": "cpu"}).to(NAME)
        if func is Tensor.pin_memory:
            pinned = args[0].clone()
            pinned.is_pinned_ = True
            return pinned
        if func is Tensor.tolist and isinstance(args[0], OnDevice):
            return args[0].cpu().tolist()
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], OnDevice):
            return func(args[0], _without_lists(args[1]), *args[2:])
        return func(*args, **kwargs)


class _Operations(TorchDispatchMode):
    """Compute with the numbers of the device's tensors, by the device's rules."""

    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors: list[Tensor] = []
        _mapped(Tensor, tensors.append, (args, kwargs))
        there = [value for value in tensors if isinstance(value, OnDevice)]
        here = [value for value in tensors if not isinstance(value, OnDevice)]
        target = kwargs.get("device")
        if not there and not _is_device(target):
            return func(*args, **kwargs)
        own_args, own_kwargs = _mapped(OnDevice, attrgetter("data_"), (args, kwargs))
        own_kwargs |= {} if target is None else {"device": "cpu"}
        if func is aten._to_copy.default and target is not None and _is_device(target) != bool(there):
            self._copy(tensors[0], kwargs.get("non_blocking", False))
            return OnDevice(func(*own_args, **own_kwargs)) if here else func(*own_args, **own_kwargs)
        if func is aten.copy_.default and here:
            self._copy(args[1], args[2] if len(args) > 2 else False)
        elif func in _INDEXING and here and isinstance(args[0], OnDevice):
            self._waits[_place()] += 1  # the indices are copied to the device
        elif any(value.dim() or torch.Tag.pointwise not in func.tags for value in here):
            raise AssertionError(f"{func} takes a tensor of the CPU and one of the device, in {_place()}")
        elif _reads(func, args, kwargs):
            self._waits[_place()] += 1
        if func is aten._efficientzerotensor.default:  # it has no memory, which kernels would read here
            func = aten.zeros.default
        result = _mapped(Tensor, OnDevice, func(*own_args, **own_kwargs))
        return return_and_correct_aliasing(func, args, kwargs, result)

    def _copy(self, source: Tensor, non_blocking: bool) -> None:
        """Count a copy between CPU and device, unless it is one that the CPU does not wait for."""
        if not (non_blocking and getattr(source, "is_pinned_", False)):
            self._waits[_place()] += 1


def _mapped(kind: type[Tensor], change: Callable[[Any], Any], value: Any) -> Any:
    """Return `tree_map_only` of what operations take and return, several times faster."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([_mapped(kind, change, each) for each in value])
    if isinstance(value, dict):
        return {name: _mapped(kind, change, each) for name, each in value.items()}
    return value


def _reads(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether the CPU waits for an operation on the device."""
    if func in _INDEXING:  # of a mask the device counts the elements that are true
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    if func is aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is None
    return func in READING


def _is_device(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _without_lists(index: Any) -> Any:
    """Return an index with tensors of the CPU in place of lists, as torch makes them."""
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(torch.tensor(part) if isinstance(part, list) else part for part in parts)


def _place() -> str:
    """Return the innermost running function of the package, but for those of `hypergrad.params`, which all use."""
    frame = sys._getframe()
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if file.startswith(_SOURCE) and file != _HELPERS:
            module = Path(file).relative_to(_SOURCE).with_suffix("")
            return f"{'.'.join(module.parts)}: {name}"
        frame = frame.f_back
    return "outside of the package"
