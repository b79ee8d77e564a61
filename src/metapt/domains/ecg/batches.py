"""Minibatches of SimCLR pre-training and of its meta-updates; all random numbers come from streams of the PT seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from metapt.domains.ecg.augment import Draws, draw
from metapt.domains.ecg.config import EcgPretraining
from metapt.domains.ecg.data.dataset import Dataset, Labelled, patient_folds
from metapt.domains.ecg.problem import AugmentedBatch, JointBatch, UnlabelledBatch
from metapt.training.batches import StreamBatches
from metapt.training.seeds import generator
from metapt.training.streams import ShuffledStream, to_device

LabelledSets = dict[str, tuple[np.ndarray, int]]
"""Set of labelled ECGs -> its ECGs, and the size of its minibatches; "folds" -> all ECGs, and the number of folds."""


class FoldStream(ShuffledStream):
    """Minibatches that are folds of ECGs, without end; see `patient_folds`.

    `patients` [n] is the patient of each ECG. Each pass assigns the patients to `folds` folds anew. Raises ConfigError
    if there are fewer patients than folds.
    """

    def __init__(self, patients: np.ndarray, folds: int, generator: torch.Generator) -> None:
        super().__init__(len(patients), -(-len(patients) // folds), [generator])
        self._patients, self._folds = patients, folds
        self._left: list[Tensor] = []
        patient_folds(patients, folds)

    def next(self) -> Tensor:
        """Return the indices of the next fold, [1, ECGs of the fold]."""
        if not self._left:
            order = torch.randperm(self.size, generator=self.generators[0])
            fold = torch.from_numpy(patient_folds(self._patients[order.numpy()], self._folds))
            self._left = [order[fold == index].unsqueeze(0) for index in range(self._folds)]
        return self._left.pop(0)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"left": list(self._left)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._left = list(state["left"])


class _EcgBatches(StreamBatches):
    """FT minibatches of labelled ECGs, and draws for views of PT steps and of hypergradients; see `SimclrBatches`."""

    def __init__(
        self, dataset: Dataset, given: EcgPretraining, labelled: LabelledSets, seed: int, permuted_labels: bool = False
    ) -> None:
        self._dataset, self._given = dataset, given
        self._views = {
            name: generator(f"ecg {stream}", seed, device=dataset.device)
            for name, stream in (("pretrain", "views"), ("hypergradient", "hypergradient views"))
        }
        self._labelled, streams = dict[str, Labelled](), dict[str, ShuffledStream]()
        for name, (own, size) in labelled.items():
            labels = _permuted(own, name, seed) if permuted_labels else own
            self._labelled[name] = Labelled(dataset.signals(own), dataset.labels(labels))
            if name == "folds":
                patients = dataset.records.patients[own]
                streams[name] = FoldStream(patients, size, generator("ecg folds batches", seed))
            else:
                streams[name] = _stream(name, len(own), size, seed)
        super().__init__(streams, {f"{name} views": own for name, own in self._views.items()})

    def train(self) -> Labelled:
        return self._finetune("train")

    def validation(self) -> Labelled:
        return self._finetune("validation")

    def _finetune(self, name: str) -> Labelled:
        name = "folds" if "folds" in self._labelled else name
        return self._next(name, name)

    def _next(self, stream: str, part: str) -> Labelled:
        labelled = self._labelled[part]
        indices = to_device(self._streams[stream].next()[0], labelled.labels.device)
        return Labelled(labelled.signals[indices], labelled.labels[indices])

    def _draws(self, name: str, views: int) -> Draws:
        return draw(views, self._dataset.samples, self._given, self._views[name])


class SimclrBatches(_EcgBatches):
    """PT minibatches of the unlabelled ECGs `indices`, also for hypergradients, and FT minibatches of labelled ones.

    The sets of labelled ECGs are "train" and "validation", or, for cross-fitting, "folds": training and validation
    minibatches are then successive folds. With `permuted_labels` the labels of a set are permuted over its ECGs. Arms
    with the same PT settings `signals`, `batch_size`, `jitter`, `crop` and `noise` have the same minibatches and draws
    for a PT `seed`.
    """

    def __init__(
        self,
        dataset: Dataset,
        indices: np.ndarray,
        given: EcgPretraining,
        labelled: LabelledSets,
        seed: int,
        permuted_labels: bool = False,
    ) -> None:
        super().__init__(dataset, given, labelled, seed, permuted_labels)
        self._raw = dataset.raw(indices)
        self._streams |= {name: _stream(name, len(indices), given.batch_size, seed) for name in self._views}

    def pretrain(self) -> UnlabelledBatch:
        return self._unlabelled("pretrain")

    def hypergradient(self) -> UnlabelledBatch:
        """Return the PT minibatch of a hypergradient.

        It has its own random streams, so that PT steps are the same with and without it.
        """
        return self._unlabelled("hypergradient")

    def _unlabelled(self, name: str) -> UnlabelledBatch:
        indices = to_device(self._streams[name].next()[0], self._raw.device)
        return UnlabelledBatch(self._dataset.normalise(self._raw[indices]), self._draws(name, 2 * len(indices)))


class JointBatches(SimclrBatches):
    """PT minibatches of `SimclrBatches`, each with an FT training minibatch."""

    def pretrain(self) -> JointBatch:  # type: ignore[override]
        return JointBatch(super().pretrain(), self.train())


class SupervisedBatches(_EcgBatches):
    """Minibatches of supervised learning on augmented ECGs, one view of each."""

    def __init__(self, dataset: Dataset, given: EcgPretraining, labelled: LabelledSets, seed: int) -> None:
        super().__init__(dataset, given, labelled, seed)
        chosen, size = labelled["train"]
        self._streams["hypergradient"] = _stream("hypergradient", len(chosen), size, seed)

    def pretrain(self) -> AugmentedBatch:
        return self._augmented(self.train(), "pretrain")

    def hypergradient(self) -> AugmentedBatch:
        """Return the training minibatch of a hypergradient, from streams of its own."""
        return self._augmented(self._next("hypergradient", "train"), "hypergradient")

    def _augmented(self, batch: Labelled, name: str) -> AugmentedBatch:
        return AugmentedBatch(batch.signals, batch.labels, self._draws(name, len(batch.signals)))


def _permuted(indices: np.ndarray, name: str, seed: int) -> np.ndarray:
    order = torch.randperm(len(indices), generator=generator("ecg permuted labels", name, seed))
    return np.asarray(indices[order.numpy()])


def _stream(name: str, count: int, batch_size: int, seed: int) -> ShuffledStream:
    return ShuffledStream(count, batch_size, [generator(f"ecg {name} batches", seed)])
