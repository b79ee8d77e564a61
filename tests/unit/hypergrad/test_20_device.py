"""A hypergradient on a device: the CPU's numbers, and where each solver waits for it, rehearsed without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import (
    SGD,
    Adam,
    ConjugateGradient,
    Dense,
    FineTuning,
    FittedHead,
    Identity,
    Neumann,
    RidgeHead,
    Unroll,
)
from metapt.hypergrad.hybrid import Curvature
from metapt.hypergrad.inverse import Inverse
from metapt.hypergrad.layers.batch_norm import batch_norm

from .problems import Classifier, WithoutRidge, called, classification, moved
from .test_14_ridge import Regressed, labelled

Rehearse = Callable[..., dict[str, int]]
CG = "hypergrad.inverse: ConjugateGradient.__call__"
FINISHED = {"hypergrad.finetune: finished": 1}
CHECKED = {"hypergrad.hybrid: hypergradient": 1}
ONCE = {"hypergrad.inverse: Identity.__call__": 1} | FINISHED | CHECKED

INVERSES: list[tuple[Inverse, dict[str, int]]] = [
    (Identity(), {"hypergrad.inverse: Identity.__call__": 1}),
    (Neumann(5, 0.1), {"hypergrad.inverse: Neumann.__call__": 1}),
    (ConjugateGradient(1e-10, 3, damping=1.0), {CG: 1 + 2 * 3}),
    (ConjugateGradient(1e-10, 3, damping=1.0, relative_damping=1.0), {CG: 2 + 2 * 3}),
    (Dense(damping=1.0), {"hypergrad.inverse: Dense.__call__": 3}),
]


def prepared(problem: Any, labels: Callable[..., Any], **how: Any) -> Callable[[str], Callable[[], Any]]:
    """Return what `rehearse` takes, for hypergradients of a problem whose FT minibatches `labels` makes."""
    how = {"finetuning": Unroll(2, SGD(lr=0.3)), **how}

    def prepare(device: str) -> Callable[[], Any]:
        own = {"pretrained": problem.pretrained, "meta": problem.meta, "head": problem.head}
        train = [labels(500 + i, 6) for i in range(how["finetuning"].minibatches)]
        batches = {"pretrain_batch": classification(700, 9), "train_batches": train, "validation_batch": labels(600, 7)}
        given = moved(own | batches, device)

        def step() -> Any:
            found = called(problem, **how, **given)
            return found.gradient, found.head, found.pretrain_gradient, found.diagnostics.validation_loss

        return step

    return prepare


def waits_of(solver: FineTuning, rehearse: Rehearse, problem: Any = None, labels: Any = classification) -> Any:
    return rehearse(prepared(problem or WithoutRidge(), labels, finetuning=solver))


@pytest.mark.parametrize(
    ("inverse", "waits", "curvature", "keep_gradient"),
    [
        *((*each, "hessian", True) for each in INVERSES),
        *((*INVERSES[1], *how) for how in (("hessian", False), ("gauss_newton", True), ("gauss_newton", False))),
    ],
)
def test_an_inverse_waits_once_but_conjugate_gradients_twice_for_each_product(
    inverse: Inverse, waits: dict[str, int], curvature: Curvature, keep_gradient: bool, rehearse: Rehearse
) -> None:
    how: dict[str, Any] = {"inverse": inverse, "curvature": curvature, "keep_gradient": keep_gradient}
    assert rehearse(prepared(WithoutRidge(), classification, **how)) == waits | FINISHED | CHECKED


@pytest.mark.parametrize(
    "solver", [Unroll(0), Unroll(3, SGD(0.3, 0.9)), Unroll(2, Adam(0.1)), Unroll(2, Adam(0.1), network=True)]
)
def test_an_unroll_waits_once(solver: Unroll, rehearse: Rehearse) -> None:
    assert waits_of(solver, rehearse) == ONCE


@pytest.mark.parametrize("solver", [Unroll(0), Unroll(1, network=True)])
def test_a_head_without_parameters_is_on_the_device_of_the_loss(solver: Unroll, rehearse: Rehearse) -> None:
    class Headless(WithoutRidge):
        def head_loss(self, head: Any, features: Tensor, batch: Any) -> Tensor:
            return features.square().mean()

    problem = Headless()
    problem.head = {}
    assert waits_of(solver, rehearse, problem) == ONCE


@pytest.mark.parametrize("cross_fit", [False, True])
def test_a_ridge_head_waits_once_for_all_folds(cross_fit: bool, rehearse: Rehearse) -> None:
    waits = waits_of(RidgeHead(cross_fit=cross_fit, minibatches=3), rehearse, Regressed(), labelled)
    assert waits == ONCE | {"hypergrad.ridge: _errors": 1}


def test_a_fitted_head_waits_in_newtons_method_only(rehearse: Rehearse) -> None:
    """Its steps, the solves within them and the line search end by what they have found."""
    newton = {CG, "hypergrad.fitted: FittedHead._fit", "hypergrad.fitted: FittedHead._search"}
    for cross_fit in (False, True):
        waits = waits_of(FittedHead(10.0, cross_fit, minibatches=1, max_steps=1), rehearse)
        assert {place: count for place, count in waits.items() if place not in newton} == ONCE
        assert newton <= set(waits)


# A GPU


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    reason = "needs a CUDA GPU; torch.cuda.is_available() is false"
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason=reason)(test))


ON_GPU = [
    Unroll(2, SGD(lr=0.3, momentum=0.9)),
    Unroll(2, Adam(lr=0.1), network=True),
    FittedHead(0.02, minibatches=2),
    FittedHead(0.02, cross_fit=True, minibatches=2),
]


@on_gpu
@pytest.mark.parametrize("inverse", [Neumann(5, 0.1), ConjugateGradient(1e-10, 200, damping=1.0), Dense(damping=1.0)])
@pytest.mark.parametrize("solver", ON_GPU)
def test_the_hypergradient_on_a_gpu_is_that_on_the_cpu(solver: Any, inverse: Any) -> None:
    prepare = prepared(Classifier(), classification, finetuning=solver, inverse=inverse)
    here, there = (prepare(device)() for device in ("cpu", "cuda"))
    assert all(value.is_cuda for part in there[:2] for value in part.values())
    torch.testing.assert_close(moved(there, "cpu"), list(here), rtol=1e-8, atol=1e-10)


@on_gpu
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
