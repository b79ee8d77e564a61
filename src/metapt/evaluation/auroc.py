"""The area under the ROC curve (AUROC): the probability that a positive example scores above a negative one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from metapt.errors import DataError


class MeanAuroc(NamedTuple):
    """A mean AUROC over classes."""

    value: Tensor  # in [0, 1], float64, [...]
    undefined: tuple[int, ...]  # classes that the mean leaves out, because all of their labels are equal


@torch.no_grad()
def auroc(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the AUROC, float64 in [0, 1], of `scores` and `labels` (0 and 1), [..., n], broadcast.

    It is computed as the rank statistic of Mann and Whitney with average ranks for ties, and NaN if all labels are
    equal or a score is NaN.
    """
    scores = scores.contiguous()
    ordered = scores.sort(-1).values
    below = torch.searchsorted(ordered, scores)
    up_to = torch.searchsorted(ordered, scores, right=True)
    ranks = (below + up_to + 1).double() / 2
    positive = labels.double()
    positives, negatives = positive.sum(-1), (1 - positive).sum(-1)
    wins = (ranks * positive).sum(-1) - positives * (positives + 1) / 2
    return (wins / (positives * negatives)).masked_fill(scores.isnan().any(-1), torch.nan)


def mean_auroc(scores: Tensor, labels: Tensor) -> MeanAuroc:
    """Return the mean AUROC of `scores` [..., n, classes] over the classes that have both `labels` [n, classes].

    Raises DataError if no class has both labels.
    """
    undefined = undefined_classes(labels)
    defined = [index for index in range(labels.shape[1]) if index not in undefined]
    if not defined:
        raise DataError(
            f"no AUROC is defined on these {len(labels)} examples, as no class has both labels; take more examples."
        )
    return MeanAuroc(auroc(scores.mT, labels.mT)[..., defined].mean(-1), undefined)


def undefined_classes(labels: Tensor) -> tuple[int, ...]:
    """Return the classes whose labels [n, classes] are all 0 or all 1."""
    positives = labels.sum(0)
    return tuple(torch.nonzero((positives == 0) | (positives == len(labels))).flatten().tolist())
