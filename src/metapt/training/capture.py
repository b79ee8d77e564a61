"""CUDA graphs: the kernels of a step are recorded once, and then launched all at once.

A step of a small network has hundreds of kernels, and Python takes longer to launch them than a GPU to compute them.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from metapt.errors import ConfigError, TrainingError
from metapt.hypergrad.nested import listed, mapped
from metapt.hypergrad.params import gpus_of
from metapt.training.seeds import Seeded, seeded

_KIND = "cuda"
CALLS_BEFORE = 2
"""Calls before a recording: libraries choose their kernels in them, and constants are copied to the GPU."""
_MOST = 8
_COMPARED, _ROUNDING = 100, 1e-2

Result = TypeVar("Result", bound=tuple[Tensor, Any])


class Captured(Generic[Result]):
    """A function of minibatches that is recorded in a CUDA graph, and replayed from then on.

    Minibatches are of one kind if they differ only in the numbers of their tensors. For each kind two calls compute as
    usual, and the third one records. A replay computes with what the tensors of the minibatch and of `fixed` hold then.
    Python runs no more: any other number that the function reads stays as it was when the function was recorded. To
    find that, the loss of the first and of each 100th replay is compared with `loss`.

    Args:
        function: returns a loss and other tensors. It may change tensors of `fixed` in place, and no others.
        fixed: returns the tensors that the function reads beside its arguments, such as weights. Where these are in
            other memory than before, the function is recorded anew.
        loss: returns the same loss, and changes no tensor of `fixed`.
        name: of the function, for error messages.
    """

    def __init__(
        self,
        function: Callable[..., Result],
        fixed: Callable[[], Iterable[Tensor]],
        loss: Callable[..., Tensor],
        name: str,
    ) -> None:
        self._function, self._fixed, self._loss, self._name = function, fixed, loss, name
        self._replayed = 0
        self._calls: Counter[Any] = Counter()
        self._replays: dict[Any, Callable[[Any], Result]] = {}
        self._memory: list[int] = []

    def __call__(self, *arguments: Any) -> Result:
        """Return what the function returns; the next call overwrites its tensors.

        Raises:
            ConfigError: the function can't be recorded, or the minibatches are of too many kinds.
            TrainingError: the loss of a replay differs from that of the function.
        """
        fixed = list(self._fixed())
        memory = [value.data_ptr() for value in fixed]
        if memory != self._memory:
            self._calls.clear()
            self._replays.clear()
            self._memory = memory
        kind = self._kind(arguments)
        self._calls[kind] += 1
        if self._calls[kind] <= CALLS_BEFORE:
            self._check_kinds()
            return self._stream.compute(lambda: self._function(*arguments))
        if kind not in self._replays:
            self._replays[kind] = self._recorded(arguments)
        expected = None
        if self._replayed % _COMPARED == 0:
            with torch.random.fork_rng(gpus_of(fixed)):
                expected = self._loss(*arguments)
        result = self._replays[kind](arguments)
        self._replayed += 1
        if expected is not None:
            self._check_loss(*torch.stack([result[0], expected]).tolist())
        return result

    @cached_property
    def _stream(self) -> CaptureStream:
        return CaptureStream()

    def _recorded(self, arguments: Any) -> Callable[[Any], Result]:
        """Record the function, without computing it; return what computes it."""
        static = mapped(arguments, lambda value: value.detach().clone())
        try:
            replay, result = self._stream.record(lambda: self._function(*static))
        except RuntimeError as error:
            first: BaseException = error
            while first.__context__ is not None:  # the end of the recording complains, too
                first = first.__context__
            raise ConfigError(
                f"{self._name} can't be recorded as a CUDA graph ({str(first).splitlines()[0]}); legal: capture=False, "
                "or a function that neither waits for the GPU, as item(), float() and a mask as an index do, nor takes "
                "tensors of the CPU, nor draws from generators of its own"
            ) from error

        targets = listed(static)

        def replayed(arguments: Any) -> Result:
            for target, value in zip(targets, listed(arguments), strict=True):
                target.copy_(value)
            replay()
            return result

        return replayed

    def _kind(self, value: Any) -> Any:
        """Return what minibatches of a kind have in common. Raises ConfigError for what can't be recorded."""
        if isinstance(value, Tensor) and value.device.type == _KIND:
            return value.shape, value.stride(), value.dtype, value.device
        if isinstance(value, tuple | list):
            return type(value), *map(self._kind, value)
        if isinstance(value, dict):
            return *value, *map(self._kind, value.values())
        if value is None or isinstance(value, bool | int | float | str):
            return type(value), value
        what = "a tensor of the CPU" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ConfigError(
            f"{self._name} can't be recorded as a CUDA graph, since its minibatch has {what}; legal: capture=False, or "
            "tensors of the GPU, numbers and texts, in tuples, lists and dictionaries"
        )

    def _check_kinds(self) -> None:
        if len(self._calls) > _MOST:
            raise ConfigError(
                f"{self._name} would be recorded as {len(self._calls)} CUDA graphs, since its minibatches differ in "
                f"more than the numbers of their tensors; legal: capture=False, or minibatches of at most {_MOST} "
                "shapes, such as those of a loader with drop_last=True"
            )

    def _check_loss(self, replayed: float, computed: float) -> None:
        if abs(replayed - computed) > _ROUNDING * abs(computed):
            raise TrainingError(
                f"{self._name} is {computed:g}, and its replay {replayed:g}: it depends on a number that changes and "
                "is in no tensor, such as an attribute that is set between steps; legal: capture=False, or that number "
                "in the minibatch or in a buffer"
            )


def recorded_on(values: Iterable[Tensor]) -> bool:
    """Return whether all tensors are on a device on which functions can be recorded."""
    return all(value.device.type == _KIND for value in values)


@contextmanager
def drawing(batch: Any, fixed: Iterable[Tensor]) -> Iterator[Any]:
    """Give a minibatch without its seed, with which torch's generators are seeded inside: recordings can't do that."""
    if not isinstance(batch, Seeded):
        yield batch
        return
    with seeded(batch.seed, gpus_of(fixed)):
        yield batch.batch


class CaptureStream:
    """A stream of the GPU on which functions are computed, and then recorded.

    Autograd ends a gradient on the stream where its leaves were first used. If that is the default stream, which can't
    be recorded, the recording fails.
    """

    def __init__(self) -> None:
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def compute(self, function: Callable[[], Result]) -> Result:
        """Return what a function returns."""
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            result = function()
        torch.cuda.current_stream().wait_stream(self._side)
        return result

    def record(self, function: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """Record the kernels of a function, which are not computed; return what computes them, and their result.

        Each call of the first overwrites the tensors of the second.
        """
        gc.collect()  # of graphs that keep leaves on the default stream
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as one that pins memory for a loader, may use the GPU during the recording.
        with torch.cuda.graph(graph, stream=self._side, capture_error_mode="thread_local"):
            result = function()
        return graph.replay, result
