"""The tensors of `torch.nn.Module`s as dictionaries: which are trained, and to which module a shared one belongs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

HEAD = "head."
"""Prefix of the names of the PT head's buffers, which are in one dictionary with those of the encoder."""

_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule"}


class Calling(nn.Module):
    """Modules as one, which calls a function of them. So `torch.func.functional_call` replaces the tensors of all."""

    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return `function(*modules, *arguments)`."""
        return function(*self._modules.values(), *arguments)


def tensors(encoder: nn.Module, head: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return the tensors of `Pretrained.from_modules`, not copied: of the encoder, of the PT head, and buffers."""
    for what, module in {"encoder": encoder, "PT head": head}.items():
        check_module(what, module)
    common = {id(part) for part in encoder.modules()} & {id(part) for part in head.modules()}
    if common:
        name = next(name or "the whole head" for name, part in head.named_modules() if id(part) in common)
        raise ValueError(
            f"encoder and PT head are to be two modules, but they have one in common ({name}): give the encoder "
            "without the head. Two modules may share a parameter, as in head.weight = encoder.embedding.weight"
        )
    trained, buffers = own(encoder)
    shared = {id(value) for value in (*trained.values(), *buffers.values())}
    head_trained, head_buffers = (
        {name: value for name, value in part.items() if id(value) not in shared} for part in own(head)
    )
    head_buffers = {HEAD + name: value for name, value in head_buffers.items()}
    twice = [name for name in head_buffers if name in buffers or name in trained]
    if twice:
        raise ValueError(
            f"encoder and PT head both give the name {twice[0]!r} to a tensor: rename a part of the encoder"
        )
    buffers |= head_buffers
    places: dict[int, str] = {}  # in memory, of what is trained
    for part in (trained, head_trained, buffers):
        for name, value in part.items():
            place = value.data_ptr() if value.layout is torch.strided else 0
            if place and place in places:
                raise ValueError(
                    f"{name!r} lies in the memory of the parameter {places[place]!r}; training has a copy of each, and "
                    "they would part: share the parameter itself (b.weight = a.weight), or compute one from the other"
                )
            if part is not buffers:
                places[place] = name
    return trained, head_trained, buffers


def own(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the parameters of a module that require a gradient, and its other tensors, not copied."""
    parameters = dict(module.named_parameters())
    trained = {name: value for name, value in parameters.items() if value.requires_grad}
    fixed = {name: value for name, value in parameters.items() if not value.requires_grad}
    return trained, fixed | dict(module.named_buffers())  # type: ignore[return-value]


def check_module(what: str, module: Any) -> None:
    """Check that something is a module that can be called with other tensors.

    Raises:
        TypeError: it is no module.
        ValueError: a tensor has no values yet, or the module is wrapped for, or distributed over, several processes.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"the {what} is a {type(module).__name__}; legal: a torch.nn.Module (nn.Identity() for none)")
    for name, part in module.named_modules():
        wrapper = next((kind.__name__ for kind in type(part).__mro__ if kind.__name__ in _WRAPPERS), None)
        if wrapper is not None:
            raise ValueError(
                f"{name or 'the whole'} of the {what} is wrapped in {wrapper}, which synchronises the gradients of its "
                "own parameters between processes or devices; PT trains copies of them, which would not be "
                "synchronised. Legal: the module itself, and metapt.distributed(problem) for several processes"
            )
    for name, value in module.named_parameters():
        if type(value.data).__name__ == "DTensor" or type(value).__name__ == "FlatParameter":
            raise ValueError(
                f"{name!r} of the {what} is distributed over several processes (a DTensor, as fully_shard makes it), "
                "which is not supported. Legal: the module before that, whole in each process of metapt.distributed"
            )
    lazy = [name for name, value in (*module.named_parameters(), *module.named_buffers()) if is_lazy(value)]
    if lazy:
        raise ValueError(f"{lazy[0]!r} of the {what} has no values yet: call the {what} once on a minibatch before")


def check_alike(target: dict[str, Tensor], values: dict[str, Tensor], what: str) -> None:
    """Raise ValueError if names or shapes differ."""
    different = sorted(target.keys() ^ values.keys())
    if different:
        where = "is missing in the modules" if different[0] in values else "is only in the modules"
        raise ValueError(f"the names of the {what} differ: {different[0]!r} {where}; give modules of one kind")
    for name, value in values.items():
        if target[name].shape != value.shape:
            shapes = f"{list(target[name].shape)} in the modules and {list(value.shape)} here"
            raise ValueError(f"{name!r} of the {what} has the shape {shapes}; give modules of one kind")
