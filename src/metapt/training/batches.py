"""Where minibatches come from: the interface that the loops see."""

from __future__ import annotations

from typing import Any, Protocol

from metapt.training.streams import ShuffledStream


class Batches(Protocol):
    """Minibatches of the three sets; whatever they draw comes from generators whose state can be saved.

    A method `hypergradient` may give the PT minibatches on which hypergradients are taken, from a stream of its own; they may be
    larger ones, say. Then `pretrain` gives the PT steps of a run with meta-updates the same minibatches as those of plain PT, to
    the end, so that two runs differ in what is compared only. Without it hypergradients take their minibatches from `pretrain`,
    too: PT steps after the first meta-update see other minibatches than they do without meta-updates.

    Where the PT gradient of a hypergradient is reused for a PT step (`MetaSettings.reuse_gradient`), its minibatch is that PT
    step's, and comes from `pretrain`.
    """

    def pretrain(self) -> Any:
        """The minibatch of the next PT step."""

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
