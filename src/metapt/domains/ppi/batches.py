"""Minibatches of protein graphs for PT and meta-updates. All random numbers come from streams of the PT seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metapt.domains.ppi.config import Network
from metapt.domains.ppi.data.dataset import Indices, PpiDataset, labels
from metapt.domains.ppi.gin import dropout_masks
from metapt.domains.ppi.problem import BothGraphs, LabelledGraphs
from metapt.training.batches import StreamBatches
from metapt.training.seeds import generator
from metapt.training.streams import ShuffledStream


class Dropout:
    """Dropout masks of training minibatches, drawn by a generator on the device."""

    def __init__(self, generator: torch.Generator, network: Network, rate: float) -> None:
        self._generator, self._network, self._rate = generator, network, rate

    def __call__(self, nodes: int) -> Tensor | None:
        if not self._rate:
            return None
        return dropout_masks(self._network.layers, nodes, self._network.width, self._rate, self._generator)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])


class PpiBatches(StreamBatches):
    """PT minibatches with coarse labels, and FT minibatches with fine labels.

    Each set of graphs has its own streams for graphs and dropout masks. Arms with the same seed, PT settings and PT
    labels therefore see the same PT minibatches and masks, whatever else they draw. `sets` are the graphs of
    "pretrain", "hypergradient" (PT graphs), "train" and "validation" with the sizes of their minibatches; unused ones
    may be left out. `dropout` is the share of a layer's outputs that are zeroed, `coarse` the PT labels of all graphs
    as bits (None: those of the data set), and `tasks` the FT tasks whose labels may be used (None: all).
    `offset_centres`, for PT minibatches: see `PpiDataset.batch`.
    """

    def __init__(
        self,
        dataset: PpiDataset,
        sets: Mapping[str, tuple[Indices, int]],
        network: Network,
        dropout: float,
        seed: int,
        *,
        coarse: Tensor | None = None,
        tasks: Tensor | None = None,
        offset_centres: bool = True,
    ) -> None:
        self._dataset, self._offset = dataset, offset_centres
        self._tasks = None if tasks is None else tasks.to(dataset.device)
        self._coarse = dataset.coarse_bits if coarse is None else coarse
        self._indices = {name: torch.from_numpy(np.asarray(chosen)) for name, (chosen, _) in sets.items()}
        masks = {name: generator("ppi dropout", name, seed, device=dataset.device) for name in sets}
        self._dropout = {name: Dropout(stream, network, dropout) for name, stream in masks.items()}
        streams = {name: [generator("ppi batches", name, seed)] for name in sets}
        super().__init__(
            {name: ShuffledStream(len(chosen), size, streams[name]) for name, (chosen, size) in sets.items()}
        )

    def pretrain(self) -> LabelledGraphs:
        return self._labelled("pretrain")

    def hypergradient(self) -> LabelledGraphs:
        return self._labelled("hypergradient")

    def train(self) -> LabelledGraphs:
        return self._finetune("train")

    def validation(self) -> LabelledGraphs:
        return self._finetune("validation")

    def _labelled(self, name: str) -> LabelledGraphs:
        indices = self._next(name)
        graphs = self._dataset.batch(indices, self._offset)
        coarse = labels(self._coarse, indices, self._dataset.coarse_tasks)
        return LabelledGraphs(graphs, coarse, self._dropout[name](len(graphs.graph)))

    def _finetune(self, name: str) -> LabelledGraphs:
        indices = self._next(name)
        return LabelledGraphs(self._dataset.batch(indices), self._fine(indices), None)

    def _fine(self, indices: Tensor) -> Tensor:
        fine = self._dataset.fine(indices)
        return fine if self._tasks is None else fine[:, self._tasks]

    def _next(self, name: str) -> Tensor:
        return self._indices[name][self._streams[name].next()[0]]

    def state_dict(self) -> dict[str, Any]:
        masks = {name: each.state_dict() for name, each in self._dropout.items()}
        return {"streams": super().state_dict(), "dropout": masks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state["streams"])
        for name, each in self._dropout.items():
            each.load_state_dict(state["dropout"][name])


class CoTrainBatches(PpiBatches):
    """Minibatches of co-training: each training minibatch is a PT minibatch and an FT minibatch."""

    def __init__(
        self, dataset: PpiDataset, sets: Mapping[str, tuple[Indices, int]], *arguments: Any, **options: Any
    ) -> None:
        super().__init__(dataset, {**sets, "hypergradient train": sets["train"]}, *arguments, **options)

    def pretrain(self) -> BothGraphs:  # type: ignore[override]
        return BothGraphs(super().pretrain(), self._trained("train"))

    def hypergradient(self) -> BothGraphs:  # type: ignore[override]
        return BothGraphs(super().hypergradient(), self._trained("hypergradient train"))

    def _trained(self, name: str) -> LabelledGraphs:
        """Return an FT training minibatch with dropout."""
        batch = self._finetune(name)
        return batch._replace(keep=self._dropout[name](len(batch.graphs.graph)))
