"""Linear heads on frozen features, trained together; the score of an FT run and the choice of its epoch."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.evaluation.auroc import auroc, mean_auroc
from metapt.hypergrad import Params
from metapt.hypergrad.stacked import stack, unstack
from metapt.training.progress import steps

log = logging.getLogger(__name__)


class Score(NamedTuple):
    """What FT came to; every AUROC in per cent. Means are over the classes with both labels.

    Attributes:
        test_auroc: mean over classes, at the best epoch.
        class_aurocs: its parts; NaN for a class without both labels.
        validation_auroc: mean over classes, at the best epoch.
        best_epoch: the first with the highest validation AUROC, from 1 on.
        learning_rate: of the optimiser.
        validation_curve: validation AUROC after each epoch; NaN where the network gave no numbers.
    """

    test_auroc: float
    class_aurocs: list[float]
    validation_auroc: float
    best_epoch: int
    learning_rate: float
    validation_curve: list[float]


class Examples(NamedTuple):
    """Features [n, features], and labels [n, classes] of 0 and 1 in float, on one device."""

    features: Tensor
    labels: Tensor


def linear_heads(
    train: Examples,
    validation: Examples,
    test: Examples,
    heads: list[Params],
    *,
    lrs: Sequence[float],
    epochs: int,
    batch_size: int,
    generators: list[torch.Generator],
) -> list[Score]:
    """Trains linear heads on features (Adam), each with every learning rate, all at once; a head comes out as it would alone.

    Args:
        train: what they are trained on.
        validation: what chooses the epoch and, for each head on its own, the learning rate.
        test: what is scored.
        heads: initial ones; of shape [classes, features] and [classes].
        lrs: learning rates.
        epochs: passes over the training examples.
        batch_size: examples per minibatch.
        generators: of the minibatches, one for each head, on the CPU.

    Returns:
        One score for each head, at its learning rate.

    Raises:
        DataError: no class has both labels in validation or test.
    """
    device = train.features.device
    # Adam works element by element, so that one step is each head's own. By learning rate:
    stacks = [{name: value.to(device).clone().requires_grad_() for name, value in stack(heads).items()} for _ in lrs]
    groups = [{"params": list(each.values()), "lr": lr} for each, lr in zip(stacks, lrs, strict=True)]
    optimizer = torch.optim.Adam(groups)

    curves: list[Tensor] = []
    states: list[list[Params]] = []
    for _ in steps(0, epochs):
        for batch in minibatches(len(train.labels), batch_size, generators):
            indices = batch.to(device)
            # Several times faster than train.features[indices].
            features = train.features.index_select(0, indices.flatten()).view(*indices.shape, -1)
            labels = train.labels[indices]
            losses = [
                F.binary_cross_entropy_with_logits(stacked_logits(each, features), labels, reduction="none")
                .mean((1, 2))
                .sum()
                for each in stacks
            ]
            optimizer.zero_grad()
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        states.append([copied(each) for each in stacks])
        outputs = torch.stack([stacked_logits(each, validation.features) for each in states[-1]])
        curves.append(100 * mean_auroc(outputs, validation.labels).value)

    scores = []
    for number, by_rate in enumerate(torch.stack(curves, 2).transpose(0, 1).tolist()):
        rate = highest([max(curve, key=_no_number_last) for curve in by_rate])
        head = unstack(states[highest(by_rate[rate])][rate], number)
        outputs = F.linear(test.features, head["weight"], head["bias"])
        scores.append(score(by_rate[rate], outputs, test.labels, lrs[rate]))
    return scores


def minibatches(size: int, batch_size: int, generators: list[torch.Generator]) -> Iterator[Tensor]:
    """Indices [seeds, batch] of one epoch, in an order of its own for each seed.

    A last example that is left alone is dropped: its statistics are no minibatch's.
    """
    order = torch.stack([torch.randperm(size, generator=generator) for generator in generators])
    batches = [batch for batch in torch.split(order, batch_size, dim=1) if batch.shape[1] >= min(2, batch_size)]
    for index in steps(0, len(batches)):
        yield batches[index]


def in_chunks(function: Callable[[Tensor], Tensor], items: Tensor, size: int) -> Tensor:
    """Return what `function` makes of items [n, ...], as many rows, `size` items at a time."""
    chunks = torch.split(items, size)
    rows = torch.cat([function(chunks[index]) for index in steps(0, len(chunks))])
    # A rehearsal leaves chunks out; the rows of others take their places.
    return rows if len(rows) == len(items) else rows[torch.arange(len(items), device=rows.device) % len(rows)]


def stacked_logits(heads: Params, features: Tensor) -> Tensor:
    """Heads of shape [seeds, ...] on features [n, features], or [seeds, n, features]: [seeds, n, classes]."""
    # In this order the gradient is five times faster than in the other.
    return (heads["weight"] @ features.mT).mT + heads["bias"].unsqueeze(1)


def copied(params: Params) -> Params:
    """Copies outside of any graph."""
    return {name: value.detach().clone() for name, value in params.items()}


def highest(values: Sequence[float]) -> int:
    """Index of the first highest value; NaN counts as lowest.

    >>> highest([math.nan, 60.0, 70.0, 70.0])
    2
    """
    return max(range(len(values)), key=lambda index: _no_number_last(values[index]))


def score(curve: list[float], outputs: Tensor, labels: Tensor, learning_rate: float) -> Score:
    """Of the test set's logits [n, classes] at the best epoch of the validation curve. A run that diverged is said in the log."""
    lost = sum(map(math.isnan, curve))
    if lost:
        log.warning(
            "FT diverged: after %d of %d epochs the network gave no numbers; lower its learning rate", lost, len(curve)
        )
    best = highest(curve)
    classes = (100 * auroc(outputs.mT, labels.mT)).tolist()
    return Score(100 * float(mean_auroc(outputs, labels).value), classes, curve[best], best + 1, learning_rate, curve)


def _no_number_last(value: float) -> float:
    return -math.inf if math.isnan(value) else value
