"""Inverses from products alone: rates, residuals, and what is said when there is no solution."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import ConjugateGradient, Dense, Identity, Neumann, SolveResult, Status

from .problems import DTYPE, draw

SHAPES = [(2, 3), (4,), ()]
SIZE = 11


class Matrix:
    """A matrix as a product on vectors of several tensors, which counts its products."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.products = matrix, 0

    def __call__(self, vector: list[Tensor]) -> list[Tensor]:
        self.products += 1
        return split(self.matrix @ join(vector))


def join(vector: list[Tensor]) -> Tensor:
    return torch.cat([value.reshape(-1) for value in vector])


def split(vector: Tensor) -> list[Tensor]:
    parts = vector.split([math.prod(shape) for shape in SHAPES])
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def symmetric(eigenvalues: Tensor, seed: int = 0) -> Tensor:
    basis, _ = torch.linalg.qr(draw(seed, len(eigenvalues), len(eigenvalues)))
    return basis @ torch.diag(eigenvalues) @ basis.T


POSITIVE = symmetric(torch.linspace(0.5, 4.0, SIZE, dtype=DTYPE))
INDEFINITE = symmetric(torch.linspace(-1.2, 4.0, SIZE, dtype=DTYPE))
SINGULAR = torch.diag(torch.arange(SIZE, dtype=DTYPE))
B = draw(9, SIZE)


def solved(inverse: Any, matrix: Matrix | Tensor, b: Tensor = B) -> tuple[Tensor, SolveResult]:
    """The solution as one vector, which has the shapes of b, and the whole result; b stays as it is."""
    given = split(b.clone())
    result = inverse(matrix if isinstance(matrix, Matrix) else Matrix(matrix), given)
    assert [value.shape for value in result.value] == [torch.Size(shape) for shape in SHAPES]
    assert torch.equal(join(given), b) or not b.isfinite().all()
    return join(result.value), result


def test_the_identity_returns_the_vector_without_a_product() -> None:
    matrix = Matrix(POSITIVE)
    value, result = solved(Identity(), matrix)
    assert torch.equal(value, B)
    assert (matrix.products, result.steps, result.status) == (0, 0, Status.OK)
    assert math.isnan(result.residual_norm)


@pytest.mark.parametrize("terms", [0, 1, 2, 7])
def test_neumann_is_the_closed_sum_with_one_product_a_term_and_the_residual_without_the_last(terms: int) -> None:
    matrix, a = Matrix(POSITIVE), 0.3
    value, result = solved(Neumann(terms, a), matrix)
    powers = [torch.linalg.matrix_power(torch.eye(SIZE, dtype=DTYPE) - a * POSITIVE, i) for i in range(terms + 1)]
    torch.testing.assert_close(value, a * torch.stack(powers).sum(0) @ B, rtol=1e-13, atol=1e-13)
    assert matrix.products == result.steps == terms
    shorter = a * sum(powers[:-1], torch.zeros_like(POSITIVE)) @ B
    assert result.residual_norm == pytest.approx(float((B - POSITIVE @ shorter).norm()), rel=1e-12)


@pytest.mark.parametrize(("growth", "status"), [(1.9, Status.OK), (2.1, Status.DIVERGED)])
def test_a_series_that_grows_to_less_than_twice_its_start_is_let_be(growth: float, status: Status) -> None:
    value, result = solved(Neumann(1, 1.0), (1 - growth) * torch.eye(SIZE, dtype=DTYPE))
    assert result.status is status
    assert value.isfinite().all()


@pytest.mark.parametrize("relative", [0.0, 0.3])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("damping", [0.0, 0.7])
def test_conjugate_gradients_equal_a_dense_solve_with_damping(damping: float, scale: float, relative: float) -> None:
    """Relative damping is in units of the Rayleigh quotient of the vector, which costs no product of its own."""
    matrix = Matrix(scale * POSITIVE)
    damping *= scale
    value, result = solved(ConjugateGradient(1e-12, 50, damping, relative), matrix)
    quotient = B @ matrix.matrix @ B / (B @ B)
    system = matrix.matrix + (damping + relative * quotient) * torch.eye(SIZE, dtype=DTYPE)
    torch.testing.assert_close(value, torch.linalg.solve(system, B), rtol=1e-9, atol=0.0)
    assert result.status is Status.OK
    assert matrix.products == result.steps <= SIZE + 1
    for rtol, max_steps in ((1e-1, 50), (1e-6, 50), (1e-12, 3)):
        value, result = solved(ConjugateGradient(rtol, max_steps, damping, relative), matrix)
        residual = float((B - system @ value).norm())
        assert result.residual_norm == pytest.approx(residual, rel=1e-6, abs=1e-14)
        assert (residual <= rtol * float(B.norm())) is (result.status is Status.OK)


@pytest.mark.parametrize("damping", [0.0, 0.7])
def test_conjugate_gradients_end_within_as_many_products_as_there_are_eigenvalues(damping: float) -> None:
    matrix = Matrix(symmetric(torch.tensor([1.0, 2.0, 5.0], dtype=DTYPE).repeat(4)[:SIZE]))
    _, result = solved(ConjugateGradient(rtol=1e-10, max_steps=50, damping=damping), matrix)
    assert result.steps == matrix.products == 3


NEGATIVE = "use damping or (with `pretrain_outputs`) the Gauss-Newton matrix"


@pytest.mark.parametrize(
    ("inverse", "matrix", "status", "advice"),
    [
        (Neumann(400, 0.4), POSITIVE, Status.OK, ""),
        (Neumann(20, 0.6), POSITIVE, Status.DIVERGED, "lower step_size"),  # 0.6 * 4 > 2
        (ConjugateGradient(1e-10, 3), POSITIVE, Status.MAX_STEPS, "max_steps"),
        (ConjugateGradient(1e-10, 50), INDEFINITE, Status.INDEFINITE, NEGATIVE),
        (ConjugateGradient(1e-10, 50, damping=1.5), INDEFINITE, Status.OK, ""),
        (Dense(), SINGULAR, Status.SINGULAR, "damping"),
        (Dense(), symmetric(torch.arange(SIZE, dtype=DTYPE)), Status.SINGULAR, "damping"),  # its pivots are rounding
        (Dense(0.1), SINGULAR, Status.OK, ""),
    ],
)
def test_what_is_not_solved_is_reported_with_advice(inverse: Any, matrix: Tensor, status: Status, advice: str) -> None:
    value, result = solved(inverse, matrix)
    assert result.status is status
    assert advice in status.value
    assert value.isfinite().all()
    if status is Status.OK:
        system = matrix + getattr(inverse, "damping", 0.0) * torch.eye(SIZE, dtype=DTYPE)
        torch.testing.assert_close(value, torch.linalg.solve(system, B))
    if status is Status.MAX_STEPS:
        assert result.steps == 3


@pytest.mark.parametrize(("settings", "damping"), [({"relative_damping": 2.0}, 0.0), ({"damping": 0.25}, 0.25)])
def test_negative_curvature_in_the_first_direction_gives_the_vector_itself_with_its_true_residual(
    settings: dict[str, float], damping: float
) -> None:
    """The relative damping is 0 there: it takes nothing from the diagonal."""
    value, result = solved(ConjugateGradient(**settings), -POSITIVE)  # type: ignore[arg-type]
    assert (result.status, result.steps) == (Status.INDEFINITE, 1)
    assert torch.equal(value, B)
    assert result.residual_norm == pytest.approx(float((B + POSITIVE @ B - damping * B).norm()), rel=1e-12)


def test_a_vector_of_zeros_is_solved_without_a_product() -> None:
    matrix = Matrix(POSITIVE)
    value, result = solved(ConjugateGradient(), matrix, torch.zeros_like(B))
    assert not value.any()
    assert (result.status, matrix.products, result.residual_norm) == (Status.OK, 0, 0.0)


@pytest.mark.parametrize("damping", [0.0, 0.7])
@pytest.mark.parametrize("matrix", [POSITIVE, INDEFINITE, draw(3, SIZE, SIZE)])
def test_dense_is_exact_for_any_invertible_matrix(matrix: Tensor, damping: float) -> None:
    value, result = solved(Dense(damping), matrix)
    torch.testing.assert_close(matrix @ value + damping * value, B)
    assert (result.status, result.steps) == (Status.OK, SIZE)
    assert result.residual_norm < 1e-12


SOLVERS = [
    Neumann(5, 0.3),
    ConjugateGradient(1e-10, 50),
    ConjugateGradient(1e-10, 50, damping=0.1),
    ConjugateGradient(1e-10, 50, relative_damping=0.1),
    Dense(),
    Dense(0.1),
]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("inverse", SOLVERS)
def test_a_product_that_is_not_finite_is_a_status_and_never_an_exception(inverse: Any, at: int, bad: float) -> None:
    matrix = Matrix(POSITIVE)

    def product(vector: list[Tensor]) -> list[Tensor]:
        result = matrix(vector)
        return [bad * value for value in result] if matrix.products >= at else result

    result = inverse(product, split(B))
    assert result.status is Status.NON_FINITE
    assert "look for NaN in the minibatches, then for FT or PT that diverges" in result.status.value
    assert join(result.value).isnan().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", [slice(None), slice(3, 4)], ids=["all", "one"])
@pytest.mark.parametrize("inverse", [Identity(), Neumann(0, 0.3), *SOLVERS])
@pytest.mark.parametrize(
    "matrix", [POSITIVE, INDEFINITE, torch.zeros_like(POSITIVE)], ids=["positive", "indefinite", "zero"]
)
def test_a_vector_that_is_not_finite_has_no_solution(inverse: Any, matrix: Tensor, where: slice, bad: float) -> None:
    b = B.clone()
    b[where] = bad
    value, result = solved(inverse, matrix, b)
    assert result.status is Status.NON_FINITE
    assert value.isnan().all()
    assert math.isnan(result.residual_norm)


@pytest.mark.parametrize(("terms", "step_size"), [(2000, 1.0), (9, 1e60), (1, 1e308)])
def test_a_series_that_grows_out_of_range_has_diverged_and_has_no_value(terms: int, step_size: float) -> None:
    value, result = solved(Neumann(terms, step_size), POSITIVE)
    assert result.status is Status.DIVERGED
    assert value.isnan().all()


def test_a_matrix_that_is_not_finite_beside_the_vector_is_not_taken_for_a_series_that_diverges() -> None:
    """The first product is finite, as where the Hessian's encoder rows are finite and the vector is 0 elsewhere."""
    matrix, b = torch.eye(SIZE, dtype=DTYPE), torch.zeros(SIZE, dtype=DTYPE)
    matrix[0, 1] = matrix[1, 0] = 0.5
    b[0] = 1.0

    def product(vector: list[Tensor]) -> list[Tensor]:
        values = join(vector)
        return split(matrix @ values + (math.nan if values[1] else 0.0))

    assert Neumann(3, 0.5)(product, split(b)).status is Status.NON_FINITE


def test_a_matrix_too_small_for_the_dtype_is_singular() -> None:
    value, result = solved(Dense(), torch.eye(SIZE, dtype=DTYPE) * 1e-310)
    assert result.status is Status.SINGULAR
    assert value.isnan().all()


@pytest.mark.parametrize(
    ("make", "legal"),
    [
        (lambda: Neumann(-1, 0.1), "0 or more"),
        (lambda: Neumann(1, 0.0), "positive"),
        (lambda: Neumann(1, math.inf), "positive"),
        (lambda: ConjugateGradient(rtol=0.0), "between 0 and 1"),
        (lambda: ConjugateGradient(max_steps=0), "1 or more"),
        (lambda: ConjugateGradient(damping=-1.0), "0 or more"),
        (lambda: ConjugateGradient(damping=math.nan), "0 or more"),
        (lambda: ConjugateGradient(relative_damping=-0.1), "0 or more"),
        (lambda: Dense(damping=-1.0), "0 or more"),
    ],
)
def test_an_illegal_setting_is_refused_with_what_is_legal(make: Any, legal: str) -> None:
    with pytest.raises(ValueError, match=f"legal: .*{legal}"):
        make()
