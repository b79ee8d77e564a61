"""The source of minibatches, as the training loops see it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast

import torch

from metapt.errors import MetaptError
from metapt.hypergrad.twice import explain as explain_derivative
from metapt.training.streams import ShuffledStream


class Batches(Protocol):
    """Minibatches of the three sets. All random draws come from generators whose state can be saved.

    An optional method `hypergradient()` returns the PT minibatches of hypergradients, from a stream of their own; they
    can be larger, for example. `pretrain` then gives PT steps the same minibatches with and without meta-updates, so
    that two runs differ only in what is compared. Without this method hypergradients take their minibatches from
    `pretrain`, and PT steps after the first meta-update get other minibatches than in plain PT.

    If a PT step reuses the PT gradient of a hypergradient (`MetaSettings.reuse_gradient`), both have the same
    minibatch, which comes from `pretrain`.

    An optional method `explain(error)` adds to an error of a loss which minibatches were in use, or raises another.
    """

    def pretrain(self) -> Any:
        """Return the minibatch of the next PT step."""

    def train(self) -> Any:
        """Return the next FT training minibatch."""

    def validation(self) -> Any:
        """Return the next FT validation minibatch."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that determines the following minibatches, as tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""


class StreamBatches:
    """The state of `Batches` whose random draws all come from `ShuffledStream`s and generators.

    Args:
        streams: the streams by name.
        generators: the generators by name, which is no stream's.
    """

    def __init__(
        self, streams: dict[str, ShuffledStream], generators: Mapping[str, torch.Generator] | None = None
    ) -> None:
        self._streams, self._generators = streams, generators or {}

    def state_dict(self) -> dict[str, Any]:
        """Return the states of streams and generators by name."""
        streams = {name: stream.state_dict() for name, stream in self._streams.items()}
        return streams | {name: generator.get_state() for name, generator in self._generators.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken. Raises KeyError if it has other streams or generators."""
        for name in state | self.state_dict():
            if name in self._generators:
                self._generators[name].set_state(state[name])
            else:
                self._streams[name].load_state_dict(state[name])


@contextmanager
def explaining(batches: Batches) -> Iterator[None]:
    """Add to an error inside the context which minibatches were in use, or raise one that says what to do instead."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RuntimeError):
            explain_derivative(error)
        if hasattr(batches, "explain") and not isinstance(error, MetaptError):
            batches.explain(error)
        raise


_Method = TypeVar("_Method", bound=Callable[..., Any])


def explained(method: _Method) -> _Method:
    """Let `explaining` look at the errors of a method of an object that has `batches`."""

    @functools.wraps(method)
    def wrapped(self: Any, /, *arguments: Any, **named: Any) -> Any:
        with explaining(self.batches):
            return method(self, *arguments, **named)

    return cast(_Method, wrapped)
