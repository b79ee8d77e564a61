"""Check that a derivative can be differentiated again.

`torch.autograd.function.once_differentiable` and functions compiled by `torch.compile` raise an error only where the
derivative with respect to all leaves is asked for: `torch.autograd.grad` avoids their error otherwise and returns a
wrong number. `twice` finds them beforehand. A derivative that keeps its graph can be wrong all the same: `trial`
compares it with differences. `explain` says what to do where torch itself has no derivative.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, get_gradient_edge


@contextmanager
def twice(output: Tensor, inputs: Iterable[Tensor], what: str) -> Iterator[None]:
    """Check that the derivative of `output` w.r.t. `inputs`, taken inside the context, has its full graph.

    The cotangent of the derivative must require a gradient; `what` names the function of the output in errors.

    Raises:
        RuntimeError: a function between inputs and output was made by `torch.compile`, is marked `once_differentiable`,
            or detaches its derivative.
    """
    ends = {get_gradient_edge(value).node for value in inputs if value.requires_grad}
    with ExitStack() as hooks:
        for node in _between(output.grad_fn, ends):
            if isinstance(node, BackwardCFunction):
                _refuse(node, what)
                hooks.enter_context(node.register_hook(_attached(node._forward_cls.__qualname__, what)))
        yield


def leaves_of(output: Tensor, given: Iterable[Tensor]) -> list[Tensor]:
    """Return the leaves that require a gradient and that the graph of a tensor reaches, not only by those `given`."""
    ends = {get_gradient_edge(value).node for value in given if value.requires_grad}
    reached = _reached(get_gradient_edge(output).node, ends) if output.requires_grad else []
    return [node.variable for node in reached if hasattr(node, "variable")]


def _reached(start: Node | None, ends: Set[Node] = frozenset()) -> list[Any]:
    """Return the nodes of a graph, from its end to its leaves, or to `ends`, which are left out."""
    found: dict[Any, None] = {}
    rest = [start]
    while rest:
        node = rest.pop()
        if node is not None and node not in ends and node not in found:
            found[node] = None
            rest += [following for following, _ in node.next_functions]
    return list(found)


def _between(start: Node | None, ends: Set[Node]) -> set[Node]:
    """Return the nodes of a graph on all paths from `start` to `ends`, without `ends`."""
    before = defaultdict(list)
    for node in _reached(start, ends):
        for following, _ in node.next_functions:
            before[following].append(node)
    found: set[Node] = set()
    back = [node for end in ends for node in before[end]]
    while back:
        node = back.pop()
        if node not in found:
            found.add(node)
            back += before[node]
    return found


def suspects(output: Tensor) -> tuple[list[str], list[str]]:
    """Return what the graph of a tensor has whose second derivative is wrong in torch, and names of other functions."""
    known: dict[str, None] = {}
    functions: dict[str, None] = {}
    for node in _reached(output.grad_fn):
        function = getattr(node, "_forward_cls", None)  # of a torch.autograd.Function
        if node.name() in _KNOWN:
            known[_KNOWN[node.name()]] = None
        elif function is not None and not function.__module__.startswith("metapt."):
            functions[function.__qualname__] = None
        elif "CppNode" in node.name():
            functions[node.name().removeprefix("torch::autograd::CppNode<").removesuffix(">")] = None
    return list(known), list(functions)


_KNOWN = {
    f"{name}Backward{number}": f"{what}, whose second derivative is wrong in torch; write the norm by hand: {how}"
    for number in ("", 0, 1)
    for name, (what, how) in {
        "WeightNormInterface": ("torch's weight_norm", "g * v / v.norm(dim=1, keepdim=True)"),
        "NativeLayerNormBackward": ("the derivative of LayerNorm (layer_norm)", "with mean() and rsqrt()"),
        "NativeBatchNormBackward": ("the derivative of BatchNorm (batch_norm)", "with mean() and rsqrt()"),
    }.items()
}
"""Operations of torch with wrong second derivatives, by the names of their nodes, with advice."""


def _refuse(node: Any, what: str) -> None:
    """Raise a RuntimeError if the backward of a Function can't be differentiated."""
    function = node._forward_cls
    if function.__name__ == "CompiledFunction":  # of AOTAutograd, on which all backends but "eager" are built
        advice = 'a function that torch.compile made; call the function itself, or compile it with backend="eager"'
    elif _is_once(inspect.unwrap(function.backward, stop=_is_once)):
        name = function.__qualname__
        advice = f"{name}, whose backward is once_differentiable; use operations that torch differentiates twice"
    else:
        return
    raise RuntimeError(f"{what} can't be differentiated twice, as a hypergradient needs it: it calls {advice}")


def _is_once(function: Any) -> bool:
    return getattr(function, "__code__", None) is _ONCE


def _attached(name: str, what: str) -> Callable[..., None]:
    """Return a hook of the backward of a Function that raises a RuntimeError if a gradient has lost its graph."""

    def check(gradients: tuple[Tensor | None, ...], cotangents: tuple[Tensor | None, ...]) -> None:
        # A derivative is linear in its cotangent: if the cotangent has a graph and the derivative has none, the
        # derivative was detached, unless it is zero.
        given = any(value is not None and value.requires_grad for value in cotangents)
        if given and any(value is not None and not value.requires_grad and value.any() for value in gradients):
            raise RuntimeError(
                f"{what} can't be differentiated twice, as a hypergradient needs it: the backward of {name}, which it "
                "calls, works with detached tensors, under torch.no_grad or outside of torch; write it with torch's "
                "operations on the tensors that it is given and has saved"
            )

    return check


_ONCE = torch.autograd.function.once_differentiable(lambda context: None).__code__
"""The code object of every backward that torch's `once_differentiable` has wrapped."""


_NO_DERIVATIVE = re.compile(r"derivative for (?:aten::|')([^']+?)'? is not implemented")
_CONSTANT = re.compile(r"The function '(\w+)' is not differentiable with respect to argument '(\w+)'")
_SPARSE = re.compile(r"sparse gradients|add\(sparse")
_REMEDIES = {
    "scaled_dot_product": "put the training into `with torch.nn.attention.sdpa_kernel("
    "torch.nn.attention.SDPBackend.MATH):`, whose attention torch differentiates twice",
    "embedding_bag": "take torch.nn.Embedding and the mean or the sum of its output over the words",
    "cudnn_rnn": "put the training into `with torch.backends.cudnn.flags(enabled=False):`",
    "cdist": 'take torch.cdist(..., compute_mode="use_mm_for_euclid_dist"), or compute the distances from differences',
    "pdist": "compute the distances from differences, as in (x[:, None] - x).square().sum(-1)",
    "channel_shuffle": "shuffle by x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)",
}


def explain(error: RuntimeError) -> None:
    """Raise a RuntimeError that says what to do, if `error` is torch's about an operation without a derivative."""
    message = str(error)
    found = _NO_DERIVATIVE.search(message)
    if found is not None:
        name = found[1]
        advice = next((remedy for part, remedy in _REMEDIES.items() if part in name), None)
        order = "second derivative, which a hypergradient needs" if name.endswith("_backward") else "derivative"
        raise RuntimeError(
            f"a function of the problem calls an operation of which torch has no {order}: {name}. "
            f"Instead: {advice or 'write it with operations that torch differentiates twice'}"
        ) from error
    if found := _CONSTANT.search(message):
        raise RuntimeError(
            f"torch has no derivative of {found[1]} w.r.t. its argument {found[2]}, which has a hyperparameter or a "
            'parameter. In place of weights of a loss: reduction="none", times the weight of each example or class'
        ) from error
    if _SPARSE.search(message):
        raise RuntimeError(
            f"an embedding gives sparse gradients, and torch says: {message}. Make it with sparse=False; SGD without "
            "weight decay takes sparse gradients, too"
        ) from error
