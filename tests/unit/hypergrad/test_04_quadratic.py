"""Every estimator against a central difference of the true function, where the minimum of PT has a closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import ConjugateGradient, Dense, FittedHead, Identity, Neumann, Pretrained, Status, Unroll

from .problems import DTYPE, OPTIMIZERS, Batch, Quadratic, called, central_difference, finetuned_loss, flat

pytestmark = pytest.mark.filterwarnings("error")

PROBLEM = Quadratic()
TRAIN = PROBLEM.batches(3)
VALIDATION = PROBLEM.batches(1, seed=50)[0]

INVERSES = [
    pytest.param(Dense(), id="dense"),
    pytest.param(ConjugateGradient(rtol=1e-12, max_steps=50), id="cg"),
    pytest.param(Neumann(terms=200, step_size=0.8), id="neumann"),
]


def unrolled(steps: int, network: bool, named: Any) -> Any:
    optimizer, reference = named.values

    def truth(pretrained: Pretrained) -> Tensor:
        return finetuned_loss(PROBLEM, pretrained, PROBLEM.head, TRAIN[:steps], VALIDATION, reference, network)

    label = f"{named.id}-{steps}-{'network' if network else 'head'}"
    return pytest.param(Unroll(steps, optimizer, network), TRAIN[:steps], truth, id=label)


def ridge(features: list[Tensor], targets: list[Tensor], l2: float) -> Tensor:
    """Return the minimum of the mean of squared error / 2 over minibatches plus l2 / 2 |head|^2, in closed form."""
    gram, moment = torch.zeros(3, 3, dtype=DTYPE), torch.zeros(3, dtype=DTYPE)
    for x, y in zip(features, targets, strict=True):
        design = torch.cat([x, torch.ones(len(x), 1, dtype=DTYPE)], dim=1)
        gram, moment = gram + design.T @ design / len(x) / len(features), moment + design.T @ y / len(x) / len(features)
    return torch.linalg.solve(gram + l2 * torch.eye(3, dtype=DTYPE), moment)


def fitted(l2: float, cross_fit: bool) -> Any:
    everything = [*TRAIN, VALIDATION]
    folds: list[tuple[list[Batch], Batch]] = [([b for b in everything if b is not held], held) for held in everything]

    def truth(pretrained: Pretrained) -> Tensor:
        losses = []
        for rest, held in folds if cross_fit else folds[-1:]:
            head = ridge([b.inputs @ pretrained.encoder["map"] for b in rest], [b.targets for b in rest], l2)
            losses.append(
                (held.inputs @ pretrained.encoder["map"] @ head[:2] + head[2] - held.targets).square().mean() / 2
            )
        return torch.stack(losses).mean()

    return pytest.param(FittedHead(l2, cross_fit), TRAIN, truth, id=f"fitted-{l2}-{'cross' if cross_fit else 'once'}")


SOLVERS = [
    *(unrolled(steps, network, named) for steps in (0, 1, 3) for network in (False, True) for named in OPTIMIZERS),
    *(fitted(l2, cross_fit) for l2 in (1e-3, 0.3) for cross_fit in (False, True)),
]


def estimate(inverse: Any, solver: Any, train: list[Batch], **given: Any) -> Any:
    given = {
        "pretrained": PROBLEM.optimum(PROBLEM.meta),
        "pretrain_batch": None,
        "validation_batch": VALIDATION,
    } | given
    return called(PROBLEM, inverse=inverse, solver=solver, train=train, **given)


@pytest.mark.parametrize("inverse", INVERSES)
@pytest.mark.parametrize(("solver", "train", "truth"), SOLVERS)
def test_an_estimator_with_a_converged_inverse_is_the_derivative_of_the_true_function(
    solver: Any, train: list[Batch], truth: Callable[[Pretrained], Tensor], inverse: Any
) -> None:
    result = estimate(inverse, solver, train)
    expected = central_difference(lambda meta: truth(PROBLEM.optimum(meta)), PROBLEM.meta)
    torch.testing.assert_close(result.gradient, expected, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(result.diagnostics.validation_loss, truth(PROBLEM.optimum(PROBLEM.meta)))
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
        *((each.values[0], torch.eye(8, dtype=DTYPE)) for each in INVERSES),
        (Identity(), PROBLEM.H),
        *(
            (inverse, torch.linalg.solve(PROBLEM.H + 0.5 * torch.eye(8, dtype=DTYPE), PROBLEM.H))
            for inverse in (Dense(damping=0.5), ConjugateGradient(rtol=1e-12, max_steps=50, damping=0.5))
        ),
    ],
)
def test_without_ft_steps_the_hypergradient_is_the_analytic_one(inverse: Any, factor: Tensor) -> None:
    result = estimate(inverse, Unroll(steps=0), [])
    torch.testing.assert_close(flat(result.gradient), PROBLEM.A.T @ factor @ direct_part())


@pytest.mark.parametrize("terms", [0, 1, 2, 5, 20])
@pytest.mark.parametrize("step_size", [0.3, 0.8])
def test_the_error_of_a_truncated_neumann_series_is_what_theory_says(terms: int, step_size: float) -> None:
    exact = PROBLEM.A.T @ direct_part()
    error = flat(estimate(Neumann(terms, step_size), Unroll(steps=0), []).gradient) - exact
    left = torch.linalg.matrix_power(torch.eye(8, dtype=DTYPE) - step_size * PROBLEM.H, terms + 1)
    torch.testing.assert_close(error, -PROBLEM.A.T @ left @ direct_part(), rtol=1e-9, atol=1e-12)
    rate = (1 - step_size * PROBLEM.eigenvalues).abs().max()
    assert error.norm() <= torch.linalg.matrix_norm(PROBLEM.A, 2) * rate ** (terms + 1) * direct_part().norm() * (
        1 + 1e-9
    )


def test_the_diagnostics_are_the_norms_of_the_factors() -> None:
    result = estimate(Dense(), Unroll(steps=0), [])
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


def test_the_pretrain_gradient_is_that_of_the_pretrain_loss() -> None:
    start = Pretrained({"map": torch.ones(3, 2, dtype=DTYPE)}, {"bias": torch.ones(2, dtype=DTYPE)})
    result = estimate(Identity(), Unroll(steps=0), [], pretrained=start)
    expected = PROBLEM.H @ (1 - PROBLEM.A @ flat(PROBLEM.meta))
    torch.testing.assert_close(flat({**result.pretrain_gradient.encoder, **result.pretrain_gradient.head}), expected)
    torch.testing.assert_close(result.diagnostics.pretrain_loss, PROBLEM.pretrain_loss(start, PROBLEM.meta, None))


def test_a_meta_parameter_that_the_pretrain_loss_does_not_touch_has_a_gradient_of_zero() -> None:
    result = estimate(Dense(), Unroll(0), [], meta={**PROBLEM.meta, "unused": torch.ones(2, dtype=DTYPE)})
    assert not result.gradient.pop("unused").any()
    torch.testing.assert_close(result.gradient, estimate(Dense(), Unroll(0), []).gradient)


def test_a_context_without_gradients_changes_nothing() -> None:
    expected = estimate(Dense(), Unroll(1), TRAIN[:1]).gradient
    with torch.no_grad():
        torch.testing.assert_close(estimate(Dense(), Unroll(1), TRAIN[:1]).gradient, expected)
        assert not torch.is_grad_enabled()


def test_no_meta_parameters_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="meta is empty"):
        estimate(Dense(), Unroll(0), [], meta={})
