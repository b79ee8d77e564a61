"""The tensors of `torch.nn.Module`s as dictionaries: which are trained, and to which module a shared one belongs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

log = logging.getLogger(__name__)

HEAD = "head."
"""Prefix of the names of the PT head's buffers, which are in one dictionary with those of the encoder."""

_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule"}


class Calling(nn.Module):
    """Modules as one, which calls a function of them. So `called_with` replaces the tensors of all."""

    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return `function(*modules, *arguments)`."""
        return function(*self._modules.values(), *arguments)


def called_with(module: nn.Module, values: dict[str, Tensor], *arguments: Any) -> Any:
    """Return the result of `torch.func.functional_call`, also of modules that are at several places.

    torch would exchange the tensors of such a module once for each place, and leave the given ones there. `values` has
    tensors by the first name of each, and gets the new ones of buffers that the module assigns anew.
    """
    places: dict[int, str] = {}  # the first one of each tensor
    given = {}
    for path, part in module.named_modules():
        own = {"recurse": False, "remove_duplicate": False}
        for name, value in (*part.named_parameters(**own), *part.named_buffers(**own)):
            place = f"{path}.{name}" if path else name
            if (first := places.setdefault(id(value), place)) in values:
                given[place] = values[first]
    result = functional_call(module, given, arguments, tie_weights=False)
    values |= {place: given[place] for place in values}
    return result


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


def check_alike(what: str, given: dict[str, Tensor], expected: dict[str, Tensor], legal: str) -> None:
    """Raise ValueError if names or shapes of the tensors given differ from those of modules."""
    if given.keys() != expected.keys():
        name = min(given.keys() ^ expected.keys())
        where = "is missing in the modules" if name in given else "is only in the modules"
        raise ValueError(f"the names of the {what} differ: {name!r} {where}; legal: {legal}")
    for name, value in given.items():
        if value.shape != expected[name].shape:
            shapes = f"{list(expected[name].shape)} in the modules and {list(value.shape)} here"
            raise ValueError(f"{name!r} of the {what} has the shape {shapes}; legal: {legal}")


def remembered(module: nn.Module, function: Any) -> dict[str, Any]:
    """Return what a function could change that no `Pretrained` has.

    It is what modules keep beside their tensors (numbers, texts, and whether a buffer has no value yet), and the state
    of tensors and numbers around the function.
    """
    found: dict[str, Any] = {}
    for name, part in module.named_modules():
        kept = {key: value for key, value in vars(part).items() if isinstance(value, int | float | str | None)}
        kept |= {key: value is None for key, value in part._buffers.items()}
        found |= {f"{name}.{key}": value for key, value in kept.items() if key != "training"}
    return found | _around(function)


def _around(function: Any) -> dict[str, str]:
    """Return the state of tensors and numbers, also in others, that a function uses by a closure, or of its object."""
    owner = getattr(function, "__self__", function)  # the function itself may be an object or a module
    used = {"self": owner} | getattr(owner, "__dict__", {}) | dict(getattr(function, "keywords", {}))
    used |= {f"argument {place}": value for place, value in enumerate(getattr(function, "args", ()))}  # of a `partial`
    with suppress(TypeError, ValueError):  # of what is no function of Python, or of a variable without a value yet
        closure = inspect.getclosurevars(inspect.unwrap(function))
        used |= {**closure.globals, **closure.nonlocals}
    found: dict[str, str] = {}
    for name, value in used.items():
        parts: Any = dict(enumerate(value)) if isinstance(value, list) else value
        inside: list[tuple[str, Any]] = [(name, value)]
        if isinstance(value, nn.Module):
            inside = [*value.named_parameters(name), *value.named_buffers(name)]
        elif isinstance(parts, dict):
            inside = [(f"{name}[{key!r}]", each) for key, each in islice(parts.items(), 1000)]
        for place, each in inside:
            if isinstance(each, Tensor):
                with suppress(Exception):  # of what has no such list or version: lazy, sparse, nested, of inference
                    found[place] = f"{each._version} {each.detach().flatten()[:1000].tolist()}"
            elif isinstance(each, int | float | str):
                found[place] = str(each)
    return found


def warn_of_modes(what: str, module: nn.Module) -> None:
    """Warn of a part in evaluation mode, in a module in training mode, that PT would put into training mode."""
    modes = [(part, part.training) for part in module.modules()]
    whole = module.training
    module.train()
    switched = [
        name for (name, part), (_, mode) in zip(module.named_modules(), modes, strict=True) if part.training > mode
    ]
    set_modes(modes)
    if whole and switched:
        log.warning(
            "%r of the %s is in evaluation mode, and PT puts it into training mode, as train() does: to leave it so, "
            "call its eval() at the start of pretrain_loss",
            switched[0],
            what,
        )


def set_modes(modes: Iterable[tuple[nn.Module, bool]]) -> None:
    """Put each module alone into training mode or out of it."""
    for part, training in modes:
        part.training = training
