"""Linear heads, in one network with their encoder, or on frozen features; the score of an FT run."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.hypergrad import Params, Pretrained
from metapt.training.streams import to_device
from metapt.twostage.auroc import auroc, defined_classes, mean_auroc

log = logging.getLogger(__name__)


class Score(NamedTuple):
    """The result of an FT run; AUROCs are in per cent, and means are over the classes that have both labels."""

    test_auroc: float  # mean over classes at the best epoch
    class_aurocs: list[float]  # test AUROC of each class; NaN if it does not have both labels
    validation_auroc: float  # mean over classes at the best epoch
    best_epoch: int  # the first epoch with the highest validation AUROC, counted from 1
    learning_rate: float
    validation_curve: list[float]  # validation AUROC after each epoch; NaN if the network's outputs were not finite
    seconds: float = 0.0  # wall time, with trials of learning rates; heads that are trained together share it equally


class Examples(NamedTuple):
    """Features [n, features], and labels [n, classes] of 0 and 1 as floats, on the same device."""

    features: Tensor
    labels: Tensor


Split = Literal["train", "validation", "test"]


class FinetuneProblem(ABC):
    """What FT trains: a network and a linear head on a labelled data set."""

    epochs: int  # of FT of the whole network
    batch_size: int
    linear_lrs: Sequence[float]  # of linear evaluation
    linear_epochs: int
    capture: bool = False  # on a GPU, replay FT steps of the whole network as CUDA graphs (see `Captured`)

    @abstractmethod
    def initial_head(self, generator: torch.Generator) -> Params:
        """Return a head with random weights, on the CPU."""

    def sampler(self, generator: torch.Generator) -> Callable[[], Iterator[Any]]:
        """Return a function that yields an epoch's minibatches for FT of the whole network.

        The generator, on the CPU, draws them and what else is random. A problem without such FT has no such function.
        """
        raise NotImplementedError

    def trained(self, network: Params, batch: Any) -> Examples:
        """Return the features, with the network in training, and the labels of such a minibatch."""
        raise NotImplementedError

    @abstractmethod
    def examples(self, network: Params, part: Split) -> Examples:
        """Return the features of all examples of a part in evaluation mode, without gradients, and their labels."""


def logits(head: Params, features: Tensor) -> Tensor:
    """Return the logits [n, classes] of a linear head for features [n, size]."""
    return F.linear(features, head["weight"], head["bias"])


def whole(encoder: Params, **heads: Params) -> Params:
    """Return an encoder and heads as the parameters of one network, of a head with its name: `finetune_head.weight`.

    Names of heads end with "head".
    """
    return encoder | {f"{part}.{name}": value for part, head in heads.items() for name, value in head.items()}


def head_of(network: Params, part: str) -> Params:
    """Return a head of such a network."""
    return {name.removeprefix(f"{part}."): value for name, value in network.items() if name.startswith(f"{part}.")}


def encoder_of(network: Params) -> Params:
    """Return the encoder of such a network."""
    return {name: value for name, value in network.items() if not name.split(".")[0].endswith("head")}


def linear_evaluation(problem: FinetuneProblem, start: Pretrained, generators: list[torch.Generator]) -> list[Score]:
    """Train linear heads with Adam on the features of a frozen encoder, all at once.

    There is one for each generator and learning rate. The score of a generator is that of the learning rate with the
    best validation AUROC, as if its heads were trained alone. Raises DataError if no class has both labels in
    validation or test.
    """
    network = {**start.encoder, **start.buffers}
    train, validation, test = (problem.examples(network, part) for part in get_args(Split))
    heads, lrs = [problem.initial_head(generator) for generator in generators], problem.linear_lrs
    # One tensor of all parameters [heads, learning rates * classes, features + 1]; the bias is the weight of a one.
    # The sum over minibatch and classes of the gradient of the loss is a product with features; see `_Adam` for rates.
    initial = torch.stack([torch.cat([head["weight"], head["bias"].unsqueeze(1)], 1) for head in heads])
    weights = initial.to(train.features.device).repeat(1, len(lrs), 1)
    classes = train.labels.shape[1]
    rates = torch.tensor(lrs).repeat_interleave(classes).unsqueeze(1).to(weights)
    adam = _Adam(weights, rates)
    inputs, unseen = (F.pad(each.features, (0, 1), value=1.0) for each in (train, validation))  # a column of ones
    defined = defined_classes(validation.labels)

    curves: list[Tensor] = []
    states: list[Tensor] = []
    for _ in range(problem.linear_epochs):
        for indices in minibatches(len(train.labels), problem.batch_size, generators, weights.device):
            # Several times faster than indexing by `indices`.
            features = inputs.index_select(0, indices.flatten()).view(*indices.shape, -1)
            labels = train.labels[indices].repeat(1, 1, len(lrs))
            errors = (features @ weights.mT).sigmoid_().sub_(labels).div_(indices.shape[1] * classes)
            adam.step(errors.mT @ features)
        states.append(weights.clone())
        outputs = (unseen @ weights.mT).view(len(heads), -1, len(lrs), classes).movedim(2, 1)
        curves.append(100 * mean_auroc(outputs, validation.labels, defined))

    scores = []
    for number, by_rate in enumerate(torch.stack(curves, 2).tolist()):
        rate = highest([max(curve, key=_no_number_last) for curve in by_rate])
        best = states[highest(by_rate[rate])][number, rate * classes : (rate + 1) * classes]
        outputs = F.linear(test.features, best[:, :-1], best[:, -1])
        scores.append(score(by_rate[rate], outputs, test.labels, lrs[rate]))
    return scores


class _Adam:
    """Adam (Kingma and Ba 2015, Algorithm 1) with torch's defaults, in place, with learning rates of many shapes.

    `torch.optim.Adam` takes one rate a group: with three rates, an epoch's steps take 1.15 to 1.5 times as long. The
    rates are broadcast over the values.
    """

    def __init__(self, values: Tensor, lrs: Tensor) -> None:
        self._values, self._lrs, self._count = values, lrs, 0
        self._first, self._second = torch.zeros_like(values), torch.zeros_like(values)

    def step(self, gradient: Tensor) -> None:
        self._count += 1
        self._first.lerp_(gradient, 0.1)
        self._second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = self._second.sqrt().div_(math.sqrt(1 - 0.999**self._count)).add_(1e-8)
        self._values.addcdiv_(self._first * self._lrs, root, value=-1 / (1 - 0.9**self._count))


def minibatches(
    size: int, batch_size: int, generators: list[torch.Generator], device: torch.device | str = "cpu"
) -> Iterator[Tensor]:
    """Yield the indices [seeds, batch] of one epoch on a device, in a separate random order for each seed.

    A last minibatch of one example is dropped, because it has no batch statistics.
    """
    order = to_device(torch.stack([torch.randperm(size, generator=generator) for generator in generators]), device)
    batches = [batch for batch in torch.split(order, batch_size, dim=1) if batch.shape[1] >= min(2, batch_size)]
    yield from batches


def in_chunks(function: Callable[[Tensor], Tensor], items: Tensor, size: int) -> Tensor:
    """Return `function` of items [n, ...], computed for `size` items at a time; it returns a row for each item."""
    return torch.cat([function(chunk) for chunk in torch.split(items, size)])


def highest(values: Sequence[float]) -> int:
    """Return the index of the first highest value; NaN counts as lowest.

    >>> highest([math.nan, 60.0, 70.0, 70.0])
    2
    """
    return max(range(len(values)), key=lambda index: _no_number_last(values[index]))


def score(curve: list[float], outputs: Tensor, labels: Tensor, learning_rate: float) -> Score:
    """Return the score of an FT run, and log a warning if it diverged.

    `curve` is the validation AUROC (%) after each epoch; `outputs` are logits [n, classes] at the best epoch, and
    `labels` 0 and 1, of the test examples.
    """
    if lost := sum(map(math.isnan, curve)):
        words = "FT diverged: in %d of %d epochs outputs of the network were not finite; lower its learning rate"
        log.warning(words, lost, len(curve))
    best = highest(curve)
    classes = (100 * auroc(outputs.mT, labels.mT)).tolist()
    return Score(100 * float(mean_auroc(outputs, labels)), classes, curve[best], best + 1, learning_rate, curve)


def _no_number_last(value: float) -> float:
    return -math.inf if math.isnan(value) else value
