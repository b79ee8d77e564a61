"""Minibatches of SimCLR pre-training and of its meta-updates; all random numbers come from streams of the PT seed."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from metapt.ecg.augment import Draws, draw
from metapt.ecg.dataset import Dataset
from metapt.ecg.problem import AugmentedBatch, LabelledBatch, UnlabelledBatch
from metapt.training.batches import StreamBatches
from metapt.training.seeds import generator
from metapt.training.streams import ShuffledStream

Jitter = Literal["fixed", "uniform"]


class Views:
    """Draws for views, from a generator on the device."""

    def __init__(self, seed: int, samples: int, leads: int, jitter: Jitter, device: str) -> None:
        self._generator = generator("ecg views", seed, device=device)
        self._shape = (samples, leads)
        self._jitter = jitter

    def __call__(self, count: int) -> Draws:
        return draw(count, *self._shape, self._jitter, self._generator)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])


class _EcgBatches(StreamBatches):
    """FT minibatches of labelled ECGs, each set in its own order, and draws for views."""

    def __init__(self, dataset: Dataset, views: Views, labelled: dict[str, tuple[np.ndarray, int]], seed: int) -> None:
        """`labelled`: the ECGs of the sets "train" and "validation", and the sizes of their minibatches."""
        self._views = views
        self._labelled = {
            name: LabelledBatch(dataset.signals(chosen), dataset.labels(chosen)) for name, (chosen, _) in labelled.items()
        }
        super().__init__({name: _stream(name, len(chosen), size, seed) for name, (chosen, size) in labelled.items()})

    def train(self) -> LabelledBatch:
        return self._finetune("train")

    def validation(self) -> LabelledBatch:
        return self._finetune("validation")

    def _finetune(self, name: str) -> LabelledBatch:
        labelled = self._labelled[name]
        indices = self._streams[name].next()[0].to(labelled.labels.device)
        return LabelledBatch(labelled.signals[indices], labelled.labels[indices])

    def state_dict(self) -> dict[str, Any]:
        return {"streams": super().state_dict(), "views": self._views.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state["streams"])
        self._views.load_state_dict(state["views"])


class SimclrBatches(_EcgBatches):
    """PT minibatches of unlabelled ECGs, and FT minibatches of the labelled ones where there are any.

    Args:
        dataset: all ECGs.
        indices: those that are pre-trained on.
        batch_size: ECGs in a PT minibatch.
        views: draws.
        labelled: FT sets "train" and "validation": their ECGs, and the sizes of their minibatches.
        seed: the PT seed. Arms share its streams, so that they differ in what they do only.
    """

    def __init__(
        self,
        dataset: Dataset,
        indices: np.ndarray,
        batch_size: int,
        views: Views,
        labelled: dict[str, tuple[np.ndarray, int]],
        seed: int,
    ) -> None:
        super().__init__(dataset, views, labelled, seed)
        self._dataset = dataset
        self._raw = dataset.raw(indices)
        self._streams["pretrain"] = _stream("pretrain", len(indices), batch_size, seed)

    def pretrain(self) -> UnlabelledBatch:
        indices = self._streams["pretrain"].next()[0].to(self._raw.device)
        return UnlabelledBatch(self._dataset.normalise(self._raw[indices]), self._views(2 * len(indices)))


class SupervisedBatches(_EcgBatches):
    """Minibatches of supervised learning, where training ECGs are augmented: one view of each."""

    def pretrain(self) -> AugmentedBatch:
        batch = self.train()
        return AugmentedBatch(batch.signals, batch.labels, self._views(len(batch.signals)))


def _stream(name: str, count: int, batch_size: int, seed: int) -> ShuffledStream:
    return ShuffledStream(count, batch_size, [generator(f"ecg {name} batches", seed)])
