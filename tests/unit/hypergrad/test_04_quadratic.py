"""Every estimator against a central difference of the true function, where the minimum of PT has a closed form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import ConjugateGradient, Dense, Identity, Neumann, Params, Status, Unroll

from .problems import DTYPE, OPTIMIZERS, Quadratic, Reference, called, central_difference, finetuned_loss, flat

pytestmark = pytest.mark.filterwarnings("error")

PROBLEM = Quadratic()
TRAIN = PROBLEM.batches(3)
VALIDATION = PROBLEM.batches(1, seed=50)[0]

INVERSES = [
    pytest.param(Dense(), id="dense"),
    pytest.param(ConjugateGradient(rtol=1e-12, max_steps=50), id="cg"),
    pytest.param(Neumann(terms=200, step_size=0.8), id="neumann"),
]


def estimate(inverse: Any, **given: Any) -> Any:
    own = {"pretrained": PROBLEM.optimum(PROBLEM.meta), "pretrain_batch": None, "validation_batch": VALIDATION}
    return called(PROBLEM, inverse=inverse, **own | given)


@pytest.mark.parametrize("inverse", INVERSES)
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize(("optimizer", "reference"), OPTIMIZERS)
def test_an_estimator_with_a_converged_inverse_is_the_derivative_of_the_true_function(
    optimizer: Any, reference: Reference, network: bool, steps: int, inverse: Any
) -> None:
    def truth(meta: Params) -> Tensor:
        pretrained, train = PROBLEM.optimum(meta), TRAIN[:steps]
        return finetuned_loss(PROBLEM, pretrained, PROBLEM.head, train, VALIDATION, reference, network)

    result = estimate(inverse, finetuning=Unroll(steps, optimizer, network), train_batches=TRAIN[:steps])
    torch.testing.assert_close(result.gradient, central_difference(truth, PROBLEM.meta), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(result.diagnostics.validation_loss, truth(PROBLEM.meta))
    assert result.diagnostics.solve_status is Status.OK
    assert result.diagnostics.fit_status is Status.OK


def direct_part() -> Tensor:
    """g2 of K = 0 by hand, on encoder and PT head: X^T (X E h + c - y) h^T / n, and zero."""
    encoder, head = PROBLEM.optimum(PROBLEM.meta).encoder["map"], PROBLEM.head
    x, y = VALIDATION
    residual = x @ encoder @ head["weight"] + head["bias"] - y
    return torch.cat([torch.outer(x.T @ residual, head["weight"]).reshape(-1) / len(y), torch.zeros(2, dtype=DTYPE)])


@pytest.mark.parametrize(
    ("inverse", "factor"),  # d w* / d meta = A and d2L / (dw dmeta) = - H A, so the gradient is (factor A)^T g2
    [
        (Identity(), PROBLEM.H),
        *(
            (inverse, torch.linalg.solve(PROBLEM.H + 0.5 * torch.eye(8, dtype=DTYPE), PROBLEM.H))
            for inverse in (Dense(damping=0.5), ConjugateGradient(rtol=1e-12, max_steps=50, damping=0.5))
        ),
    ],
)
def test_without_ft_steps_the_hypergradient_is_the_analytic_one(inverse: Any, factor: Tensor) -> None:
    result = estimate(inverse)
    torch.testing.assert_close(flat(result.gradient), PROBLEM.A.T @ factor @ direct_part())


def test_the_diagnostics_are_the_norms_of_the_factors() -> None:
    result = estimate(Dense())
    diagnostics, g2 = result.diagnostics, direct_part()
    pretrained = PROBLEM.optimum(PROBLEM.meta)
    features = VALIDATION.inputs @ pretrained.encoder["map"]
    residual = features @ PROBLEM.head["weight"] + PROBLEM.head["bias"] - VALIDATION.targets
    head = torch.cat([features.T @ residual, residual.sum()[None]]) / len(residual)
    torch.testing.assert_close(diagnostics.head_gradient_norm, head.norm())
    torch.testing.assert_close(diagnostics.encoder_gradient_norm, g2.norm())
    torch.testing.assert_close(diagnostics.inverse_norm, torch.linalg.solve(PROBLEM.H, g2).norm())
    torch.testing.assert_close(diagnostics.gradient_norm, flat(result.gradient).norm())
    torch.testing.assert_close(diagnostics.validation_loss, residual.square().mean() / 2)
    assert (diagnostics.solve_steps, diagnostics.finetune_losses.shape) == (8, torch.Size([0]))


def test_a_meta_parameter_that_the_pretrain_loss_does_not_touch_has_a_gradient_of_zero() -> None:
    result = estimate(Dense(), meta={**PROBLEM.meta, "unused": torch.ones(2, dtype=DTYPE)})
    assert not result.gradient.pop("unused").any()
    torch.testing.assert_close(result.gradient, estimate(Dense()).gradient)


def test_no_meta_parameters_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="meta is empty"):
        estimate(Dense(), meta={})
