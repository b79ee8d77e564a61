"""The area under the ROC curve (AUROC): the probability that a positive example scores above a negative one."""

from __future__ import annotations

import torch
from torch import Tensor

from metapt.errors import DataError


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


def mean_auroc(scores: Tensor, labels: Tensor, defined: Tensor | None = None) -> Tensor:
    """Return the mean AUROC of `scores` [..., n, classes] over the classes that have both `labels` [n, classes].

    It is float64 in [0, 1], [...]. With `defined`, what `defined_classes` returns for the labels, it is computed
    without waiting for a GPU. Raises DataError if no class has both labels.
    """
    return auroc(scores.mT, labels.mT)[..., defined_classes(labels) if defined is None else defined].mean(-1)


def defined_classes(labels: Tensor) -> Tensor:
    """Return the classes that have both labels, of labels [n, classes]: int64, on their device.

    Raises DataError if there are none.
    """
    defined = torch.nonzero(~_equal_labels(labels)).flatten()
    if not len(defined):
        raise DataError(
            f"no AUROC is defined on these {len(labels)} examples, as no class has both labels; take more examples."
        )
    return defined


def undefined_classes(labels: Tensor) -> tuple[int, ...]:
    """Return the classes whose labels [n, classes] are all 0 or all 1."""
    return tuple(torch.nonzero(_equal_labels(labels)).flatten().tolist())


def _equal_labels(labels: Tensor) -> Tensor:
    positives = labels.sum(0)
    return (positives == 0) | (positives == len(labels))
