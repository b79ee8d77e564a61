"""Parts of a network whose intermediate results are computed anew for each derivative, which saves memory.

`torch.utils.checkpoint` saves nothing where a derivative is differentiated again: the graph of the derivative holds
what was recomputed. Here the derivative of a part is one node of that graph, which holds the part's inputs and the
cotangent only. A first derivative computes the part once more, a second derivative twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metapt.hypergrad.layers.passes import once_differentiable, read, wanted
from metapt.hypergrad.layers.precision import as_forward, remember_precision
from metapt.hypergrad.params import Params

Part = Callable[..., Tensor]


class _Again(NamedTuple):
    """How a part is computed again: the function, and the type to which autocast casts (None where it is off)."""

    function: Part
    device: str
    lower: torch.dtype | None

    @contextmanager
    def graph(self) -> Iterator[None]:
        enabled = self.lower is not None
        with torch.enable_grad(), torch.autocast(self.device, self.lower, enabled=enabled):
            yield


def recomputed(first: Part, again: Part, *tensors: Tensor) -> Tensor:
    """Return `first(*tensors)`, without its intermediate results in memory; it can be differentiated twice.

    `first` may also update buffers; `again` computes the same and updates nothing.
    """
    if not torch.is_grad_enabled():  # no graph is needed; forward mode comes here, too, since `_Value` has no jvp
        return first(*tensors)
    kind = tensors[0].device.type
    lower = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    result: Tensor = _Value.apply(*tensors, first, _Again(again, kind, lower))  # type: ignore[no-untyped-call]
    return result


def recomputed_part(part: Callable[..., Tensor], parameters: Params, buffers: Params, *inputs: Tensor) -> Tensor:
    """Return `part({**parameters, **buffers}, *inputs)` as `recomputed` does; the part updates its buffers once."""
    kept = {name: value.clone() for name, value in buffers.items()}
    count = len(inputs)

    def call(tensors: Sequence[Tensor], buffers: Params) -> Tensor:
        return part(dict(zip(parameters, tensors[count:], strict=True)) | buffers, *tensors[:count])

    return recomputed(
        lambda *tensors: call(tensors, buffers),
        lambda *tensors: call(tensors, {name: value.clone() for name, value in kept.items()}),
        *inputs,
        *parameters.values(),
    )


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, *arguments: Any) -> Tensor:
        *tensors, first, context.again = arguments
        remember_precision(context)
        context.save_for_backward(*tensors)
        result: Tensor = first(*tensors)
        return result

    @staticmethod
    @as_forward
    def backward(context: Any, *cotangents: Tensor) -> Any:
        tensors = context.saved_tensors
        asked = tuple(wanted(context, index) for index in range(len(tensors)))
        valued = tuple(asked[index] and read(context, index) for index in range(len(tensors)))
        gradients = _Derivative.apply(cotangents[0], *tensors, context.again, asked, valued)  # type: ignore[no-untyped-call]
        return *(value if use else None for value, use in zip(gradients, asked, strict=True)), None, None


class _Derivative(torch.autograd.Function):
    """The first derivative: zeros where it is not asked for, NaN where its value is not read."""

    @staticmethod
    def forward(context: Any, dy: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        *tensors, context.again, context.asked, valued = arguments
        remember_precision(context)
        context.save_for_backward(dy, *tensors)
        with context.again.graph():
            leaves = _leaves(tensors, valued)
            result = context.again.function(*leaves)
        gradients = iter(_grad([result], _chosen(leaves, valued), [dy]))
        return tuple(
            next(gradients) if use else value.new_full((), torch.nan if asked else 0.0).expand_as(value)
            for value, use, asked in zip(tensors, valued, context.asked, strict=True)
        )

    @staticmethod
    @once_differentiable
    @as_forward
    def backward(context: Any, *cotangents: Tensor) -> Any:
        dy, *tensors = context.saved_tensors
        inputs = [wanted(context, index + 1) for index in range(len(tensors))]
        needed = [use or asked for use, asked in zip(inputs, context.asked, strict=True)]
        with context.again.graph():
            dy = dy.detach().requires_grad_()
            leaves = _leaves(tensors, needed)
            result = context.again.function(*leaves)
        with torch.enable_grad():
            first = torch.autograd.grad(result, _chosen(leaves, context.asked), dy, create_graph=True)
        second = iter(_grad(first, [dy, *_chosen(leaves, inputs)], _chosen(cotangents, context.asked)))
        return next(second), *(next(second) if use else None for use in inputs), None, None, None


def _leaves(tensors: Sequence[Tensor], differentiable: Sequence[bool]) -> list[Tensor]:
    return [value.detach().requires_grad_(use) for value, use in zip(tensors, differentiable, strict=True)]


def _chosen(values: Sequence[Tensor], chosen: Sequence[bool]) -> list[Tensor]:
    return [value for value, use in zip(values, chosen, strict=True) if use]


def _grad(outputs: Sequence[Tensor], inputs: list[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor]:
    """Return the derivatives of the outputs; zeros where they do not depend on an input."""
    if not inputs:
        return []
    found = torch.autograd.grad(list(outputs), inputs, list(cotangents), allow_unused=True)
    return [torch.zeros_like(value) if each is None else each for value, each in zip(inputs, found, strict=True)]
