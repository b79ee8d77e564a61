"""FT of a whole network, encoder and head, with Adam (full transfer)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.evaluation.auroc import defined_classes, mean_auroc
from metapt.hypergrad import Params, Pretrained
from metapt.hypergrad.params import copied, leaves
from metapt.training.optimizers import without_compiler
from metapt.training.progress import steps
from metapt.twostage.heads import Examples, Score, highest, score


class Transfer:
    """An FT run of a whole network. The epoch with the best validation AUROC is tested.

    Args:
        start, head: the network and the head at the start, which don't change.
        lr: learning rate.
        epochs: of the whole run.
        epoch: yields features and labels of an epoch's minibatches, given the network (encoder and buffers), whose
            values change between minibatches.
        examples: returns features and labels of all examples of a part, in evaluation mode, given the network.
        label: name of the progress; None: none is shown.

    Attributes:
        curve: validation AUROC (%) after each epoch so far.
    """

    def __init__(
        self,
        start: Pretrained,
        head: Params,
        *,
        lr: float,
        epochs: int,
        epoch: Callable[[Params], Iterator[Examples]],
        examples: Callable[[Params, Literal["validation", "test"]], Examples],
        label: str | None = None,
    ) -> None:
        device = next(iter(start.encoder.values())).device
        trained = leaves(copied(start.encoder))
        self._head = leaves({name: value.to(device, copy=True) for name, value in head.items()})
        # One kernel for all parameters: a third of the time of the default.
        self._optimizer = without_compiler(torch.optim.Adam)(
            [*trained.values(), *self._head.values()], lr=lr, fused=True
        )
        self._network = trained | copied(start.buffers)
        self._lr, self._epochs, self._epoch, self._examples, self._label = lr, epochs, epoch, examples, label
        self.curve: list[float] = []
        self._defined: Tensor | None = None  # the classes with both labels in validation

    def train(self, epochs: int) -> None:
        """Train until `epochs` epochs are done, counted from the start of the run."""
        seen: dict[str, Tensor] = {}
        for _ in steps(len(self.curve), epochs, self._label, status=seen):
            for features, labels in self._epoch(self._network):
                loss = F.binary_cross_entropy_with_logits(_logits(self._head, features), labels)
                self._optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self._optimizer.step()
                seen["loss"] = loss
            outputs, labels = self._outputs(self._network, self._head, "validation")
            self._defined = defined_classes(labels) if self._defined is None else self._defined
            self.curve.append(100 * float(mean_auroc(outputs, labels, self._defined)))
            if highest(self.curve) == len(self.curve) - 1:
                self._best = copied(self._network), copied(self._head)

    def _outputs(self, network: Params, head: Params, part: Literal["validation", "test"]) -> tuple[Tensor, Tensor]:
        """Return logits and labels [n, classes] of all examples of a part."""
        features, labels = self._examples(network, part)
        return _logits(head, features), labels

    def score(self) -> Score:
        """Train to the end, and test."""
        self.train(self._epochs)
        return score(self.curve, *self._outputs(*self._best, "test"), self._lr)


def _logits(head: Params, features: Tensor) -> Tensor:
    return F.linear(features, head["weight"], head["bias"])
