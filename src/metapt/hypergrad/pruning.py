"""Which derivatives a pass need not compute.

torch's own operations ask the engine which of their derivatives somebody wants; operations written in Python can't. The product
with the mixed derivative goes through the weights' operations without wanting the weights' derivatives, a third of its work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor

_UNWANTED: Counter[int] = Counter()


@contextmanager
def unwanted(weights: Iterable[Tensor]) -> Iterator[None]:
    """Within, derivatives w.r.t. these tensors may be left out (and are None) by operations that ask `wanted`."""
    addresses = [weight.data_ptr() for weight in weights]
    _UNWANTED.update(addresses)
    try:
        yield
    finally:
        _UNWANTED.subtract(addresses)


def wanted(weight: Tensor) -> bool:
    """Whether somebody may want the derivative w.r.t. this tensor."""
    return _UNWANTED[weight.data_ptr()] <= 0
