"""The probe is ridge logistic regression, and evaluates features on held-out ECGs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from metapt.domains.ecg.probe import cross_validated_loss, ridge_logistic


def data(count: int = 60, size: int = 4, classes: int = 3, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(count, size, generator=generator, dtype=torch.float64) * scale
    logits = features @ torch.randn(size, classes, generator=generator, dtype=torch.float64) / scale + 0.5
    return features, (logits + torch.randn(count, classes, generator=generator) > 0).double()


@pytest.mark.parametrize("l2", [1e-3, 1e-1])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_it_is_scikit_learns_regression_class_by_class(l2: float, scale: float) -> None:
    features, labels = data(scale=scale)
    heads = ridge_logistic(features, labels, l2)
    inputs = np.hstack([features.numpy(), np.ones((60, 1))])  # the bias is penalised, too
    for index in range(3):
        model = LogisticRegression(
            C=1 / (l2 * 3 * 60), fit_intercept=False, tol=1e-10, solver="newton-cholesky", max_iter=1000
        )
        model.fit(inputs, labels[:, index].numpy())
        np.testing.assert_allclose(heads[:, index].numpy(), model.coef_[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_the_minimum_is_stationary_where_the_classes_are_separable(scale: float) -> None:
    features = scale * torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(1)
    labels = (features > 0).double()
    heads = ridge_logistic(features, labels, 1e-3).requires_grad_()
    scores = features @ heads[:-1] + heads[-1]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels) + 1e-3 / 2 * heads.square().sum()
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


def test_noise_is_worth_less_than_what_knows_the_labels() -> None:
    features, labels = data(count=200)
    noise = torch.randn(200, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    prior = float(torch.nn.functional.binary_cross_entropy(labels.mean(0).expand(200, 3), labels))
    informed, uninformed = (cross_validated_loss(x, labels, torch.arange(len(x)) % 5, 1e-2) for x in (features, noise))
    assert informed < 0.9 * prior < prior < uninformed * 1.05
    assert informed < uninformed - 0.05
    overfitted = cross_validated_loss(torch.randn(40, 30, dtype=torch.float64), labels[:40], torch.arange(40) % 5, 1e-6)
    assert overfitted > prior
