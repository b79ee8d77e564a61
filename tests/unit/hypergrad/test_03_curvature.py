"""Products with the Hessian and the Gauss-Newton matrix of a small network, against three other computations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metapt import Autocast
from metapt.hypergrad import ConjugateGradient, Status
from metapt.hypergrad.curvature import gauss_newton, hessian
from metapt.hypergrad.params import Pretrained, vjp_graph

from .problems import DTYPE, Classifier, WithoutRidge, called, classification, flat_vector, rebuilt

BATCH, VALIDATION = classification(100, 12), classification(102, 8)


def matrices(problem: Classifier) -> tuple[Tensor, Tensor]:
    """The Hessian and the Gauss-Newton matrix, column by column."""
    leaves = problem.pretrained.leaves()
    values = leaves.vector()
    gradient = vjp_graph(problem.pretrain_loss(leaves, problem.meta, BATCH), values, "pretrain_loss")
    outputs = problem.pretrain_outputs(leaves, problem.meta, BATCH)
    products = (
        hessian(gradient, values),
        gauss_newton(outputs, problem.outputs_loss(outputs, problem.meta, BATCH), values),
    )
    columns = torch.eye(len(flat_vector(values)), dtype=DTYPE)
    vectors = [rebuilt(problem.pretrained, column).vector() for column in columns]
    first, second = (torch.stack([flat_vector(product(each)) for each in vectors], dim=1) for product in products)
    return first, second


@pytest.mark.parametrize("problem", [Classifier(), Classifier(torch.relu)], ids=["tanh", "relu"])
def test_the_hessian_product_is_autograds_hessian(problem: Classifier) -> None:
    expected = torch.autograd.functional.hessian(
        lambda point: problem.pretrain_loss(rebuilt(problem.pretrained, point), problem.meta, BATCH),
        flat_vector(problem.pretrained.vector()),
    )
    torch.testing.assert_close(matrices(problem)[0], expected)


def test_the_gauss_newton_product_is_the_explicit_one_and_semidefinite_where_the_hessian_is_not() -> None:
    problem = WithoutRidge()
    at = flat_vector(problem.pretrained.vector())
    outputs = problem.pretrain_outputs(problem.pretrained, problem.meta, BATCH)
    jacobian = torch.autograd.functional.jacobian(
        lambda point: problem.pretrain_outputs(rebuilt(problem.pretrained, point), problem.meta, BATCH), at
    ).reshape(outputs.numel(), -1)
    curvature = torch.autograd.functional.hessian(
        lambda point: problem.outputs_loss(point.reshape(outputs.shape), problem.meta, BATCH), outputs.reshape(-1)
    )
    indefinite, matrix = matrices(problem)
    torch.testing.assert_close(matrix, jacobian.T @ curvature @ jacobian)
    assert torch.linalg.eigvalsh(indefinite).min() < -1e-3
    assert torch.linalg.eigvalsh(matrix).min() > -1e-12


def call(problem: Any, curvature: str) -> Any:
    inverse = ConjugateGradient(rtol=1e-10, max_steps=500, damping=1e-3)
    return called(problem, pretrain_batch=BATCH, validation_batch=VALIDATION, inverse=inverse, curvature=curvature)


def test_the_hypergradient_may_use_gauss_newton_where_the_hessian_is_indefinite() -> None:
    problem = WithoutRidge()
    assert call(problem, "hessian").diagnostics.solve_status is Status.INDEFINITE
    result = call(problem, "gauss_newton")
    assert result.diagnostics.solve_status is Status.OK
    # -(g2, 0) (G + damping)^-1 d2L/(dw dmeta), each factor made on its own
    features = {name: value.clone().requires_grad_() for name, value in problem.pretrained.encoder.items()}
    loss = problem.head_loss(problem.head, problem.encode(features, VALIDATION), VALIDATION)
    at = flat_vector(problem.pretrained.vector())
    g2 = torch.zeros_like(at)
    g2[:25] = flat_vector(torch.autograd.grad(loss, list(features.values())))
    solved = torch.linalg.solve(matrices(problem)[1] + 1e-3 * torch.eye(at.numel(), dtype=DTYPE), g2)

    def slope(weights: Tensor) -> Tensor:
        meta = {"weights": weights}
        return torch.func.grad(lambda point: problem.pretrain_loss(rebuilt(problem.pretrained, point), meta, BATCH))(at)

    mixed = torch.func.jacrev(slope)(problem.meta["weights"])
    torch.testing.assert_close(result.gradient["weights"], -solved @ mixed, rtol=1e-7, atol=1e-10)


def test_gauss_newton_under_autocast_is_not_refused() -> None:
    def single(values: Any) -> Any:
        return {name: 3 * value.float() for name, value in values.items()}

    problem, batch = WithoutRidge(), BATCH._replace(inputs=BATCH.inputs.float())
    problem.pretrained = Pretrained(*map(single, problem.pretrained))
    problem.meta, problem.head = single(problem.meta), single(problem.head)
    given = {"pretrain_batch": batch, "validation_batch": batch, "curvature": "gauss_newton"}
    own = {"pretrained": problem.pretrained, "meta": problem.meta, "head": problem.head}
    rounded, whole = (called(each, **given, **own).gradient for each in (Autocast(problem, "cpu"), problem))
    torch.testing.assert_close(rounded, whole, rtol=0.1, atol=1e-3)


class Whole:
    """A problem that does not split its PT loss."""

    def __init__(self) -> None:
        inner = Classifier()
        self.pretrained, self.meta, self.head = inner.pretrained, inner.meta, inner.head
        self.pretrain_loss, self.encode, self.head_loss = inner.pretrain_loss, inner.encode, inner.head_loss


@pytest.mark.parametrize(
    ("problem", "curvature", "sentence"),
    [
        (WithoutRidge(), "fisher", "legal: 'hessian', 'gauss_newton'"),
        (Whole(), "gauss_newton", "ModuleProblem"),
        (Classifier(), "gauss_newton", "pretrain_loss is not outputs_loss of pretrain_outputs"),
    ],
)
def test_a_curvature_that_is_not_there_is_refused_in_words(problem: Any, curvature: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call(problem, curvature)
