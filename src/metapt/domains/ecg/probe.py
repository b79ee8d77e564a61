"""What a representation is worth to a linear head, by cross-validation on labelled ECGs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_NEWTON_STEPS = 30


def ridge_logistic(features: Tensor, labels: Tensor, l2: float) -> Tensor:
    """Logistic regression of each class by Newton's method, l2 / 2 |head|^2 added to the mean loss over ECGs and classes.

    Args:
        features: [n, size], float64.
        labels: [n, classes].

    Returns:
        heads [size + 1, classes], the bias last.
    """
    inputs = torch.cat([features, torch.ones_like(features[:, :1])], dim=1)
    (count, size), classes = inputs.shape, labels.shape[1]
    heads = inputs.new_zeros(size, classes)
    ridge = l2 * classes * count * torch.eye(size, dtype=inputs.dtype, device=inputs.device)
    for _ in range(_NEWTON_STEPS):
        rates = torch.sigmoid(inputs @ heads)
        gradient = inputs.T @ (rates - labels) + ridge @ heads
        curvature = torch.einsum("nf,nc,ng->cfg", inputs, rates * (1 - rates), inputs) + ridge
        step = torch.linalg.solve(curvature, gradient.T.unsqueeze(2)).squeeze(2).T
        # Far from the minimum a full step may overshoot; a logistic loss is safe with steps of bounded length in the logits.
        step = step / (inputs @ step).abs().amax().div(5).clamp_min(1.0)
        heads = heads - step
        if step.abs().max() < 1e-9:
            break
    return heads


def cross_validated_loss(features: Tensor, labels: Tensor, fold: Tensor, l2: float) -> float:
    """Binary cross-entropy on held-out ECGs, the mean over folds, heads fitted on the others.

    Args:
        features: [n, size].
        labels: [n, classes].
        fold: [n], the fold of each ECG, from 0 on without a gap.
    """
    inputs, targets = features.double(), labels.double()
    losses = []
    for held_out in range(int(fold.max()) + 1):
        rest, out = fold != held_out, fold == held_out
        heads = ridge_logistic(inputs[rest], targets[rest], l2)
        scores = inputs[out] @ heads[:-1] + heads[-1]
        losses.append(F.binary_cross_entropy_with_logits(scores, targets[out]))
    return float(torch.stack(losses).mean())
