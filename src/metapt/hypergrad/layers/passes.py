"""What a running backward pass asks of an operation that is written in Python.

torch's own operations ask the engine which of their derivatives the pass uses; `needs_input_grad` only says which ones some pass
may use. The product with the mixed derivative goes through the weights' operations without using the weights' derivatives, a
third of its work. And the gradient of the PT loss is there to be differentiated: mostly nobody reads its value.

Both answers hold for one pass of the engine only, and each pass has a number of its own. So passes in other threads, or inside
that pass, are not affected.
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
    """Whether the running pass uses the derivative w.r.t. input `index` of a `torch.autograd.Function`; True where in doubt.

    Args:
        context: of its `backward`.
        index: of a tensor among the inputs, all those before it being tensors too.
    """
    if not context.needs_input_grad[index]:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(context.next_functions[index][0]))
    except (AttributeError, RuntimeError):  # the engine refuses to answer for a leaf whose gradient the pass returns
        return True


def unread(loss: Tensor, leaves: Iterable[Tensor]) -> RemovableHandle:
    """Within, a pass through `loss` may return NaN for the gradients w.r.t. leaves; the gradients' own derivatives are right.

    A leaf with a hook is left out, since the hook reads the gradient; so are all in anomaly mode, which stops at a NaN.
    """
    nodes: list[Any] = [get_gradient_edge(leaf).node for leaf in leaves if not leaf._backward_hooks]
    if torch.is_anomaly_enabled():
        nodes = []

    def mark(_: Tensor) -> None:
        for node in nodes:
            node.metadata[_UNREAD] = torch._C._current_graph_task_id()

    return loss.register_hook(mark)  # type: ignore[no-any-return, no-untyped-call]


def read(context: Any, index: int) -> bool:
    """Whether somebody may read the value of the derivative w.r.t. input `index` (see `wanted`) in the running pass."""
    node = context.next_functions[index][0]
    return bool(node.metadata.get(_UNREAD) != torch._C._current_graph_task_id())
