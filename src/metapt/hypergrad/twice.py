"""Check that a derivative can be differentiated again.

`torch.autograd.function.once_differentiable` and functions compiled by `torch.compile` raise an error only where the
derivative with respect to all leaves is asked for: `torch.autograd.grad` avoids their error otherwise and returns a
wrong number. `twice` finds them beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, get_gradient_edge


@contextmanager
def twice(output: Tensor, inputs: Iterable[Tensor], what: str) -> Iterator[None]:
    """Within, check that a derivative of `output` w.r.t. `inputs` is made with its graph, so that its own derivative is right.

    The derivative is to be taken with a cotangent that requires a gradient.

    Args:
        output: has a graph.
        inputs: leaves or intermediate tensors.
        what: computes the output, for messages.

    Raises:
        RuntimeError: a function between them was made by `torch.compile`, is marked `once_differentiable`, or cuts the graph.
    """
    ends = {get_gradient_edge(value).node for value in inputs if value.requires_grad}
    with ExitStack() as hooks:
        for node in _between(output.grad_fn, ends):
            if isinstance(node, BackwardCFunction):
                _refuse(node, what)
                hooks.enter_context(node.register_hook(_attached(node, what)))
        yield


def _refuse(node: Any, what: str) -> None:
    """Raise a RuntimeError where the backward of a Function can't be differentiated."""
    function = node._forward_cls
    if function.__name__ == "CompiledFunction":  # of AOTAutograd, on which all backends but "eager" are built
        advice = 'a function that torch.compile made; call the function itself, or compile it with backend="eager"'
    elif function.backward.__code__ is _ONCE:
        advice = f"{function.__qualname__}, whose backward is once_differentiable; use operations that torch differentiates twice"
    else:
        return
    raise RuntimeError(f"{what} can't be differentiated twice, as a hypergradient needs it: it calls {advice}")


def _attached(node: Any, what: str) -> Callable[..., None]:
    """A hook of the backward of a Function that raises a RuntimeError where it returns what has no graph."""
    name = node._forward_cls.__qualname__

    def check(gradients: tuple[Tensor | None, ...], cotangents: tuple[Tensor | None, ...]) -> None:
        # A derivative is linear in its cotangent: what has no graph while its cotangent has one was cut off, unless it is zero.
        given = any(value is not None and value.requires_grad for value in cotangents)
        if given and any(value is not None and not value.requires_grad and value.any() for value in gradients):
            raise RuntimeError(
                f"{what} can't be differentiated twice, as a hypergradient needs it: the backward of {name}, which it calls, "
                "works with detached tensors, under torch.no_grad or outside of torch; write it with torch's operations on the "
                "tensors that it is given and has saved"
            )

    return check


def _between(start: Node | None, ends: set[Node]) -> set[Node]:
    """The nodes of a graph on the ways from one node to the ends."""
    before: dict[Node, list[Node]] = {}
    rest = [start]
    while rest:
        node = rest.pop()
        if node is None or node in ends:
            continue
        for following, _ in node.next_functions:
            if following is not None and following not in before:
                before[following] = []
                rest.append(following)
            if following is not None:
                before[following].append(node)
    found: set[Node] = set()
    back = [node for end in ends for node in before.get(end, [])]
    while back:
        node = back.pop()
        if node not in found:
            found.add(node)
            back += before.get(node, [])
    return found


_ONCE = torch.autograd.function.once_differentiable(lambda context: None).__code__
"""The code that each backward with torch's mark has."""
