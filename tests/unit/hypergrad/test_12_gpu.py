"""A GPU gives the CPU's numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import SGD, Adam, ConjugateGradient, Dense, FittedHead, Neumann, Unroll
from metapt.hypergrad.layers.batch_norm import batch_norm

from .problems import Classifier, called, classification, moved

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; torch.cuda.is_available() is false"),
]

TRAIN = [classification(500 + 2 * i, 6) for i in range(2)]


def call(inverse: Any, solver: Any, device: str) -> Any:
    problem = Classifier()
    own = {"pretrained": problem.pretrained, "meta": problem.meta, "head": problem.head, "train_batches": TRAIN}
    given = own | {"pretrain_batch": classification(700, 9), "validation_batch": classification(600, 7)}
    return called(problem, inverse=inverse, finetuning=solver, **moved(given, device))


@pytest.mark.parametrize("inverse", [Neumann(5, 0.1), ConjugateGradient(1e-10, 200, damping=1.0), Dense(damping=1.0)])
@pytest.mark.parametrize(
    "solver",
    [
        Unroll(2, SGD(lr=0.3, momentum=0.9)),
        Unroll(2, Adam(lr=0.1), network=True),
        FittedHead(0.02),
        FittedHead(0.02, cross_fit=True),
    ],
)
def test_the_hypergradient_on_a_gpu_is_that_on_the_cpu(solver: Any, inverse: Any) -> None:
    here, there = call(inverse, solver, "cpu"), call(inverse, solver, "cuda")
    assert all(value.is_cuda for value in there.gradient.values())
    assert all(value.is_cuda for value in there.head.values())
    torch.testing.assert_close(moved(there.gradient, "cpu"), here.gradient, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(moved(there.head, "cpu"), here.head, rtol=1e-8, atol=1e-10)
    assert there.diagnostics.solve_status is here.diagnostics.solve_status


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_second_derivatives_of_batch_norm_on_a_gpu_are_those_on_the_cpu(layout: torch.memory_format) -> None:
    def second(device: str) -> tuple[Tensor, ...]:
        draws = torch.Generator().manual_seed(0)
        values, cotangent = (
            torch.randn(6, 8, 1, 10, generator=draws, dtype=torch.float64).to(device, memory_format=layout)
            for _ in range(2)
        )
        weight, bias = (torch.randn(8, generator=draws, dtype=torch.float64).to(device) for _ in range(2))
        inputs = [value.requires_grad_() for value in (values, weight, bias)]
        result = batch_norm(*inputs)
        first = torch.autograd.grad((result**3 * cotangent).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(part.square().sum() for part in first), inputs)

    for here, there in zip(second("cpu"), second("cuda"), strict=True):
        torch.testing.assert_close(there.cpu(), here, rtol=1e-8, atol=1e-10)
