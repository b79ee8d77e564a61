"""The fitted head: at the minimum, and differentiated as refits say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
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


def refit(batches: list[Batch], encoder: Params, l2: float = L2) -> Params:
    """Newton's method with the softmax's own gradient and Hessian, to the last digit."""
    features = torch.cat([PROBLEM.encode(encoder, batch) for batch in batches])
    design = torch.cat([features, torch.ones(len(features), 1, dtype=DTYPE)], dim=1)
    labels = F.one_hot(torch.cat([batch.targets for batch in batches]), 3).to(DTYPE)
    point = torch.zeros(3, 6, dtype=DTYPE)
    for _ in range(8):
        p = (design @ point.T).softmax(dim=1)
        slope = (p - labels).T @ design / len(design) + l2 * point
        between = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        curvature = torch.einsum("nab,ni,nj->aibj", between, design, design).reshape(18, 18) / len(design)
        point = point - torch.linalg.solve(curvature + l2 * torch.eye(18, dtype=DTYPE), slope.reshape(18)).reshape(3, 6)
    assert slope.abs().max() < 1e-10
    return {"weight": point[:, :5], "bias": point[:, 5]}


def held_out_loss(encoder: Params, train: list[Batch], held_out: Batch) -> Tensor:
    return PROBLEM.head_loss(refit(train, encoder), PROBLEM.encode(encoder, held_out), held_out)


@pytest.mark.parametrize(("l2", "scale"), [(1e-3, 1.0), (L2, 0.0), (L2, 30.0), (1.0, 1.0)])
def test_the_head_is_at_the_minimum_of_the_regularised_loss_wherever_the_fit_starts(l2: float, scale: float) -> None:
    train, start = [TRAIN[0], *TRAIN[:2]], {name: scale * value for name, value in PROBLEM.head.items()}
    result, expected = tune(FittedHead(l2), train, head=start), refit(train, ENCODER, l2)  # one of them counts twice
    torch.testing.assert_close(result.head, expected, rtol=1e-4, atol=1e-5)
    losses = [PROBLEM.head_loss(expected, PROBLEM.encode(ENCODER, batch), batch) for batch in train]
    loss = torch.stack(losses).mean() + l2 / 2 * flat(expected).square().sum()
    torch.testing.assert_close(result.train_losses, loss[None])
    assert result.status is Status.OK


@pytest.mark.parametrize("train", [TRAIN, [VALIDATION]], ids=["apart", "the validation minibatch itself"])
def test_the_encoder_gradient_is_the_derivative_of_refits(train: list[Batch]) -> None:
    result = tune(FittedHead(L2), train)
    expected = central_difference(lambda encoder: held_out_loss(encoder, train, VALIDATION), ENCODER, step=1e-4)
    torch.testing.assert_close(result.encoder_gradient, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(result.validation_loss, held_out_loss(ENCODER, train, VALIDATION), rtol=1e-6, atol=1e-8)


def test_cross_fitting_is_the_mean_over_held_out_minibatches() -> None:
    everything = [*TRAIN, VALIDATION]
    result = tune(FittedHead(L2, cross_fit=True))
    alone = [tune(FittedHead(L2), [b for b in everything if b is not held], last=held) for held in everything]
    for name, value in result.encoder_gradient.items():
        expected = torch.stack([fit.encoder_gradient[name] for fit in alone]).mean(0)
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-7)
    for what in ("validation_loss", "head_gradient_norm"):
        torch.testing.assert_close(getattr(result, what), torch.stack([getattr(fit, what) for fit in alone]).mean())
    torch.testing.assert_close(result.train_losses, torch.cat([fit.train_losses for fit in alone]))
    torch.testing.assert_close(result.head, refit(everything, ENCODER), rtol=1e-4, atol=1e-5)
    assert result.status is Status.OK


@pytest.mark.parametrize("cross_fit", [False, True])
def test_a_fit_in_float32_ends_at_the_minimum_with_status_ok(cross_fit: bool) -> None:
    def single(params: Params) -> Params:
        return {name: value.float() for name, value in params.items()}

    batches = [Batch(batch.inputs.float(), batch.targets) for batch in (*TRAIN[:1], VALIDATION)]
    solver = FittedHead(1e-3, cross_fit)
    result = solver(PROBLEM, single(ENCODER), {}, single(PROBLEM.head), None, batches[:1], batches[1])
    expected = tune(solver, TRAIN[:1])
    assert result.status is Status.OK
    assert result.head["weight"].dtype == torch.float32
    torch.testing.assert_close(result.encoder_gradient, single(expected.encoder_gradient), rtol=1e-2, atol=1e-3)


class Wavy(Classifier):
    """A problem whose head loss is not convex."""

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        outputs = features @ head["weight"].T
        return (outputs + head["bias"]).sin().mean() + outputs.square().mean() / 20


def test_what_is_not_fitted_is_a_status_and_never_an_exception() -> None:
    assert tune(FittedHead(1e-4, max_steps=1)).status is Status.MAX_STEPS
    encoder = {**ENCODER, "bias": ENCODER["bias"] * math.nan}
    for cross_fit in (False, True):
        assert tune(FittedHead(L2, cross_fit), encoder=encoder).status is Status.NON_FINITE
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
        (lambda: tune(FittedHead(L2), head={}), r"not frozen; without any take Unroll\(0\)"),
        (lambda: tune(FittedHead(L2, cross_fit=True), [VALIDATION] * 2), "at least two different FT minibatches"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_words(make: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
