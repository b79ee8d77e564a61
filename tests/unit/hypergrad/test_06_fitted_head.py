"""The fitted head: at the minimum, equal to scikit-learn's, and differentiated as refits and long unrolls say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional as F

from metapt.hypergrad import FineTuned, FittedHead, Params, Status

from .problems import DTYPE, Batch, Classifier, central_difference, classification, draw, flat

pytestmark = pytest.mark.filterwarnings("error")

PROBLEM = Classifier()
ENCODER = PROBLEM.pretrained.encoder
TRAIN = [classification(200 + 2 * i, 10) for i in range(3)]
VALIDATION = classification(300, 10)
L2 = 0.02


class NoBias(Classifier):
    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(features @ head["weight"].T, batch.targets)


def tune(
    solver: Any,
    train: list[Batch] = TRAIN,
    encoder: Params = ENCODER,
    problem: Any = PROBLEM,
    head: Params = PROBLEM.head,
    last: Batch = VALIDATION,
) -> FineTuned:
    result: FineTuned = solver(problem, encoder, {}, head, None, train, last)
    return result


def objective(head: Params, batches: list[Batch], l2: float = L2, encoder: Params = ENCODER) -> Tensor:
    losses = [PROBLEM.head_loss(head, PROBLEM.encode(encoder, batch), batch) for batch in batches]
    return torch.stack(losses).mean() + l2 / 2 * flat(head).square().sum()


def refit(batches: list[Batch], encoder: Params, l2: float = L2) -> Params:
    """Newton's method with the softmax's own gradient and Hessian, to the last digit."""
    features = torch.cat([PROBLEM.encode(encoder, batch) for batch in batches])
    design = torch.cat([features, torch.ones(len(features), 1, dtype=DTYPE)], dim=1)
    labels = F.one_hot(torch.cat([batch.targets for batch in batches]), 3).to(DTYPE)
    point = torch.zeros(3, 6, dtype=DTYPE)
    for _ in range(12):
        p = (design @ point.T).softmax(dim=1)
        slope = (p - labels).T @ design / len(design) + l2 * point
        between = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        curvature = torch.einsum("nab,ni,nj->aibj", between, design, design).reshape(18, 18) / len(design)
        point = point - torch.linalg.solve(curvature + l2 * torch.eye(18, dtype=DTYPE), slope.reshape(18)).reshape(3, 6)
    assert slope.abs().max() < 1e-10
    return {"weight": point[:, :5], "bias": point[:, 5]}


def held_out_loss(encoder: Params, train: list[Batch], held_out: Batch) -> Tensor:
    return PROBLEM.head_loss(refit(train, encoder), PROBLEM.encode(encoder, held_out), held_out)


@pytest.mark.parametrize("l2", [1e-4, 1e-2, 1.0])
def test_the_head_is_at_the_minimum_of_the_regularised_loss(l2: float) -> None:
    result = tune(FittedHead(l2))
    head = {name: value.clone().requires_grad_() for name, value in result.head.items()}
    loss = objective(head, TRAIN, l2)
    slopes = torch.autograd.grad(loss, list(head.values()))
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-6
    torch.testing.assert_close(result.train_losses, loss.detach()[None])
    assert result.status is Status.OK


@pytest.mark.parametrize("c", [0.1, 10.0])
def test_the_head_is_scikit_learns_logistic_regression(c: float) -> None:
    # C sum_i loss_i + |W|^2 / 2 there; mean_i loss_i + l2 |W|^2 / 2 here
    problem, count = NoBias(), sum(len(batch.targets) for batch in TRAIN)
    result = tune(FittedHead(l2=1 / (c * count)), problem=problem, head={"weight": PROBLEM.head["weight"]})
    features = torch.cat([problem.encode(ENCODER, batch) for batch in TRAIN]).numpy()
    model = LogisticRegression(C=c, fit_intercept=False, tol=1e-12, max_iter=10_000)
    model.fit(features, torch.cat([batch.targets for batch in TRAIN]).numpy())
    np.testing.assert_allclose(result.head["weight"].numpy(), model.coef_, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_the_head_does_not_depend_on_where_the_fit_starts(scale: float) -> None:
    start = {name: scale * value for name, value in PROBLEM.head.items()}
    result = tune(FittedHead(L2), head=start)
    torch.testing.assert_close(result.head, refit(TRAIN, ENCODER), rtol=1e-4, atol=1e-5)
    assert result.status is Status.OK


def test_the_encoder_gradient_is_the_derivative_of_refits() -> None:
    result = tune(FittedHead(L2))
    expected = central_difference(lambda encoder: held_out_loss(encoder, TRAIN, VALIDATION), ENCODER, step=1e-4)
    torch.testing.assert_close(result.encoder_gradient, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(result.validation_loss, held_out_loss(ENCODER, TRAIN, VALIDATION), rtol=1e-6, atol=1e-8)


def test_cross_fitting_is_a_loop_over_held_out_minibatches() -> None:
    everything = [*TRAIN, VALIDATION]
    result = tune(FittedHead(L2, cross_fit=True))

    def truth(encoder: Params) -> Tensor:
        losses = [held_out_loss(encoder, [b for b in everything if b is not held], held) for held in everything]
        return torch.stack(losses).mean()

    torch.testing.assert_close(
        result.encoder_gradient, central_difference(truth, ENCODER, step=1e-4), rtol=1e-5, atol=1e-7
    )
    torch.testing.assert_close(result.validation_loss, truth(ENCODER), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(result.head, refit(everything, ENCODER), rtol=1e-4, atol=1e-5)
    assert result.train_losses.shape == (4,)
    assert result.status is Status.OK
    norms = [tune(FittedHead(L2), [b for b in everything if b is not held], last=held) for held in everything]
    torch.testing.assert_close(result.head_gradient_norm, torch.stack([fit.head_gradient_norm for fit in norms]).mean())


def test_a_minibatch_given_twice_counts_twice() -> None:
    twice = tune(FittedHead(L2), [TRAIN[0], TRAIN[0], TRAIN[1]])
    torch.testing.assert_close(twice.head, refit([TRAIN[0], TRAIN[0], TRAIN[1]], ENCODER), rtol=1e-4, atol=1e-5)


def test_the_validation_minibatch_may_be_the_one_that_the_head_is_fitted_on() -> None:
    result = tune(FittedHead(L2), [VALIDATION])
    expected = central_difference(lambda encoder: held_out_loss(encoder, [VALIDATION], VALIDATION), ENCODER, step=1e-4)
    torch.testing.assert_close(result.encoder_gradient, expected, rtol=1e-5, atol=1e-7)


def test_a_fit_in_float32_ends_at_the_minimum_with_status_ok() -> None:
    def single(params: Params) -> Params:
        return {name: value.float() for name, value in params.items()}

    batches = [Batch(batch.inputs.float(), batch.targets) for batch in (*TRAIN, VALIDATION)]
    for cross_fit in (False, True):
        solver = FittedHead(1e-3, cross_fit)
        result = solver(PROBLEM, single(ENCODER), {}, single(PROBLEM.head), None, batches[:3], batches[3])
        expected = tune(FittedHead(1e-3, cross_fit))
        assert result.status is Status.OK
        assert result.head["weight"].dtype == torch.float32
        torch.testing.assert_close(result.encoder_gradient, single(expected.encoder_gradient), rtol=1e-2, atol=1e-3)


def test_a_fit_cut_short_says_so() -> None:
    result = tune(FittedHead(1e-4, max_steps=1))
    assert result.status is Status.MAX_STEPS


def test_features_that_are_not_finite_are_a_status_and_never_an_exception() -> None:
    encoder = {**ENCODER, "bias": ENCODER["bias"] * math.nan}
    for cross_fit in (False, True):
        assert tune(FittedHead(L2, cross_fit), encoder=encoder).status is Status.NON_FINITE


def test_a_head_loss_that_is_not_convex_ends_with_a_status_and_a_finite_head() -> None:
    class Wavy(Classifier):
        def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
            return (features @ head["weight"].T + head["bias"]).sin().mean() + (
                features @ head["weight"].T
            ).square().mean() / 20

    result = tune(FittedHead(L2), problem=Wavy(), head={"weight": draw(0, 3, 5), "bias": draw(1, 3)})
    assert all(value.isfinite().all() for value in result.head.values())
    assert isinstance(result.status, Status)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FittedHead(l2=0.0), "legal: a positive number"),
        (lambda: FittedHead(max_steps=0), "legal: 1 or more"),
        (lambda: FittedHead(tolerance=1.0), "legal: between 0 and 1"),
        (lambda: tune(FittedHead(L2), []), "at least one FT training minibatch"),
        (lambda: tune(FittedHead(L2), head={}), r"for a head without any take Unroll\(0\)"),
        (lambda: tune(FittedHead(L2, cross_fit=True), [VALIDATION] * 2), "at least two different FT minibatches"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_words(make: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
