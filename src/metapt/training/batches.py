"""Where minibatches come from: the face that the loops see."""

from __future__ import annotations

from typing import Any, Protocol

from metapt.training.streams import ShuffledStream


class Batches(Protocol):
    """Minibatches of the three sets; whatever they draw comes from generators whose state can be saved.

    Where hypergradients are taken on other PT minibatches than PT steps, larger ones say, a method `hypergradient` gives them.
    """

    def pretrain(self) -> Any:
        """The next PT minibatch."""

    def train(self) -> Any:
        """The next FT training minibatch."""

    def validation(self) -> Any:
        """The next FT validation minibatch."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what comes next, as tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class StreamBatches:
    """The state of `Batches` whose draws all come from named `ShuffledStream`s."""

    def __init__(self, streams: dict[str, ShuffledStream]) -> None:
        self._streams = streams

    def state_dict(self) -> dict[str, Any]:
        return {name: stream.state_dict() for name, stream in self._streams.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, stream in self._streams.items():
            stream.load_state_dict(state[name])
