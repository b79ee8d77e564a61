"""The area under the ROC curve (AUROC): how probably a positive example scores above a negative one, ties counting half."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from metapt.errors import DataError


class MeanAuroc(NamedTuple):
    """A mean over classes.

    Attributes:
        value: in [0, 1], float64, [...].
        undefined: classes that are left out of it, as their labels are all equal.
    """

    value: Tensor
    undefined: tuple[int, ...]


@torch.no_grad()
def auroc(scores: Tensor, labels: Tensor) -> Tensor:
    """The rank statistic of Mann and Whitney, with average ranks for ties.

    Args:
        scores: [..., n], higher for what is held positive.
        labels: 0 and 1, [..., n]; scores and labels are broadcast.

    Returns:
        In [0, 1], float64, [...]; NaN where it is undefined as labels are all equal, and where a score is NaN.
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
    """The mean over the classes with both labels. Who takes it says which classes it leaves out.

    Args:
        scores: [..., n, classes].
        labels: 0 and 1, [n, classes].

    Raises:
        DataError: no class has both labels.
    """
    undefined = undefined_classes(labels)
    defined = [index for index in range(labels.shape[1]) if index not in undefined]
    if not defined:
        raise DataError(
            f"no AUROC is defined on these {len(labels)} examples, as no class has both labels; take more examples."
        )
    return MeanAuroc(auroc(scores.mT, labels.mT)[..., defined].mean(-1), undefined)


def undefined_classes(labels: Tensor) -> tuple[int, ...]:
    """Classes whose labels [n, classes] are all 0 or all 1."""
    positives = labels.sum(0)
    return tuple(torch.nonzero((positives == 0) | (positives == len(labels))).flatten().tolist())
