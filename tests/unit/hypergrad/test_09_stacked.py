"""Many replicates at once are the same replicates one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from metapt.hypergrad import SGD, Adam, FittedHead, Identity, Neumann, Params, Pretrained, Stacked, Unroll
from metapt.hypergrad.stacked import stack, stack_pretrained

from .problems import Batch, Classifier, Normed, WithoutRidge, called, classification, draw

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
    train = [batch[index] for batch in TRAIN]
    return called(problem, inverse=inverse, finetuning=solver, train_batches=train, **batches, **own)


def together(inverse: Any, solver: Any, problem: Any = PROBLEM, **options: Any) -> Any:
    own = {"pretrained": stack_pretrained(PRETRAINED), "meta": stack(METAS), "head": stack(HEADS)} | options
    batches = {"pretrain_batch": pile(PRETRAIN), "validation_batch": pile(VALIDATION)}
    train = [pile(batch) for batch in TRAIN]
    return called(Stacked(problem), inverse=inverse, finetuning=solver, train_batches=train, **batches, **own)


@pytest.mark.parametrize(
    ("solver", "inverse", "problem", "options"),
    [
        (Unroll(2, SGD(lr=0.3)), Identity(), PROBLEM, {}),
        (Unroll(2, SGD(lr=0.3, momentum=0.9)), Neumann(4, 0.3), PROBLEM, {}),
        (Unroll(2, SGD(lr=0.3, momentum=0.9), network=True), Identity(), PROBLEM, {}),
        (Unroll(2, Adam(lr=0.1)), Identity(), PROBLEM, {}),
        (Unroll(2, Adam(lr=0.1), network=True), Neumann(4, 0.3), PROBLEM, {}),
        (Unroll(2, SGD(lr=0.3)), Neumann(4, 0.3), WithoutRidge(), {"curvature": "gauss_newton"}),
        (FittedHead(0.05, tolerance=1e-9), Neumann(4, 0.3), PROBLEM, {}),
        (FittedHead(0.05, cross_fit=True, tolerance=1e-9), Neumann(4, 0.3), PROBLEM, {}),
    ],
)
def test_the_hypergradients_of_a_stack_are_those_of_its_replicates(
    solver: Any, inverse: Any, problem: Any, options: dict[str, Any]
) -> None:
    stacked = together(inverse, solver, problem, **options)
    singles = [alone(index, inverse, solver, problem, **options) for index in range(REPLICATES)]
    close = {"rtol": 1e-6, "atol": 1e-7} if isinstance(solver, FittedHead) else {}
    for index, single in enumerate(singles):
        torch.testing.assert_close(unstack(stacked.gradient, index), single.gradient, **close)
        torch.testing.assert_close(unstack(stacked.head, index), single.head, **close)
        for ours, own in zip(stacked.pretrain_gradient, single.pretrain_gradient, strict=True):
            torch.testing.assert_close(unstack(ours, index), own)
    losses, norms = (
        torch.stack([getattr(single.diagnostics, what) for single in singles])
        for what in ("validation_loss", "gradient_norm")
    )
    torch.testing.assert_close(stacked.diagnostics.validation_loss, losses.sum(), **close)
    torch.testing.assert_close(stacked.diagnostics.gradient_norm, norms.norm(), **close)


def test_batch_norm_in_a_stack_has_statistics_for_each_replicate() -> None:
    problem = Normed()
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
