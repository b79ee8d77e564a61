"""Minibatches of SimCLR pre-training and of its meta-updates; all random numbers come from streams of the PT seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from metapt.domains.ecg.augment import Draws, draw
from metapt.domains.ecg.data.dataset import Dataset, patient_folds
from metapt.domains.ecg.problem import AugmentedBatch, JointBatch, LabelledBatch, UnlabelledBatch
from metapt.training.batches import StreamBatches
from metapt.training.seeds import generator
from metapt.training.streams import ShuffledStream, to_device

Jitter = Literal["fixed", "uniform"]


class Views:
    """Draws for views, see `draw`, from a generator on the device that is seeded by `name` and `seed`."""

    def __init__(
        self,
        name: str,
        seed: int,
        samples: int,
        leads: int,
        jitter: Jitter,
        device: str,
        crop: float,
        noise: float,
    ) -> None:
        self._generator = generator(f"ecg {name}", seed, device=device)
        self._shape = (samples, leads)
        self._jitter, self._crop, self._noise = jitter, crop, noise

    def __call__(self, count: int) -> Draws:
        return draw(count, *self._shape, self._jitter, self._generator, crop=self._crop, noise=self._noise)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])


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
        self,
        dataset: Dataset,
        views: Callable[[str], Views],
        labelled: dict[str, tuple[np.ndarray, int]],
        seed: int,
        permuted_labels: bool = False,
    ) -> None:
        self._views = {"pretrain": views("views"), "hypergradient": views("hypergradient views")}
        sets = {name: chosen for name, (chosen, _) in labelled.items()}
        labels = {name: _permuted(own, name, seed) if permuted_labels else own for name, own in sets.items()}
        self._labelled = {
            name: LabelledBatch(dataset.signals(own), dataset.labels(labels[name])) for name, own in sets.items()
        }
        sizes = {name: size for name, (_, size) in labelled.items() if name != "folds"}
        streams = {name: _stream(name, len(sets[name]), size, seed) for name, size in sizes.items()}
        if "folds" in labelled:
            chosen, count = labelled["folds"]
            streams["folds"] = FoldStream(dataset.records.patients[chosen], count, generator("ecg folds batches", seed))
        super().__init__(streams)

    def train(self) -> LabelledBatch:
        return self._finetune("train")

    def validation(self) -> LabelledBatch:
        return self._finetune("validation")

    def _finetune(self, name: str) -> LabelledBatch:
        name = "folds" if "folds" in self._labelled else name
        return self._next(name, name)

    def _next(self, stream: str, part: str) -> LabelledBatch:
        labelled = self._labelled[part]
        indices = to_device(self._streams[stream].next()[0], labelled.labels.device)
        return LabelledBatch(labelled.signals[indices], labelled.labels[indices])

    def state_dict(self) -> dict[str, Any]:
        views = {name: views.state_dict() for name, views in self._views.items()}
        return {"streams": super().state_dict(), "views": views}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state["streams"])
        for name, views in self._views.items():
            views.load_state_dict(state["views"][name])


class SimclrBatches(_EcgBatches):
    """PT minibatches of the unlabelled ECGs `indices`, also for hypergradients, and FT minibatches of labelled ones.

    `labelled` maps a set ("train", "validation") to its ECGs and the size of its minibatches. For cross-fitting, it
    maps "folds" to all labelled ECGs and the number of folds; training and validation minibatches are then successive
    folds. With `permuted_labels` the labels of a set are permuted over its ECGs. `views` takes a name and returns its
    source of draws. Arms with the same PT settings `signals`, `batch_size`, `jitter`, `crop` and `noise` have the same
    minibatches and draws for a PT `seed`.
    """

    def __init__(
        self,
        dataset: Dataset,
        indices: np.ndarray,
        batch_size: int,
        views: Callable[[str], Views],
        labelled: dict[str, tuple[np.ndarray, int]],
        seed: int,
        permuted_labels: bool = False,
    ) -> None:
        super().__init__(dataset, views, labelled, seed, permuted_labels)
        self._dataset = dataset
        self._raw = dataset.raw(indices)
        self._streams |= {name: _stream(name, len(indices), batch_size, seed) for name in self._views}

    def pretrain(self) -> UnlabelledBatch:
        return self._unlabelled("pretrain")

    def hypergradient(self) -> UnlabelledBatch:
        """Return the PT minibatch of a hypergradient.

        It has its own random streams, so that PT steps are the same with and without it.
        """
        return self._unlabelled("hypergradient")

    def _unlabelled(self, name: str) -> UnlabelledBatch:
        indices = to_device(self._streams[name].next()[0], self._raw.device)
        return UnlabelledBatch(self._dataset.normalise(self._raw[indices]), self._views[name](2 * len(indices)))


class JointBatches(SimclrBatches):
    """PT minibatches of `SimclrBatches`, each with an FT training minibatch."""

    def pretrain(self) -> JointBatch:  # type: ignore[override]
        return JointBatch(super().pretrain(), self.train())


class SupervisedBatches(_EcgBatches):
    """Minibatches of supervised learning on augmented ECGs, one view of each."""

    def __init__(
        self, dataset: Dataset, views: Callable[[str], Views], labelled: dict[str, tuple[np.ndarray, int]], seed: int
    ) -> None:
        super().__init__(dataset, views, labelled, seed)
        chosen, size = labelled["train"]
        self._streams["hypergradient"] = _stream("hypergradient", len(chosen), size, seed)

    def pretrain(self) -> AugmentedBatch:
        return self._augmented(self.train(), "pretrain")

    def hypergradient(self) -> AugmentedBatch:
        """Return the training minibatch of a hypergradient, from streams of its own."""
        return self._augmented(self._next("hypergradient", "train"), "hypergradient")

    def _augmented(self, batch: LabelledBatch, name: str) -> AugmentedBatch:
        return AugmentedBatch(batch.signals, batch.labels, self._views[name](len(batch.signals)))


def _permuted(indices: np.ndarray, name: str, seed: int) -> np.ndarray:
    order = torch.randperm(len(indices), generator=generator("ecg permuted labels", name, seed))
    permuted: np.ndarray = indices[order.numpy()]
    return permuted


def _stream(name: str, count: int, batch_size: int, seed: int) -> ShuffledStream:
    return ShuffledStream(count, batch_size, [generator(f"ecg {name} batches", seed)])
