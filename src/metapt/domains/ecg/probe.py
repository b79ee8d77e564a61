"""The FT loss of linear heads on given features, by cross-validation on labelled ECGs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_NEWTON_STEPS = 30


def ridge_logistic(features: Tensor, labels: Tensor, l2: float) -> Tensor:
    """Fit a logistic regression of each class to features [n, size], float64, and labels [n, classes], by Newton.

    The loss is the mean over ECGs and classes plus l2 / 2 |head|^2. Returns heads [size + 1, classes], the bias last.
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
        # A full step may overshoot far from the minimum; steps of bounded length in the logits do not.
        step = step / (inputs @ step).abs().amax().div(5).clamp_min(1.0)
        heads = heads - step
        if step.abs().max() < 1e-9:
            break
    return heads


def fold_heads(features: Tensor, labels: Tensor, fold: Tensor, l2: float) -> list[Tensor]:
    """Return one head for each `fold` [n] (from 0 on without a gap), fitted on the others; see `ridge_logistic`."""
    inputs, targets = features.double(), labels.double()
    return [ridge_logistic(inputs[fold != out], targets[fold != out], l2) for out in range(int(fold.max()) + 1)]


def held_out_loss(heads: list[Tensor], features: Tensor, labels: Tensor, fold: Tensor) -> float:
    """Return the mean over folds of the binary cross-entropy of each fold's head on that fold, see `fold_heads`."""
    inputs, targets = features.double(), labels.double()
    losses = []
    for out, head in enumerate(heads):
        scores = inputs[fold == out] @ head[:-1] + head[-1]
        losses.append(F.binary_cross_entropy_with_logits(scores, targets[fold == out]))
    return float(torch.stack(losses).mean())


def cross_validated_loss(features: Tensor, labels: Tensor, fold: Tensor, l2: float) -> float:
    """Return the cross-validated binary cross-entropy of heads fitted to features, see `fold_heads`."""
    return held_out_loss(fold_heads(features, labels, fold, l2), features, labels, fold)
