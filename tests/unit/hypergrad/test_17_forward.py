"""A problem with its own product with the mixed derivative: the same hypergradient, no graph of the PT gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import SGD, Identity, Neumann, Params, Pretrained, Unroll
from metapt.hypergrad.params import Vector

from .problems import Batch, Classifier, called, classification

PRETRAIN = classification(700, 9)


class Forward(Classifier):
    """A problem with the derivative of dL/dmeta along a vector by forward mode; its names come in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def mixed_product(
        self, pretrained: Pretrained, meta: Params, batch: Batch, vector: Vector
    ) -> tuple[Params, Tensor]:
        self.products += 1
        tangent = iter(vector)
        tangents = tuple({name: next(tangent) for name in part} for part in pretrained[:2])

        def slopes(encoder: Params, head: Params) -> tuple[Params, Tensor]:
            def loss(phi: Params) -> tuple[Tensor, Tensor]:
                value = self.pretrain_loss(Pretrained(encoder, head), phi, batch)
                return value, value

            result: tuple[Params, Tensor] = torch.func.grad(loss, has_aux=True)(meta)
            return result

        _, product, loss = torch.func.jvp(slopes, pretrained[:2], tangents, has_aux=True)
        return dict(reversed(product.items())), loss


def call(problem: Any, inverse: Any, keep_gradient: bool) -> Any:
    batches = {"pretrain_batch": PRETRAIN, "validation_batch": classification(600, 7)}
    ft = {"train_batches": [classification(500, 6)], "finetuning": Unroll(1, SGD(0.3))}
    return called(problem, inverse=inverse, keep_gradient=keep_gradient, **batches, **ft)


@pytest.mark.parametrize("inverse", [Identity(), Neumann(0, 0.3)])
def test_the_products_answer_is_the_graphs(inverse: Any) -> None:
    problem = Forward()
    ours, theirs = call(problem, inverse, keep_gradient=False), call(Classifier(), inverse, keep_gradient=True)
    assert problem.products == 1
    torch.testing.assert_close(ours.gradient, theirs.gradient, rtol=1e-10, atol=1e-13)
    assert list(ours.gradient) == list(theirs.gradient)
    loss = problem.pretrain_loss(problem.pretrained, problem.meta, PRETRAIN)
    torch.testing.assert_close([each.diagnostics.pretrain_loss for each in (ours, theirs)], [loss, loss])
    assert ours.pretrain_gradient is None
    assert not any(value.requires_grad for value in ours.gradient.values())


@pytest.mark.parametrize(("inverse", "keep_gradient"), [(Neumann(2, 0.1), False), (Identity(), True)])
def test_where_the_graph_is_there_the_product_is_not_asked_for(inverse: Any, keep_gradient: bool) -> None:
    problem = Forward()
    ours, theirs = call(problem, inverse, keep_gradient), call(Classifier(), inverse, keep_gradient)
    assert problem.products == 0
    assert all(torch.equal(ours.gradient[name], theirs.gradient[name]) for name in theirs.gradient)


def test_a_product_that_is_not_finite_is_seen() -> None:
    class Broken(Forward):
        def mixed_product(self, *given: Any) -> tuple[Params, Tensor]:
            product, loss = super().mixed_product(*given)
            return product, loss * torch.inf

    result = call(Broken(), Identity(), keep_gradient=False)
    assert all(value.isnan().all() for value in result.gradient.values())
    assert result.diagnostics.not_finite() == ["pretrain_loss", "gradient_norm"]
