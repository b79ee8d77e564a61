"""Parameters as dictionaries of tensors, vectors as lists of tensors, and products with Jacobians.

Sums, multiples and norms of vectors take all of their tensors at once (torch's `_foreach_` functions): on a GPU the
number of kernels does not depend on the number of parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metapt.hypergrad import modules
from metapt.hypergrad.twice import explain, twice

Params = dict[str, Tensor]
"""Named tensors, in the form that `torch.func.functional_call` takes."""

Vector = list[Tensor]
"""A vector in parameter space: one tensor per parameter, in the order of the parameters."""


class Pretrained(NamedTuple):
    """The result of pre-training.

    Attributes:
        encoder: kept for fine-tuning.
        head: the PT head, which fine-tuning does not use.
        buffers: tensors that are not trained, such as the statistics of BatchNorm.
    """

    encoder: Params
    head: Params
    buffers: Params = {}

    @classmethod
    def from_modules(cls, encoder: nn.Module, head: nn.Module) -> Pretrained:
        """Return copies of the tensors of two modules.

        Names are those that the modules give. Parameters that do not require a gradient are among the buffers, since
        they are not trained. Names of the head's buffers begin with "head.". A parameter that the encoder uses twice
        (tied weights) is there once, under its first name. One that encoder and PT head share belongs to the encoder:
        PT trains it by the gradients of both uses, and FT uses the encoder's.

        Args:
            encoder: kept for FT; without the head.
            head: the PT head; `torch.nn.Identity()` if there is none.

        Raises:
            TypeError: an argument is no module.
            ValueError: the modules have a part in common, a parameter has no values yet (a lazy module that was not
                called), or a buffer of the head has, with its prefix, the name of a tensor of the encoder.
        """
        return cls(*map(copied, modules.tensors(encoder, head)))

    def load_into(self, encoder: nn.Module, head: nn.Module) -> None:
        """Copy the tensors in place into modules like those that `from_modules` was given, on whatever device.

        Raises:
            TypeError, ValueError: as `from_modules`; or names or shapes differ. Then nothing is copied.
        """
        targets = modules.tensors(encoder, head)
        parts = "parameters of the encoder", "parameters of the PT head", "buffers"
        for target, values, what in zip(targets, self, parts, strict=True):
            modules.check_alike(what, values, target, "modules of one kind")
        for target, values in zip(targets, self, strict=True):
            for name, value in values.items():
                with torch.no_grad():  # a detached sparse tensor is another one
                    target[name].copy_(value)

    def leaves(self) -> Pretrained:
        """Return the same values as new leaves of the autograd graph, with a copy of the buffers."""
        return Pretrained(leaves(self.encoder), leaves(self.head), copied(self.buffers))

    def to(self, device: torch.device | str) -> Pretrained:
        """Return the same values on another device."""
        return Pretrained(*({name: value.to(device) for name, value in part.items()} for part in self))

    def vector(self) -> Vector:
        """Return the parameters of the encoder, then of the head, as one vector."""
        return [*self.encoder.values(), *self.head.values()]


def leaves(params: Params) -> Params:
    """Return the same values as new leaves of the autograd graph, without a copy.

    Raises:
        RuntimeError: as `check_context`; or a tensor was made under `torch.inference_mode`.
    """
    check_context()
    for name, value in params.items():
        if value.is_inference():
            raise RuntimeError(
                f"the parameter {name!r} was made under torch.inference_mode, so that no derivative can be taken: make "
                "it, or a clone() of it, outside"
            )
    return {name: value.detach().requires_grad_() for name, value in params.items()}


def copied(params: Params) -> Params:
    """Return copies of the values outside of any graph."""
    return {name: value.detach().clone() for name, value in params.items()}


def joined(encoder: Params, head: Params) -> Params:
    """Return encoder and PT head as one dictionary, whose names begin with "encoder." and "head."."""
    parts = {"encoder": encoder, "head": head}
    return {f"{part}.{name}": value for part, params in parts.items() for name, value in params.items()}


def parted(weights: Params, like: Pretrained, buffers: Params) -> Pretrained:
    """Invert `joined`, with the names of `like`."""
    encoder = {name: weights[f"encoder.{name}"] for name in like.encoder}
    return Pretrained(encoder, {name: weights[f"head.{name}"] for name in like.head}, buffers)


def detached(params: Params) -> Params:
    """Return the same values detached from any graph, without a copy."""
    return {name: value.detach() for name, value in params.items()}


def like(params: Params, values: Sequence[Tensor]) -> Params:
    """Return `values` as a dictionary with the names of `params`, in the same order."""
    return dict(zip(params, values, strict=True))


def check_context() -> None:
    """Raise a RuntimeError where torch records no graph, or keeps casts of weights that training changes."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "derivatives can't be taken under torch.inference_mode: call this outside of it (torch.no_grad is fine)"
        )
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise RuntimeError(
            "torch.autocast keeps casts of weights that training changes: call this outside of it, with "
            "metapt.Autocast(problem)"
        )


def vjp(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor] | None = None,
    *,
    retain_graph: bool | None = None,
    needed: str = "",
) -> Vector:
    """Return the product of `cotangents` with the Jacobian of `outputs` w.r.t. `inputs`, without a graph.

    Args:
        outputs: tensors of any shape; scalars if `cotangents` is None.
        inputs: leaves or intermediate tensors of the graph.
        cotangents: one tensor per output, of its shape; None for ones.
        retain_graph: as in `torch.autograd.grad`.
        needed: the message of the error if the outputs depend on none of the inputs; empty if that is no error.

    Returns:
        One tensor per input, of its shape; zeros where the outputs do not depend on it.

    Raises:
        RuntimeError: the outputs depend on none of the inputs, and `needed` is given.
    """
    cotangents = [torch.ones_like(output) for output in outputs] if cotangents is None else cotangents
    pairs = [pair for pair in zip(outputs, cotangents, strict=True) if pair[0].requires_grad]
    if not pairs or not inputs:
        return [torch.zeros_like(value) for value in inputs]
    graph_outputs, graph_cotangents = zip(*pairs, strict=True)
    gradients = _products(graph_outputs, graph_cotangents, inputs, keep=bool(retain_graph), graph=False)
    if needed and all(gradient is None for gradient in gradients):
        raise RuntimeError(needed)
    return _filled(gradients, inputs)


def vjp_graph(output: Tensor, inputs: Sequence[Tensor], what: str, cotangent: Tensor | None = None) -> Vector:
    """Return the product of a cotangent with the Jacobian of one output, with a graph, to be differentiated again.

    Args:
        output: a tensor of any shape; a scalar if `cotangent` is None.
        inputs: leaves or intermediate tensors of the graph.
        what: the name of the function that computes the output, for error messages.
        cotangent: of the shape of `output`, requires a gradient; None for ones.

    Returns:
        One tensor per input, of its shape; zeros where the output does not depend on it.

    Raises:
        RuntimeError: the output has no graph, or its derivative can't be differentiated. A further derivative would
            then silently be zero or incomplete.
    """
    if not inputs:
        return []
    if not output.requires_grad:
        raise RuntimeError(
            f"{what} returned a tensor without a graph: it depends on no parameter, or was computed under "
            "torch.no_grad or from detached tensors; compute it from the tensors that were given, with torch's "
            "operations"
        )
    if cotangent is None:
        cotangent = torch.ones_like(output, requires_grad=True)
    with twice(output, inputs, what):
        gradients = _products((output,), (cotangent,), inputs, keep=True, graph=True)
    return _filled(gradients, inputs)


def _products(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor], inputs: Sequence[Tensor], *, keep: bool, graph: bool
) -> tuple[Tensor | None, ...]:
    """Return what `torch.autograd.grad` does, None where the outputs do not depend on an input."""
    try:
        return torch.autograd.grad(
            list(outputs), list(inputs), list(cotangents), retain_graph=keep, create_graph=graph, allow_unused=True
        )
    except RuntimeError as error:
        explain(error)
        raise


def _filled(gradients: Sequence[Tensor | None], inputs: Sequence[Tensor]) -> Vector:
    """Return the gradients with zeros in place of None, and dense ones in place of an embedding's sparse ones."""
    return [
        torch.zeros_like(value) if gradient is None else gradient.to_dense() if gradient.is_sparse else gradient
        for value, gradient in zip(inputs, gradients, strict=True)
    ]


def unconnected(meta: Params) -> str:
    """Return the error message for a PT loss whose gradient depends on no meta-parameter."""
    return (
        f"the gradient of pretrain_loss does not depend on the meta-parameters ({', '.join(map(repr, meta))}), so that "
        "they have no effect on pre-training: use them, as given and not detached, in a term of the loss that depends "
        "on the weights too"
    )


def gpus_of(vector: Iterable[Tensor]) -> list[int]:
    """Return the GPUs that hold tensors, in ascending order."""
    return sorted({value.device.index for value in vector if value.is_cuda})


def zeros_like(vector: Vector) -> Vector:
    """Return zeros of the shapes of `vector`."""
    return [torch.zeros_like(value) for value in vector]


def add(left: Vector, right: Vector, scale: float = 1.0) -> Vector:
    """Return `left + scale * right`."""
    return list(torch._foreach_add(left, right, alpha=scale))


def scaled(vector: Vector, scale: float | Sequence[float] | Tensor) -> Vector:
    """Return the vector times a number, a scalar tensor without a graph, or one number for each of its tensors."""
    return list(torch._foreach_mul(vector, scale))


def mean(vectors: Sequence[Vector]) -> Vector:
    """Return the mean of vectors."""
    return reduce(add, [list(torch._foreach_div(vector, len(vectors))) for vector in vectors])


def dot(left: Vector, right: Vector) -> Tensor:
    """Return the inner product, a scalar tensor."""
    return torch.stack([torch.sum(product) for product in torch._foreach_mul(left, right)]).sum()


def norm(vector: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm over all tensors, a scalar tensor; 0 for an empty vector."""
    if not vector:
        return torch.zeros(())
    total: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(vector))))
    return total


def all_finite(vector: Sequence[Tensor]) -> bool:
    """Return whether the norm of the floating-point tensors is finite; integers are ignored.

    If it is, every number is finite, and none is so large that its square overflows.
    """
    return each_finite(vector)[0]


def each_finite(*vectors: Sequence[Tensor]) -> list[bool]:
    """Return for each vector what `all_finite` does; all norms are read at once, since reading waits for a GPU."""
    floating = [[value for value in vector if value.is_floating_point()] for vector in vectors]
    norms = [norm(vector) for vector in floating if vector]
    read = iter(torch.stack(norms).tolist() if norms else [])
    return [not vector or math.isfinite(next(read)) for vector in floating]
