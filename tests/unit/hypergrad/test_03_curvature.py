"""Products with the Hessian and the Gauss-Newton matrix of a small network, against three other computations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import ConjugateGradient, Status
from metapt.hypergrad.curvature import gauss_newton, hessian
from metapt.hypergrad.params import Pretrained, vjp_graph

from .problems import DTYPE, Classifier, WithoutRidge, called, classification

BATCH = classification(100, 12)


def vector_of(problem: Classifier, flat: Tensor) -> list[Tensor]:
    values = problem.pretrained.vector()
    parts = flat.split([value.numel() for value in values])
    return [part.reshape(value.shape) for part, value in zip(parts, values, strict=True)]


def flat_of(vector: list[Tensor]) -> Tensor:
    return torch.cat([value.reshape(-1) for value in vector])


def rebuilt(problem: Classifier, vector: list[Tensor]) -> Pretrained:
    encoder, head, _ = problem.pretrained
    count = len(encoder)
    return Pretrained(
        dict(zip(encoder, vector[:count], strict=True)),
        dict(zip(head, vector[count:], strict=True)),
        problem.pretrained.buffers,
    )


def loss_of(problem: Classifier, flat: Tensor) -> Tensor:
    return problem.pretrain_loss(rebuilt(problem, vector_of(problem, flat)), problem.meta, BATCH)


def outputs_of(problem: Classifier, flat: Tensor) -> Tensor:
    return problem.pretrain_outputs(rebuilt(problem, vector_of(problem, flat)), problem.meta, BATCH)


def hessian_matrix(problem: Classifier) -> Tensor:
    leaves = problem.pretrained.leaves()
    gradient = vjp_graph(problem.pretrain_loss(leaves, problem.meta, BATCH), leaves.vector(), "pretrain_loss")
    return matrix_of(problem, hessian(gradient, leaves.vector()))


def gauss_newton_matrix(problem: Classifier) -> Tensor:
    leaves = problem.pretrained.leaves()
    outputs = problem.pretrain_outputs(leaves, problem.meta, BATCH)
    return matrix_of(
        problem, gauss_newton(outputs, problem.outputs_loss(outputs, problem.meta, BATCH), leaves.vector())
    )


def matrix_of(problem: Classifier, product) -> Tensor:  # type: ignore[no-untyped-def]
    size = flat_of(problem.pretrained.vector()).numel()
    columns = [flat_of(product(vector_of(problem, column))) for column in torch.eye(size, dtype=DTYPE)]
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("problem", [Classifier(), Classifier(torch.relu)], ids=["tanh", "relu"])
def test_the_hessian_product_is_autograds_hessian(problem: Classifier) -> None:
    at = flat_of(problem.pretrained.vector())
    expected = torch.autograd.functional.hessian(lambda flat: loss_of(problem, flat), at)
    torch.testing.assert_close(hessian_matrix(problem), expected)


def test_the_gauss_newton_product_is_the_explicit_one() -> None:
    problem = WithoutRidge()
    at = flat_of(problem.pretrained.vector())
    outputs = outputs_of(problem, at)
    jacobian = torch.autograd.functional.jacobian(lambda flat: outputs_of(problem, flat), at).reshape(
        outputs.numel(), -1
    )
    curvature = torch.autograd.functional.hessian(
        lambda flat: problem.outputs_loss(flat.reshape(outputs.shape), problem.meta, BATCH), outputs.reshape(-1)
    )
    torch.testing.assert_close(gauss_newton_matrix(problem), jacobian.T @ curvature @ jacobian)


def test_the_gauss_newton_matrix_is_positive_semidefinite_where_the_hessian_is_not() -> None:
    problem = WithoutRidge()
    assert torch.linalg.eigvalsh(hessian_matrix(problem)).min() < -1e-3
    assert torch.linalg.eigvalsh(gauss_newton_matrix(problem)).min() > -1e-12


def test_a_parameter_that_the_loss_does_not_touch_has_no_curvature() -> None:
    class Linear(WithoutRidge):
        def pretrain_outputs(self, pretrained: Pretrained, meta, batch) -> Tensor:  # type: ignore[no-untyped-def]
            return batch.inputs @ pretrained.encoder["weight"].T[:, :3]

    problem = Linear()
    for matrix in (hessian_matrix(problem), gauss_newton_matrix(problem)):
        assert not matrix[20:].any()
        assert not matrix[:, 20:].any()
        assert matrix[:12, :12].any()


def call(problem: Any, curvature: str, damping: float = 0.1) -> Any:
    return called(
        problem,
        pretrain_batch=BATCH,
        validation_batch=classification(102, 8),
        inverse=ConjugateGradient(rtol=1e-10, max_steps=500, damping=damping),
        curvature=curvature,
    )


def test_the_hypergradient_may_use_gauss_newton_where_the_hessian_is_indefinite() -> None:
    problem = WithoutRidge()
    assert call(problem, "hessian", damping=1e-3).diagnostics.solve_status is Status.INDEFINITE
    result = call(problem, "gauss_newton", damping=1e-3)
    assert result.diagnostics.solve_status is Status.OK
    # -(g2, 0) (G + damping)^-1 d2L/(dw dmeta), each factor made on its own
    features = {name: value.clone().requires_grad_() for name, value in problem.pretrained.encoder.items()}
    validation = classification(102, 8)
    loss = problem.head_loss(problem.head, problem.encode(features, validation), validation)
    direct = torch.autograd.grad(loss, list(features.values()))
    at = flat_of(problem.pretrained.vector())
    g2 = torch.zeros_like(at)
    g2[:25] = flat_of(list(direct))
    solved = torch.linalg.solve(gauss_newton_matrix(problem) + 1e-3 * torch.eye(at.numel(), dtype=DTYPE), g2)

    def slope(weights: Tensor) -> Tensor:
        def loss(flat: Tensor) -> Tensor:
            meta = {**problem.meta, "weights": weights}
            return problem.pretrain_loss(rebuilt(problem, vector_of(problem, flat)), meta, BATCH)

        return torch.func.grad(loss)(at)

    mixed = torch.func.jacrev(slope)(problem.meta["weights"])
    torch.testing.assert_close(result.gradient["weights"], -solved @ mixed, rtol=1e-7, atol=1e-10)
    assert not result.gradient["ridge"].any()


class Whole:
    """A problem that does not split its PT loss."""

    def __init__(self) -> None:
        inner = Classifier()
        self.pretrained, self.meta, self.head = inner.pretrained, inner.meta, inner.head
        self.pretrain_loss, self.encode, self.head_loss = inner.pretrain_loss, inner.encode, inner.head_loss


@pytest.mark.parametrize(
    ("problem", "curvature", "sentence"),
    [(WithoutRidge(), "fisher", "legal: 'hessian', 'gauss_newton'"), (Whole(), "gauss_newton", "pretrain_outputs")],
)
def test_a_curvature_that_is_not_there_is_refused_in_words(problem: Any, curvature: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call(problem, curvature)


def test_parts_that_are_known_to_be_zero_are_left_out_of_the_product_and_change_nothing() -> None:
    problem = Classifier()
    leaves = problem.pretrained.leaves()
    gradient = vjp_graph(problem.pretrain_loss(leaves, problem.meta, BATCH), leaves.vector(), "pretrain_loss")
    zeros = [torch.zeros_like(value) for value in leaves.head.values()]
    vector = [*(torch.randn_like(value) for value in leaves.encoder.values()), *zeros]
    short = hessian(gradient, leaves.vector(), zeros)(vector)
    for part, expected in zip(short, hessian(gradient, leaves.vector())(vector), strict=True):
        torch.testing.assert_close(part, expected)
