"""Minibatches of protein graphs for PT and for meta-updates; all random numbers come from streams of the PT seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metapt.ppi.config import Network
from metapt.ppi.dataset import Indices, PpiDataset, labels
from metapt.ppi.gin import dropout_masks
from metapt.ppi.problem import BothGraphs, LabelledGraphs
from metapt.training.batches import StreamBatches
from metapt.training.seeds import generator
from metapt.training.streams import ShuffledStream


class Dropout:
    """Masks for training minibatches, from a generator on the device."""

    def __init__(self, seed: int, network: Network, rate: float, device: str) -> None:
        self._generator = generator("ppi dropout", seed, device=device)
        self._network, self._rate = network, rate

    def __call__(self, nodes: int) -> Tensor | None:
        if not self._rate:
            return None
        return dropout_masks(self._network.layers, nodes, self._network.width, self._rate, self._generator)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])


class PpiBatches(StreamBatches):
    """PT minibatches with coarse labels, FT minibatches with fine ones.

    Args:
        dataset: all graphs.
        sets: graphs of "pretrain", "train" and "validation" (as far as they are used), and the sizes of their minibatches.
        coarse: PT labels of all graphs as bits; the data set's own where it is None.
        tasks: FT tasks that there are labels of; None: all.
        dropout: for PT minibatches.
        seed: the PT seed. Arms share its streams, so that they differ in what they do only.
        offset_centres: see `PpiDataset.batch`; of PT minibatches.
        hypergradient_size: PT graphs per hypergradient; None: as in a PT minibatch.
    """

    def __init__(
        self,
        dataset: PpiDataset,
        sets: Mapping[str, tuple[Indices, int]],
        dropout: Dropout,
        seed: int,
        *,
        coarse: Tensor | None = None,
        tasks: Tensor | None = None,
        offset_centres: bool = True,
        hypergradient_size: int | None = None,
    ) -> None:
        self._dataset, self._dropout, self._tasks, self._offset = dataset, dropout, tasks, offset_centres
        self._coarse = dataset.coarse_bits if coarse is None else coarse
        self._indices = {name: torch.from_numpy(np.asarray(chosen)) for name, (chosen, _) in sets.items()}
        streams = {name: _stream(name, len(chosen), size, seed) for name, (chosen, size) in sets.items()}
        if hypergradient_size is not None:
            chosen, _ = sets["pretrain"]
            self._indices["hypergradient"] = self._indices["pretrain"]
            streams["hypergradient"] = _stream("hypergradient", len(chosen), hypergradient_size, seed)
        super().__init__(streams)

    def pretrain(self) -> LabelledGraphs:
        return self._labelled("pretrain")

    def hypergradient(self) -> LabelledGraphs:
        return self._labelled("hypergradient" if "hypergradient" in self._streams else "pretrain")

    def train(self) -> LabelledGraphs:
        return self._finetune("train")

    def validation(self) -> LabelledGraphs:
        return self._finetune("validation")

    def trained(self) -> LabelledGraphs:
        """An FT training minibatch with dropout, for networks that are trained on it."""
        indices = self._next("train")
        graphs = self._dataset.batch(indices)
        return LabelledGraphs(graphs, self._fine(indices), self._dropout(len(graphs.graph)))

    def _labelled(self, name: str) -> LabelledGraphs:
        indices = self._next(name)
        graphs = self._dataset.batch(indices, self._offset)
        coarse = labels(self._coarse, indices, self._dataset.coarse_tasks)
        return LabelledGraphs(graphs, coarse, self._dropout(len(graphs.graph)))

    def _finetune(self, name: str) -> LabelledGraphs:
        indices = self._next(name)
        return LabelledGraphs(self._dataset.batch(indices), self._fine(indices), None)

    def _fine(self, indices: Tensor) -> Tensor:
        fine = self._dataset.fine(indices)
        return fine if self._tasks is None else fine[:, self._tasks]

    def _next(self, name: str) -> Tensor:
        return self._indices[name][self._streams[name].next()[0]]

    def state_dict(self) -> dict[str, Any]:
        return {"streams": super().state_dict(), "dropout": self._dropout.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state["streams"])
        self._dropout.load_state_dict(state["dropout"])


class CoTrainBatches(PpiBatches):
    """The same, where what is trained on is a PT and an FT minibatch together."""

    def pretrain(self) -> BothGraphs:  # type: ignore[override]
        return BothGraphs(super().pretrain(), self.trained())

    def hypergradient(self) -> BothGraphs:  # type: ignore[override]
        return self.pretrain()


def _stream(name: str, count: int, batch_size: int, seed: int) -> ShuffledStream:
    return ShuffledStream(count, batch_size, [generator(f"ppi {name} batches", seed)])
