"""NT-Xent, the loss of SimCLR (Chen et al. 2020, Eq. 1; the paper's appendix "SimCLR summary")."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def similarities(projections: Tensor, temperature: float | Tensor) -> Tensor:
    """Return the cosine similarity of each view to each other view, divided by the temperature, as a matrix [2n, 2n].

    The projections [2n, d] are those of the first views of n examples, and then of their second views. The diagonal is
    minus infinity, so that no view is compared with itself.
    """
    units = F.normalize(projections, dim=1)
    diagonal = torch.eye(len(units), dtype=torch.bool, device=units.device)
    return (units @ units.T / temperature).masked_fill(diagonal, -torch.inf)


def cross_entropy(similarities: Tensor) -> Tensor:
    """Return the mean over views of -log softmax at the other view of the same example.

    It is a convex function of the similarities.
    """
    count = len(similarities)
    partners = torch.arange(count, device=similarities.device).roll(count // 2)
    return F.cross_entropy(similarities, partners)
