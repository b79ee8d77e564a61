"""Which derivatives a pass need not compute.

torch's own operations ask the engine which of their derivatives somebody wants; operations written in Python can't. The product
with the mixed derivative goes through the weights' operations without wanting the weights' derivatives, a third of its work.
And the gradient of the PT loss is there to be differentiated: mostly nobody reads its value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor

_UNWANTED: Counter[int] = Counter()
_UNREAD: Counter[int] = Counter()


def unwanted(weights: Iterable[Tensor]) -> AbstractContextManager[None]:
    """Within, derivatives w.r.t. these tensors may be left out (and are None) by operations that ask `wanted`."""
    return _marked(_UNWANTED, weights)


def wanted(weight: Tensor) -> bool:
    """Whether somebody may want the derivative w.r.t. this tensor."""
    return _UNWANTED[weight.data_ptr()] <= 0


def unread(weights: Iterable[Tensor]) -> AbstractContextManager[None]:
    """Within, derivatives w.r.t. these tensors may be NaN from operations that ask `read`; their own derivatives are right."""
    return _marked(_UNREAD, weights)


def read(weight: Tensor) -> bool:
    """Whether somebody may read the value of the derivative w.r.t. this tensor."""
    return _UNREAD[weight.data_ptr()] <= 0


@contextmanager
def _marked(marks: Counter[int], weights: Iterable[Tensor]) -> Iterator[None]:
    addresses = [weight.data_ptr() for weight in weights]
    marks.update(addresses)
    try:
        yield
    finally:
        marks.subtract(addresses)
