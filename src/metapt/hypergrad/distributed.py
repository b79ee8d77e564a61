"""Data parallelism: each process has its share of the minibatches, and losses and derivatives are means over processes.

Parameters are equal in all processes; minibatches, features and outputs are each process's own. Two linear maps lie
between them: a copy of the parameters for each process, and the mean of the losses. With the mean over processes as the
inner product of what is their own, each map is the adjoint of the other. So the derivative of one is the other, to any
order, and whatever is computed from such losses (gradients, products with the Hessian, mixed derivatives, FT steps) is
that of the mean loss, to the same bits in all processes. What a solver decides from it, all of them decide.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from metapt.errors import ConfigError
from metapt.hypergrad.nested import cloned
from metapt.hypergrad.params import Params, Pretrained, Vector
from metapt.hypergrad.problem import Checked, MetaProblem

log = logging.getLogger(__name__)
_Problem = TypeVar("_Problem")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Processes:
    """The processes of a group that share a problem, and the number of this one; by default a process alone."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    def mean(self, values: Sequence[Tensor]) -> Vector:
        """Return the mean of each tensor over processes, without a graph; all are sent at once."""
        dense = [value.detach().to_dense() if value.is_sparse else value.detach() for value in values]
        flat = torch.cat([value.reshape(-1) for value in dense])
        dist.all_reduce(flat, group=self.group)
        parts = torch.split(flat / self.size, [value.numel() for value in dense])
        return [part.reshape(value.shape).to(value.dtype) for part, value in zip(parts, dense, strict=True)]

    def gather(self, value: _Value) -> list[_Value]:
        """Return the value that each process has given, by its rank."""
        found: list[Any] = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(found, value, group=self.group)
        return found

    def check_equal(self, tensors: Params) -> None:
        """Raise ConfigError if a tensor has other bits in another process."""
        if self.size == 1:
            return
        first, *others = self.gather({name: _digest(value) for name, value in tensors.items()})
        for rank, other in enumerate(others, start=1):
            differ = [name for name in first | other if first.get(name) != other.get(name)]
            if differ:
                raise ConfigError(
                    f"{differ[0]!r} differs between the processes 0 and {rank}; legal: the same values. Seed torch "
                    "equally before modules are made, or load one file in all, as of a checkpoint; then change none "
                    "in one process only"
                )


ALONE = Processes()


class Distributed:
    """The problem that `processes` share, made of the `local` one of each; see `distributed`."""

    def __init__(self, local: MetaProblem, processes: Processes) -> None:
        self.local, self.processes = local, processes
        self._losses = Checked(local)
        self._statistics: list[str] | None = None  # names of the buffers that the first PT minibatches update
        self.compared: set[str] = set()  # by `check_counts`

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "mixed_product":  # the derivative of the local loss
            raise AttributeError(name)
        if name == "targets":
            raise ValueError("a ridge head can't be fitted over several processes: take FittedHead")
        found = getattr(self.local, name)
        if name == "pretrain_outputs":
            return lambda *given: self._pretraining(found, *given)
        if name == "outputs_loss":
            return lambda outputs, meta, batch: self._mean(found(outputs, self._copies(meta), batch))
        return found

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        """Return the mean PT loss. Buffers that it updates become their means over processes."""
        return self._mean(self._pretraining(self._losses.pretrain_loss, pretrained, meta, batch))

    def encode(self, encoder: Params, batch: Any) -> Tensor:
        """Return the features of this process's FT minibatch."""
        return self._losses.encode(self._copies(encoder), batch)

    def head_loss(self, head: Params, features: Tensor, batch: Any) -> Tensor:
        """Return the mean FT loss, given the features of this process's FT minibatch."""
        return self._mean(self._losses.head_loss(self._copies(head), features, batch))

    def _pretraining(self, function: Callable[..., Tensor], pretrained: Pretrained, meta: Params, batch: Any) -> Tensor:
        buffers, names = pretrained.buffers, [*pretrained.buffers] if self._statistics is None else self._statistics
        own = buffers | cloned({name: buffers[name] for name in names})  # the graph may hold what the call leaves
        # Encoder and PT head are copied together, so that one message has their derivative.
        copies = iter(self._copies(dict(enumerate(pretrained.vector()))).values())
        encoder, head = ({name: next(copies) for name in part} for part in (pretrained.encoder, pretrained.head))
        result = function(Pretrained(encoder, head, own), self._copies(meta), batch)
        if self._statistics is None:
            before = {name: value for name, value in buffers.items() if value.layout is torch.strided}
            updated = [n for n, v in before.items() if v.is_floating_point() and not torch.equal(v, own[n])]
            self._statistics = sorted(set().union(*self.processes.gather(updated)))  # the same ones in all
        if self._statistics:
            means = self.processes.mean([own[name] for name in self._statistics])
            own |= zip(self._statistics, means, strict=True)
        for name, value in own.items():
            if name in names:
                buffers[name].copy_(value.detach())
            else:
                buffers[name] = value
        return result

    def _copies(self, params: dict[Any, Tensor]) -> dict[Any, Tensor]:
        """Return parameters as this process's own; tensors that require no gradient stay as they are."""
        own = {name: value for name, value in params.items() if value.requires_grad}
        copies = _Across.apply(self.processes, False, *own.values()) if own else ()  # type: ignore[no-untyped-call]
        return params | dict(zip(own, copies, strict=True))

    def _mean(self, loss: Tensor) -> Tensor:
        return cast(Tensor, _Across.apply(self.processes, True, loss)[0])  # type: ignore[no-untyped-call]


class _Across(torch.autograd.Function):
    """From each process's own tensors to their means, or from equal tensors to each process's own: adjoint maps."""

    @staticmethod
    def forward(context: Any, processes: Processes, mean: bool, *values: Tensor) -> tuple[Tensor, ...]:
        context.processes, context.mean = processes, mean
        return tuple(processes.mean(values)) if mean else values

    @staticmethod
    def backward(context: Any, *cotangents: Tensor) -> Any:
        adjoint = _Across.apply(context.processes, not context.mean, *cotangents)  # type: ignore[no-untyped-call]
        return None, None, *adjoint


def distributed(problem: _Problem, group: dist.ProcessGroup | None = None) -> _Problem:
    """Return a problem whose losses are means over the processes of `torch.distributed`; in one process, itself.

    Where a launcher such as torchrun has started several processes, it initialises `torch.distributed` unless that is
    done. Each process calls it, and all that follows, with its share of the minibatches: as many as the others, and of
    the same size if the mean is to be that over all examples. Parameters start with the same values. Random draws stay
    with the process, and so do BatchNorm's means over a minibatch; its running statistics become means over processes.
    A parameter that the PT loss leaves out has the gradient 0, not none.

    Args:
        problem: a `MetaProblem`, which computes the losses of this process's minibatches.
        group: the processes; None for all.
    """
    if not _initialised() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group()
        # A process that ends with its threads may abort; after an error the others may not come to leave it, too.
        atexit.register(lambda: _initialised() and not hasattr(sys, "last_value") and dist.destroy_process_group())
    if not _initialised() or dist.get_world_size(group) == 1:
        return problem
    processes = Processes(dist.get_rank(group), dist.get_world_size(group), group)
    return cast(_Problem, Distributed(cast(MetaProblem, problem), processes))


def processes_of(problem: MetaProblem) -> Processes:
    """Return the processes that share a problem; warn if there are several and each trains alone."""
    found = getattr(problem, "processes", None)
    if isinstance(found, Processes):
        return found
    if _initialised() and dist.get_world_size() > 1:
        count, advice = dist.get_world_size(), "metapt.distributed(problem) is the problem that they share"
        log.warning("torch.distributed has %d processes, and each of them trains alone: %s", count, advice)
    return ALONE


def local_of(problem: MetaProblem) -> MetaProblem:
    """Return the problem of this process alone, on which functions are tried without waiting for other processes."""
    shared = isinstance(getattr(problem, "processes", None), Processes)
    return cast(Distributed, problem).local if shared else problem


def check_counts(problem: MetaProblem, counts: dict[str, int], once: bool = False) -> None:
    """Raise ConfigError if processes that share a problem differ in `counts`; `once`: in its first call only."""
    processes = getattr(problem, "processes", None)
    if not isinstance(processes, Processes) or (once and counts.keys() <= cast(Distributed, problem).compared):
        return
    first, *others = processes.gather(counts)
    for rank, other in enumerate(others, start=1):
        for kind, count in first.items():
            if other[kind] != count:
                raise ConfigError(
                    f"process {rank} has {other[kind]} {kind}, and process 0 has {count}; legal: as many in all. Give "
                    "each process the same settings, and a share of as many minibatches"
                )
    cast(Distributed, problem).compared.update(counts)


def _initialised() -> bool:
    return dist.is_available() and dist.is_initialized()


def _digest(value: Tensor) -> str:
    if value.layout is not torch.strided:
        sparse = value.detach().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        return f"{list(value.shape)} {_digest(sparse.indices())} {_digest(sparse.values())}"
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return f"{value.dtype} {list(value.shape)} {hashlib.sha256(content).hexdigest()}"
