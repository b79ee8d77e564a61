"""Many replicates at once are the same replicates one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from metapt.hypergrad import (
    SGD,
    Adam,
    FittedHead,
    Hypergradient,
    Identity,
    Neumann,
    Pretrained,
    Stacked,
    Unroll,
    hypergradient,
)
from metapt.hypergrad.stacked import stack, stack_pretrained, unstack

from .problems import Batch, Classifier, Normed, SeededBatch, WithoutRidge, classification, draw

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


def alone(index: int, inverse: Any, solver: Any, problem: Classifier = PROBLEM, **options: Any) -> Hypergradient:
    return hypergradient(
        problem,
        PRETRAINED[index],
        METAS[index],
        HEADS[index],
        pretrain_batch=PRETRAIN[index],
        train_batches=[batch[index] for batch in TRAIN],
        validation_batch=VALIDATION[index],
        inverse=inverse,
        finetuning=solver,
        **options,
    )


def together(inverse: Any, solver: Any, problem: Classifier = PROBLEM, **options: Any) -> Hypergradient:
    return hypergradient(
        Stacked(problem),
        stack_pretrained(PRETRAINED),
        stack(METAS),
        stack(HEADS),
        pretrain_batch=pile(PRETRAIN),
        train_batches=[pile(batch) for batch in TRAIN],
        validation_batch=pile(VALIDATION),
        inverse=inverse,
        finetuning=solver,
        **options,
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


def test_the_losses_of_a_stack_are_those_of_its_replicates() -> None:
    stacked = Stacked(PROBLEM)
    each = stacked.pretrain_losses(stack_pretrained(PRETRAINED), stack(METAS), pile(PRETRAIN))
    expected = [PROBLEM.pretrain_loss(PRETRAINED[i], METAS[i], PRETRAIN[i]) for i in range(REPLICATES)]
    torch.testing.assert_close(each, torch.stack(expected))
    torch.testing.assert_close(
        stacked.pretrain_loss(stack_pretrained(PRETRAINED), stack(METAS), pile(PRETRAIN)), each.sum()
    )
    features = stacked.encode(stack_pretrained(PRETRAINED).encoder, pile(VALIDATION))
    each = stacked.head_losses(stack(HEADS), features, pile(VALIDATION))
    expected = [
        PROBLEM.head_loss(HEADS[i], PROBLEM.encode(PRETRAINED[i].encoder, VALIDATION[i]), VALIDATION[i])
        for i in range(REPLICATES)
    ]
    torch.testing.assert_close(each, torch.stack(expected))
    torch.testing.assert_close(stacked.head_loss(stack(HEADS), features, pile(VALIDATION)), each.sum())


def test_unstacking_a_stack_gives_the_replicates_back() -> None:
    for index in range(REPLICATES):
        for part, given in ((unstack(stack(METAS), index), METAS[index]), (unstack(stack(HEADS), index), HEADS[index])):
            assert list(part) == list(given)
            assert all(torch.equal(part[name], value) for name, value in given.items())
        whole = stack_pretrained(PRETRAINED)
        assert all(
            torch.equal(unstack(whole.encoder, index)[name], value) for name, value in PRETRAINED[index].encoder.items()
        )


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
    common = {"inverse": Neumann(3, 0.2), "finetuning": Unroll(2, SGD(lr=0.3))}
    stacked = hypergradient(
        Stacked(problem),
        stack_pretrained(starts),
        stack(METAS),
        stack(HEADS),
        pretrain_batch=pile(PRETRAIN),
        train_batches=[pile(batch) for batch in TRAIN],
        validation_batch=pile(VALIDATION),
        **common,  # type: ignore[arg-type]
    )
    for index in range(REPLICATES):
        single = hypergradient(
            problem,
            starts[index],
            METAS[index],
            HEADS[index],
            pretrain_batch=PRETRAIN[index],
            train_batches=[batch[index] for batch in TRAIN],
            validation_batch=VALIDATION[index],
            **common,  # type: ignore[arg-type]
        )
        torch.testing.assert_close(unstack(stacked.gradient, index), single.gradient)
        torch.testing.assert_close(unstack(stacked.pretrain_gradient.buffers, index), single.pretrain_gradient.buffers)
