"""Fine-tuning on labelled ECGs and its test: of the whole network (full transfer), or of a head alone (linear evaluation).

The paper's "Implementation details": Adam at 1e-3, 200 epochs, minibatches of 256; the best epoch on validation AUROC is tested.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.ecg.config import FinetuneSettings
from metapt.ecg.problem import classification_loss
from metapt.ecg.resnet1d import Encoder, initial_head, logits
from metapt.ecg.sources import CLASSES
from metapt.errors import DataError
from metapt.evaluation.auroc import auroc, mean_auroc, undefined_classes
from metapt.hypergrad import Params
from metapt.hypergrad.stacked import stack
from metapt.training.progress import steps

log = logging.getLogger(__name__)
CHUNK = 128
"""ECGs in a forward pass without gradients."""


class Labelled(NamedTuple):
    """Normalised signals [n, samples, 12], and labels [n, 5] of 0 and 1 in float, on one device."""

    signals: Tensor
    labels: Tensor


class Sets(NamedTuple):
    """What FT trains on, what chooses the epoch, and what is reported."""

    train: Labelled
    validation: Labelled
    test: Labelled


class Score(NamedTuple):
    """What FT came to; every AUROC in per cent. Means are over the classes with both labels.

    Attributes:
        test_auroc: mean over classes, at the best epoch.
        class_aurocs: its parts, in the order of `CLASSES`; NaN for a class without both labels.
        validation_auroc: mean over classes, at the best epoch.
        best_epoch: the first with the highest validation AUROC, from 1 on.
        validation_curve: validation AUROC after each epoch; NaN where the network gave no numbers.
    """

    test_auroc: float
    class_aurocs: list[float]
    validation_auroc: float
    best_epoch: int
    validation_curve: list[float]


def full_transfer(
    encoder: Encoder,
    start: Params,
    buffers: Params,
    width: int,
    sets: Sets,
    settings: FinetuneSettings,
    generator: torch.Generator,
    label: str | None = None,
) -> Score:
    """Trains encoder and a new linear head.

    Args:
        encoder: the network.
        start: its parameters; like the buffers, not changed.
        buffers: BatchNorm's statistics.
        width: of the encoder.
        sets: ECGs on the device of `start`.
        settings: see `FinetuneSettings`.
        generator: of head and minibatches, on the CPU.
        label: shows the progress under this name.

    Raises:
        DataError: fewer than 2 ECGs to train on, or no class with both labels in validation or test.
    """
    _check(sets)
    device = sets.train.signals.device
    network = {name: value.requires_grad_() for name, value in _copy(start).items()}
    head = {name: value.to(device).requires_grad_() for name, value in initial_head(width, generator).items()}
    optimizer = torch.optim.Adam([*network.values(), *head.values()], lr=settings.lr)
    network |= _copy(buffers)

    curve: list[float] = []
    for epoch in steps(0, settings.epochs, label) if label else range(settings.epochs):
        for batch in _minibatches(len(sets.train.signals), settings.batch_size, [generator]):
            indices = batch[0].to(device)
            features = encoder(network, sets.train.signals[indices], training=settings.batch_norm == "train")
            loss = classification_loss(head, features, sets.train.labels[indices])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        outputs = logits(head, _features(encoder, network, sets.validation.signals))
        curve.append(100 * float(mean_auroc(outputs, sets.validation.labels).value))
        if _best(curve) == epoch:
            best_network, best_head = _copy(network), _copy(head)
    return _score(curve, logits(best_head, _features(encoder, best_network, sets.test.signals)), sets.test.labels)


def linear_evaluation(
    encoder: Encoder,
    start: Params,
    buffers: Params,
    width: int,
    sets: Sets,
    settings: FinetuneSettings,
    generators: list[torch.Generator],
) -> list[Score]:
    """Trains linear heads on the features of the frozen encoder, one for each generator, all at once.

    Takes and raises what `full_transfer` does; a head comes out as it would alone.
    """
    _check(sets)
    device = sets.train.signals.device
    network = {**start, **buffers}
    train, validation, test = (_features(encoder, network, part.signals) for part in sets)
    # Adam works element by element, so that one step is each head's own.
    heads = stack([initial_head(width, generator) for generator in generators])
    heads = {name: value.to(device).requires_grad_() for name, value in heads.items()}
    optimizer = torch.optim.Adam(list(heads.values()), lr=settings.linear_lr)

    curves: list[Tensor] = []
    states: list[Params] = []
    for _ in range(settings.linear_epochs):
        for batch in _minibatches(len(train), settings.batch_size, generators):
            indices = batch.to(device)
            # Several times faster than train[indices].
            features = train.index_select(0, indices.flatten()).view(*indices.shape, -1)
            outputs, labels = _stacked_logits(heads, features), sets.train.labels[indices]
            losses = F.binary_cross_entropy_with_logits(outputs, labels, reduction="none").mean((1, 2))
            optimizer.zero_grad()
            losses.sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        states.append(_copy(heads))
        curves.append(100 * mean_auroc(_stacked_logits(states[-1], validation), sets.validation.labels).value)

    scores = []
    for seed, curve in enumerate(torch.stack(curves, 1).tolist()):
        head = {name: value[seed] for name, value in states[_best(curve)].items()}
        scores.append(_score(curve, logits(head, test), sets.test.labels))
    return scores


def _check(sets: Sets) -> None:
    if len(sets.train.signals) < 2:
        raise DataError(f"FT trains on 2 or more labelled ECGs, and here on {len(sets.train.signals)}; take a larger FT set.")
    for name, (_, labels) in (("validation", sets.validation), ("test", sets.test)):
        undefined = undefined_classes(labels)
        if len(undefined) == len(CLASSES):
            raise DataError(
                f"no class has both labels among the {len(labels)} {name} ECGs, so that no AUROC is defined; take more."
            )
        if undefined:
            names = ", ".join(CLASSES[index] for index in undefined)
            log.warning("the %s AUROC leaves out %s: all %d ECGs have the same label", name, names, len(labels))


def _minibatches(size: int, batch_size: int, generators: list[torch.Generator]) -> Iterator[Tensor]:
    """Indices [seeds, batch] of one epoch, in an order of its own for each seed.

    A last ECG that is left alone is dropped: its statistics are no minibatch's.
    """
    order = torch.stack([torch.randperm(size, generator=generator) for generator in generators])
    for batch in torch.split(order, batch_size, dim=1):
        if batch.shape[1] >= min(2, batch_size):
            yield batch


@torch.no_grad()
def _features(encoder: Encoder, network: Params, signals: Tensor) -> Tensor:
    """[n, features], BatchNorm in eval mode."""
    return torch.cat([encoder(network, chunk, training=False) for chunk in torch.split(signals, CHUNK)])


def _stacked_logits(heads: Params, features: Tensor) -> Tensor:
    """Heads of shape [seeds, ...] on features [n, features], or [seeds, n, features]: [seeds, n, 5]."""
    # In this order the gradient is five times faster than in the other.
    return (heads["weight"] @ features.mT).mT + heads["bias"].unsqueeze(1)


def _copy(params: Params) -> Params:
    return {name: value.detach().clone() for name, value in params.items()}


def _best(curve: list[float]) -> int:
    """Index of the first highest value; NaN counts as lowest."""
    return max(range(len(curve)), key=lambda epoch: -math.inf if math.isnan(curve[epoch]) else curve[epoch])


def _score(curve: list[float], outputs: Tensor, labels: Tensor) -> Score:
    """Of the test set's logits [n, 5] at the best epoch."""
    lost = sum(map(math.isnan, curve))
    if lost:
        log.warning("FT diverged: after %d of %d epochs the network gave no numbers; lower its learning rate", lost, len(curve))
    best = _best(curve)
    classes = (100 * auroc(outputs.mT, labels.mT)).tolist()
    return Score(100 * float(mean_auroc(outputs, labels).value), classes, curve[best], best + 1, curve)
