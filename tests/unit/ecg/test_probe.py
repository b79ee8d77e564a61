"""The probe is ridge logistic regression, and evaluates features on held-out ECGs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from metapt.domains.ecg.cross_validation import cross_validated_loss, ridge_logistic


def data(count: int = 60, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(count, 4, generator=generator, dtype=torch.float64) * scale
    logits = features @ torch.randn(4, 3, generator=generator, dtype=torch.float64) / scale + 0.5
    return features, (logits + torch.randn(count, 3, generator=generator) > 0).double()


@pytest.mark.parametrize(
    ("l2", "scale", "separable"),
    [(1e-3, 1.0, False), (1e-3, 30.0, False), (1e-1, 30.0, False), (1e-3, 1.0, True), (1e-1, 30.0, True)],
)
def test_it_is_the_minimum_of_the_convex_loss_with_a_penalised_bias(l2: float, scale: float, separable: bool) -> None:
    features, labels = data(scale=scale)
    labels = (features[:, :3] > 0).double() if separable else labels
    heads = ridge_logistic(features, labels, l2).requires_grad_()
    scores = features @ heads[:-1] + heads[-1]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels) + l2 / 2 * heads.square().sum()
    (slope,) = torch.autograd.grad(loss, heads)
    assert slope.abs().max() < 1e-9


def test_the_loss_is_that_of_held_out_folds() -> None:
    features, labels = data(count=23)
    fold = torch.arange(23) * 7 % 4
    losses = []
    for held_out in range(4):
        out = fold == held_out
        heads = ridge_logistic(features[~out], labels[~out], 0.1)
        chance = torch.sigmoid(features[out] @ heads[:-1] + heads[-1])
        losses.append(-(labels[out] * chance.log() + (1 - labels[out]) * (1 - chance).log()).mean())
    expected = float(torch.stack(losses).mean())
    assert cross_validated_loss(features, labels, fold, 0.1) == pytest.approx(expected)
    assert cross_validated_loss(features.float(), labels.float(), fold, 0.1) == pytest.approx(expected, rel=1e-5)
