"""Which derivatives of an operation written in Python the running backward pass uses.

torch's own operations ask the autograd engine which of their derivatives the running pass uses; `needs_input_grad` says
only which ones some pass may use. The product with the mixed derivative does not use the derivatives w.r.t. the
weights, a third of its work. The gradient of the PT loss is computed to be differentiated, and its value is often
unused.

Both answers hold for one pass of the engine only, since each pass has an id of its own. Passes in other threads, or
nested in that pass, are not affected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

_UNREAD = "metapt: the pass in which the gradient is not read"


def wanted(context: Any, index: int) -> bool:
    """Return whether the running pass uses the derivative w.r.t. an input of a Function; True if that is unknown.

    Args:
        context: the context of the `backward` of a `torch.autograd.Function`.
        index: the position of the input; all inputs before it must be tensors, too.
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
