"""What the backward of an operation written in Python needs to know, and the end of its derivatives.

torch's own operations ask the autograd engine which of their derivatives the running pass uses; `needs_input_grad` says
only which ones some pass may use. The product with the mixed derivative does not use the derivatives w.r.t. the
weights, a third of its work. The gradient of the PT loss is computed to be differentiated, and its value is often
unused.

Both answers hold for one pass of the engine only, since each pass has an id of its own. Passes in other threads, or
nested in that pass, are not affected. torch asks by the same private names in `torch.autograd.graph`; no public call
says it.

A derivative that can't be differentiated again raises an error at the attempt. torch's own decorator,
`torch.autograd.function.once_differentiable`, does so only where the derivative with respect to all leaves is asked
for: `torch.autograd.grad` avoids the error otherwise and returns a wrong number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

_UNREAD = "metapt: the pass in which the gradient is not read"


def wanted(context: Any, index: int) -> bool:
    """Return whether the running pass uses the derivative w.r.t. an input of a Function; True if that is unknown.

    All inputs before the one at `index` must be tensors, too.
    """
    if not context.needs_input_grad[index]:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(context.next_functions[index][0]))
    except (AttributeError, RuntimeError):  # the engine refuses to answer for a leaf whose gradient the pass returns
        return True


def unread(loss: Tensor, leaves: Iterable[Tensor]) -> RemovableHandle:
    """Allow passes through `loss` to return NaN as gradients w.r.t. `leaves`; the gradients' derivatives stay right.

    Leaves with a hook are excluded, since the hook reads the gradient. In anomaly mode, which stops at a NaN, all
    leaves are excluded.

    Returns:
        A context manager; the permission ends when it is closed.
    """
    nodes: list[Any] = [get_gradient_edge(leaf).node for leaf in leaves if not leaf._backward_hooks]
    if torch.is_anomaly_enabled():
        nodes = []

    def mark(_: Tensor) -> None:
        for node in nodes:
            node.metadata[_UNREAD] = torch._C._current_graph_task_id()

    return loss.register_hook(mark)  # type: ignore[no-any-return, no-untyped-call]


def read(context: Any, index: int) -> bool:
    """Return whether the value of the derivative w.r.t. an input (see `wanted`) may be read after the running pass."""
    node = context.next_functions[index][0]
    return bool(node.metadata.get(_UNREAD) != torch._C._current_graph_task_id())


_Backward = Callable[..., tuple[Tensor | None, ...]]


def once_differentiable(backward: _Backward) -> _Backward:
    """Wrap the `backward` of a `torch.autograd.Function`, so that every derivative of it raises a RuntimeError."""

    @functools.wraps(backward)
    def checked(context: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            gradients = backward(context, *cotangents)
        if not torch.is_grad_enabled():
            return gradients
        made = [value for value in gradients if value is not None]
        ends = iter(_End.apply(len(made), *made, *cotangents, *context.saved_tensors))  # type: ignore[no-untyped-call]
        return tuple(None if value is None else next(ends) for value in gradients)

    return checked


class _End(torch.autograd.Function):
    """The identity on the first `count` tensors, as functions of all tensors, whose derivative raises an error."""

    @staticmethod
    def forward(context: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tensors[:count]

    @staticmethod
    def backward(context: Any, *cotangents: Tensor) -> Any:
        raise RuntimeError(
            "BatchNorm, Convolution and recomputed parts of metapt have no third derivative: use torch.nn's own "
            "layers, and no recomputation."
        )
