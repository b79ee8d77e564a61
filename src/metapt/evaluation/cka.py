"""Linear centred kernel alignment (CKA): the similarity of two networks' features of the same examples."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def linear_cka(first: Tensor, second: Tensor) -> float:
    """Return the linear CKA of features [n, p] and [n, q] of the same examples (Kornblith et al. 2019), in [0, 1].

        ||X^T Y||_F^2 / (||X^T X||_F ||Y^T Y||_F),   X and Y with their columns centred,

    which is HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) for K = X X^T and L = Y Y^T, without a matrix of examples by
    examples. It is invariant to rotation, translation and scaling of either network's features, computed in float64,
    and NaN if features are not finite, or one network's are the same for all examples. Raises ValueError if the shapes
    don't fit, or there are fewer than two examples.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 5.0]])
    >>> round(linear_cka(x, 3 * x + 1), 12)
    1.0
    """
    if first.dim() != 2 or second.dim() != 2 or len(first) != len(second) or len(first) < 2:
        shapes = f"{list(first.shape)} and {list(second.shape)}"
        raise ValueError(f"CKA compares features [n, p] and [n, q] of the same two or more examples, not {shapes}")
    x, y = _centred(first), _centred(second)
    return float((x.T @ y).square().sum() / (torch.linalg.matrix_norm(x.T @ x) * torch.linalg.matrix_norm(y.T @ y)))


def _centred(features: Tensor) -> Tensor:
    values = features.double()
    # Without this step, equal features would leave rounding errors of the mean, in an arbitrary direction.
    values = values - values[:1]
    return values - values.mean(0)
