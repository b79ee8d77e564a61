"""Read pickles of torch's old format without running them.

A pickle is a program. This interpreter only builds literals, containers and descriptions of tensors, and calls nothing.
No file can therefore run code, and the old classes of torch and torch-geometric are not needed. `pickle.Unpickler` with
a `find_class` of our own would let through what acts before or without a class: a memo as large as a number in the file
says, attributes set on the classes that are let through, and keys of dicts whose hash takes years.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from metapt.errors import DataError

_CODES = {"Float": "<f4", "Double": "<f8", "Long": "<i8", "Int": "<i4", "Short": "<i2", "Char": "i1", "Byte": "u1"}
_STORAGES = {f"torch {name}Storage": np.dtype(code) for name, code in _CODES.items()}
_TENSORS = {"torch._utils _rebuild_tensor", "torch._utils _rebuild_tensor_v2"}
_DICTS = {"collections OrderedDict", "torch_geometric.data.data Data"}
_LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
ADVICE = "nothing of it was run; download it again, or copy a whole one there"


@dataclass(frozen=True)
class Storage:
    """The key, item type and number of items of a tensor's storage."""

    key: str
    dtype: np.dtype[Any]
    items: int


@dataclass(frozen=True)
class Tensor:
    """The description of a contiguous tensor that fills its storage."""

    storage: Storage
    shape: tuple[int, ...]


def unpickle(file: BinaryIO) -> Any:
    """Interpret one pickle. Tensors become descriptions, and objects of the class Data dicts of their attributes."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(file):
        name = opcode.name
        if name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            marks.append(len(stack) - int(name[-1]))
        match name:
            case "PROTO":
                pass
            case "MARK":
                marks.append(len(stack))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "EMPTY_LIST" | "EMPTY_DICT":
                stack.append([] if name == "EMPTY_LIST" else {})
            case "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(_above(marks.pop(), stack)))
            case "APPEND" | "APPENDS":
                items = _above(marks.pop() if name == "APPENDS" else -1, stack)
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                items = _above(marks.pop() if name == "SETITEMS" else -2, stack)
                _update(stack[-1], items[::2], items[1::2])
            case "BUILD":
                state = stack.pop()
                _update(stack[-1], state.keys(), state.values())
            case "GLOBAL":
                stack.append(_named(argument))
            case "BINPERSID":
                stack.append(_storage(*stack.pop()))
            case "NEWOBJ" | "REDUCE":
                arguments = stack.pop()
                stack.append(_made(stack.pop(), arguments))
            case "STOP":
                return stack.pop()
            case _ if name in _LITERALS:
                stack.append(argument)
            case _ if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case _:
                raise DataError(f"its pickle has the instruction {name}, which tensors and containers don't need")
    raise DataError("its pickle has no end")


def _above(start: int, stack: list[Any]) -> list[Any]:
    values = stack[start:]
    del stack[start:]
    return values


def _update(target: Any, keys: Iterable[Any], values: Iterable[Any]) -> None:
    if not isinstance(target, dict) or not all(isinstance(key, str) for key in keys):  # others could be slow to hash
        raise DataError("its pickle has a dict or an object with something else than names for keys")
    target.update(zip(keys, values, strict=True))


def _named(name: str) -> str:
    """Return the name, module and attribute, of an object that a pickle refers to, if it is a legal one."""
    if name not in _STORAGES.keys() | _TENSORS | _DICTS:
        asked = name.replace(" ", ".")[:99]
        raise DataError(f"its pickle asks for {asked!r}, and only tensors and containers are read")
    return name


def _made(name: Any, arguments: Any) -> dict[str, Any] | Tensor:
    # What is no string could be slow to hash.
    if not (isinstance(name, str) and (name in _TENSORS or (name in _DICTS and arguments == ()))):
        raise DataError("its pickle calls what makes no tensor and no container")
    if name in _DICTS:
        return {}
    storage, offset, shape, strides, *_ = arguments
    legal = all(isinstance(size, int) and size >= 0 for size in (offset, *shape, *strides))
    if not (legal and isinstance(storage, Storage) and len(shape) <= 2):
        raise DataError("a tensor's storage or shape is illegal")
    contiguous = (shape[-1], 1)[-len(shape) :] if shape else ()
    in_order = all(size < 2 or stride == other for size, stride, other in zip(shape, strides, contiguous, strict=True))
    if offset != 0 or math.prod(shape) != storage.items or not in_order:
        raise DataError(f"a tensor is not the whole of its storage of {storage.items} items, row by row")
    return Tensor(storage, tuple(shape))


def _storage(what: Any, kind: Any, key: Any, _: Any, items: Any, view: Any = None) -> Storage:
    legal = what == "storage" and all(isinstance(each, str) for each in (kind, key)) and isinstance(items, int)
    if not legal or kind not in _STORAGES or items < 0 or view is not None:
        raise DataError("the description of a storage is illegal")
    return Storage(key, _STORAGES[kind], items)
