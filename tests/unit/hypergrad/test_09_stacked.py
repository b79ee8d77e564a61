"""Many replicates at once are the same replicates one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from metapt.hypergrad import SGD, Adam, FittedHead, Identity, Neumann, Params, Pretrained, Stacked, Unroll
from metapt.hypergrad.stacked import stack, stack_pretrained

from .problems import Batch, Classifier, Normed, SeededBatch, WithoutRidge, called, classification, draw

PROBLEM = Classifier()
REPLICATES = 3


def batches(seed: int, size: int) -> list[Batch]:
    return [classification(seed + 2 * i, size) for i in range(REPLICATES)]


def pile(parts: list[Batch]) -> Batch:
    return Batch(torch.stack([part.inputs for part in parts]), torch.stack([part.targets for part in parts]))


PRETRAINED = [
    Pretrained(
        {name: value + draw(seed, *value.shape, scale=0.3) for name, value in PROBLEM.pretrained.encoder.items()},
        {name: value + draw(seed + 1, *value.shape, scale=0.3) for name, value in PROBLEM.pretrained.head.items()},
    )
    for seed in (800, 810, 820)
]
METAS = [{name: value + draw(seed, *value.shape) for name, value in PROBLEM.meta.items()} for seed in (830, 840, 850)]
HEADS = [{name: value + draw(seed, *value.shape) for name, value in PROBLEM.head.items()} for seed in (860, 870, 880)]
PRETRAIN, TRAIN, VALIDATION = batches(700, 9), [batches(500, 6), batches(530, 6)], batches(600, 7)


def unstack(params: Params, index: int) -> Params:
    return {name: value[index] for name, value in params.items()}


def alone(index: int, inverse: Any, solver: Any, problem: Any = PROBLEM, **options: Any) -> Any:
    own = {"pretrained": PRETRAINED[index], "meta": METAS[index], "head": HEADS[index]} | options
    batches = {"pretrain_batch": PRETRAIN[index], "validation_batch": VALIDATION[index]}
    return called(problem, inverse=inverse, solver=solver, train=[batch[index] for batch in TRAIN], **batches, **own)


def together(inverse: Any, solver: Any, problem: Any = PROBLEM, **options: Any) -> Any:
    own = {"pretrained": stack_pretrained(PRETRAINED), "meta": stack(METAS), "head": stack(HEADS)} | options
    batches = {"pretrain_batch": pile(PRETRAIN), "validation_batch": pile(VALIDATION)}
    return called(
        Stacked(problem), inverse=inverse, solver=solver, train=[pile(batch) for batch in TRAIN], **batches, **own
    )


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("inverse", [Identity(), Neumann(4, 0.3)])
@pytest.mark.parametrize(
    "optimizer", [SGD(lr=0.3), SGD(lr=0.3, momentum=0.9), Adam(lr=0.1)], ids=["sgd", "momentum", "adam"]
)
def test_the_hypergradients_of_a_stack_are_those_of_its_replicates(optimizer: Any, inverse: Any, network: bool) -> None:
    solver = Unroll(2, optimizer, network)
    stacked = together(inverse, solver)
    singles = [alone(index, inverse, solver) for index in range(REPLICATES)]
    for index, single in enumerate(singles):
        torch.testing.assert_close(unstack(stacked.gradient, index), single.gradient)
        torch.testing.assert_close(unstack(stacked.head, index), single.head)
        torch.testing.assert_close(unstack(stacked.pretrain_gradient.encoder, index), single.pretrain_gradient.encoder)
        torch.testing.assert_close(unstack(stacked.pretrain_gradient.head, index), single.pretrain_gradient.head)
    losses = torch.stack([single.diagnostics.validation_loss for single in singles])
    torch.testing.assert_close(stacked.diagnostics.validation_loss, losses.sum())
    norms = torch.stack([single.diagnostics.gradient_norm for single in singles])
    torch.testing.assert_close(stacked.diagnostics.gradient_norm, norms.norm())


def test_a_stack_has_the_gauss_newton_matrices_of_its_replicates() -> None:
    problem, solver = WithoutRidge(), Unroll(2, SGD(lr=0.3))
    stacked = together(Neumann(4, 0.3), solver, problem, curvature="gauss_newton")
    for index in range(REPLICATES):
        single = alone(index, Neumann(4, 0.3), solver, problem, curvature="gauss_newton")
        torch.testing.assert_close(unstack(stacked.gradient, index), single.gradient)


@pytest.mark.parametrize("cross_fit", [False, True])
def test_the_fitted_heads_of_a_stack_are_those_of_its_replicates(cross_fit: bool) -> None:
    solver = FittedHead(0.05, cross_fit, tolerance=1e-9)
    stacked = together(Neumann(4, 0.3), solver)
    for index in range(REPLICATES):
        single = alone(index, Neumann(4, 0.3), solver)
        torch.testing.assert_close(unstack(stacked.head, index), single.head, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(unstack(stacked.gradient, index), single.gradient, rtol=1e-6, atol=1e-7)


def test_batch_norm_in_a_stack_has_statistics_for_each_replicate() -> None:
    class Masked(Normed):
        def mask(self, batch: SeededBatch) -> torch.Tensor:
            return torch.ones((), dtype=torch.float64)

    problem = Masked()
    starts = [
        problem.pretrained._replace(
            encoder={n: v + draw(s, *v.shape, scale=0.3) for n, v in problem.pretrained.encoder.items()}
        )
        for s in (900, 910, 920)
    ]
    how = Neumann(3, 0.2), Unroll(2, SGD(lr=0.3)), problem
    stacked = together(*how, pretrained=stack_pretrained(starts))
    for index in range(REPLICATES):
        single = alone(index, *how, pretrained=starts[index])
        torch.testing.assert_close(unstack(stacked.gradient, index), single.gradient)
        torch.testing.assert_close(unstack(stacked.pretrain_gradient.buffers, index), single.pretrain_gradient.buffers)
