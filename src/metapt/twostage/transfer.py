"""FT of a whole network, encoder and head, with Adam (full transfer)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from metapt.evaluation.auroc import defined_classes, mean_auroc
from metapt.hypergrad import Params
from metapt.hypergrad.params import leaves
from metapt.training.optimizers import without_compiler
from metapt.training.progress import steps
from metapt.twostage.heads import Score, copied, highest, score


class Transfer:
    """An FT run of a whole network. The epoch with the best validation AUROC is tested.

    Args:
        encoder, head: initial parameters; like the buffers, not changed.
        buffers: BatchNorm's statistics.
        lr: learning rate.
        epochs: of the whole run.
        losses: yields the losses of an epoch's minibatches, given the network (encoder and buffers) and the head, each
            at their present values.
        outputs: returns logits and labels [n, classes] of all examples of a set, in evaluation mode.
        label: name of the progress; None: none is shown.

    Attributes:
        curve: validation AUROC (%) after each epoch so far.
    """

    def __init__(
        self,
        encoder: Params,
        buffers: Params,
        head: Params,
        *,
        lr: float,
        epochs: int,
        losses: Callable[[Params, Params], Iterator[Tensor]],
        outputs: Callable[[Params, Params, Literal["validation", "test"]], tuple[Tensor, Tensor]],
        label: str | None = None,
    ) -> None:
        trained, self._head = leaves(copied(encoder)), leaves(copied(head))
        # One kernel for all parameters: a third of the time of the default.
        self._optimizer = without_compiler(torch.optim.Adam)(
            [*trained.values(), *self._head.values()], lr=lr, fused=True
        )
        self._network = trained | copied(buffers)
        self._lr, self._epochs, self._losses, self._outputs, self._label = lr, epochs, losses, outputs, label
        self.curve: list[float] = []
        self._defined: Tensor | None = None  # the classes with both labels in validation
        self._done = 0  # epochs, also of those that a rehearsal leaves out

    def train(self, epochs: int) -> None:
        """Train until `epochs` epochs are done, counted from the start of the run."""
        seen: dict[str, Tensor] = {}
        for _ in steps(self._done, epochs, self._label, status=seen):
            for loss in self._losses(self._network, self._head):
                self._optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self._optimizer.step()
                seen["loss"] = loss
            outputs, labels = self._outputs(self._network, self._head, "validation")
            self._defined = defined_classes(labels) if self._defined is None else self._defined
            self.curve.append(100 * float(mean_auroc(outputs, labels, self._defined)))
            if highest(self.curve) == len(self.curve) - 1:
                self._best = copied(self._network), copied(self._head)
        self._done = epochs

    def score(self) -> Score:
        """Train to the end, and test."""
        self.train(self._epochs)
        return score(self.curve, *self._outputs(*self._best, "test"), self._lr)
