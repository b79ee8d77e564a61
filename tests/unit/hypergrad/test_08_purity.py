"""No call changes its arguments, statistics and masks are used as they should be, no result is attached to a graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from metapt.hypergrad import (
    SGD,
    Adam,
    ConjugateGradient,
    Dense,
    FittedHead,
    Identity,
    Neumann,
    Params,
    Pretrained,
    Unroll,
    exact_hypergradient,
)

from .problems import DTYPE, Normed, SeededBatch, called, classification, counted, flat

pytestmark = pytest.mark.filterwarnings("error")

PRETRAIN = SeededBatch(*classification(700, 9), seed=3)
TRAIN = [classification(500 + 2 * i, 6) for i in range(2)]
VALIDATION = classification(600, 7)
STEPS = Unroll(2, SGD(lr=0.3))

SOLVERS = [
    pytest.param(STEPS, id="sgd-head"),
    pytest.param(Unroll(2, SGD(lr=0.3, momentum=0.9), network=True), id="momentum-network"),
    pytest.param(Unroll(2, Adam(lr=0.1)), id="adam-head"),
    pytest.param(FittedHead(0.01), id="fitted"),
    pytest.param(FittedHead(0.01, cross_fit=True), id="cross-fitted"),
]
INVERSES = [
    pytest.param(Identity(), id="identity"),
    pytest.param(Neumann(3, 0.1), id="neumann"),
    pytest.param(ConjugateGradient(damping=1.0), id="cg"),
    pytest.param(Dense(damping=1.0), id="dense"),
]


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested dictionaries, tuples, lists and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))


def call(problem: Normed, inverse: Any = Dense(damping=1.0), solver: Any = STEPS, **changes: Any) -> Any:  # noqa: B008
    given = {"pretrain_batch": PRETRAIN, "train": TRAIN, "validation_batch": VALIDATION}
    return called(problem, inverse=inverse, solver=solver, **{**given, **changes})


@pytest.mark.parametrize("inverse", INVERSES)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_every_argument_is_bitwise_what_it_was_and_no_result_has_a_graph(
    solver: Any, inverse: Any, requires_grad: bool
) -> None:
    problem = Normed()
    state = solver.optimizer.init(problem.head) if isinstance(solver, Unroll) else {}
    for params in (problem.pretrained.encoder, problem.pretrained.head, problem.meta, problem.head):
        for value in params.values():
            value.requires_grad_(requires_grad)
    given = [problem.pretrained, problem.meta, problem.head, state, PRETRAIN, TRAIN, VALIDATION]
    before = [(value, value.detach().clone(), value.requires_grad) for value in tensors(given)]
    assert len(before) > 15
    found = list(tensors(call(problem, inverse, solver, head_state=state)))
    assert len(found) > 15
    assert not any(value.requires_grad for value in found)
    for value, copy, flag in before:
        assert torch.equal(value, copy)
        assert value.requires_grad is flag
        assert value.grad is None


def test_the_exact_hypergradient_changes_nothing_and_returns_nothing_attached() -> None:
    problem = Normed()
    for value in tensors([problem.pretrained.encoder, problem.pretrained.head, problem.meta, problem.head]):
        value.requires_grad_()
    before = [(value, value.detach().clone()) for value in tensors([problem.pretrained, problem.meta, problem.head])]
    result = exact_hypergradient(
        problem,
        problem.pretrained,
        problem.meta,
        problem.head,
        pretrain_batches=[PRETRAIN],
        train_batches=TRAIN,
        validation_batches=[VALIDATION],
        pretrain_optimizer=SGD(lr=0.1, momentum=0.9),
        finetune_optimizer=Adam(lr=0.1),
    )
    assert all(torch.equal(value, copy) and value.grad is None for value, copy in before)
    assert not any(value.requires_grad for value in tensors(result))


def test_the_given_statistics_stay_and_the_new_ones_come_with_the_pretrain_gradient() -> None:
    problem = Normed()
    before = {name: value.clone() for name, value in problem.pretrained.buffers.items()}
    result = call(problem)
    assert all(torch.equal(problem.pretrained.buffers[name], value) for name, value in before.items())
    problem.module.train()
    functional_call(
        problem.module, {**problem.pretrained.encoder, **before}, PRETRAIN.inputs
    )  # changes `before` in place
    torch.testing.assert_close(result.pretrain_gradient.buffers, before)
    assert not torch.equal(before["1.running_mean"], problem.pretrained.buffers["1.running_mean"])


def test_fine_tuning_encodes_with_the_running_statistics_and_not_with_those_of_the_minibatch() -> None:
    problem = Normed()
    result = call(problem, solver=Unroll(0), train=[])
    problem.module.eval()
    features = functional_call(
        problem.module, {**problem.pretrained.encoder, **problem.pretrained.buffers}, VALIDATION.inputs
    )
    expected = problem.head_loss(problem.head, features, VALIDATION)
    torch.testing.assert_close(result.diagnostics.validation_loss, expected.detach())
    shifted = {**problem.pretrained.buffers, "1.running_mean": problem.pretrained.buffers["1.running_mean"] + 1}
    other = call(problem, solver=Unroll(0), train=[], pretrained=problem.pretrained._replace(buffers=shifted))
    assert (flat(result.gradient) - flat(other.gradient)).norm() > 1e-3


def test_pretraining_uses_the_statistics_of_the_minibatch() -> None:
    problem = Normed()
    result = call(problem)
    shifted = {**problem.pretrained.buffers, "1.running_mean": problem.pretrained.buffers["1.running_mean"] + 1}
    other = call(problem, pretrained=problem.pretrained._replace(buffers=shifted))
    torch.testing.assert_close(result.diagnostics.pretrain_loss, other.diagnostics.pretrain_loss, rtol=0.0, atol=0.0)


def by_hand(problem: Normed, mask: Tensor, g2: Tensor, damping: float) -> Params:
    """Return -(g2, 0) (H + damping)^-1 d2L / (dw dmeta) with one fixed mask, by autograd's own Hessian and Jacobian."""
    names = [*problem.pretrained.encoder, *problem.pretrained.head]
    shapes = [value.shape for value in problem.pretrained.vector()]
    count = len(problem.pretrained.encoder)
    at = torch.cat([value.reshape(-1) for value in problem.pretrained.vector()])

    class Fixed(Normed):
        def mask(self, batch: SeededBatch) -> Tensor:
            return mask

    fixed = Fixed()

    def loss(point: Tensor, weights: Tensor, ridge: Tensor) -> Tensor:
        parts = point.split([shape.numel() for shape in shapes])
        values = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        encoder, head = (
            dict(zip(names[:count], values[:count], strict=True)),
            dict(zip(names[count:], values[count:], strict=True)),
        )
        buffers = {name: value.clone() for name, value in problem.pretrained.buffers.items()}
        return fixed.pretrain_loss(Pretrained(encoder, head, buffers), {"weights": weights, "ridge": ridge}, PRETRAIN)

    meta = tuple(problem.meta.values())
    blocks = torch.autograd.functional.hessian(loss, (at, *meta))
    v = torch.cat([g2, torch.zeros(at.numel() - g2.numel(), dtype=DTYPE)])
    solved = torch.linalg.solve(blocks[0][0] + damping * torch.eye(at.numel(), dtype=DTYPE), v)
    return {name: -solved @ blocks[0][index + 1] for index, name in enumerate(problem.meta)}


def encoder_gradient(problem: Normed) -> Tensor:
    encoder, _, buffers = problem.pretrained
    return flat(STEPS(problem, encoder, buffers, problem.head, None, TRAIN, VALIDATION).encoder_gradient)


def test_a_mask_from_the_minibatchs_seed_is_the_same_in_the_hessian_and_in_the_mixed_derivative() -> None:
    problem = Normed()
    g2 = encoder_gradient(problem)
    result = call(problem)
    torch.testing.assert_close(result.gradient, by_hand(problem, problem.mask(PRETRAIN), g2, damping=1.0))
    other = call(problem, pretrain_batch=PRETRAIN._replace(seed=4))
    assert (flat(result.gradient) - flat(other.gradient)).norm() > 1e-4


def test_even_a_mask_from_the_global_generator_is_drawn_once() -> None:
    class Careless(Normed):
        drawn: list[Tensor]

        def mask(self, batch: SeededBatch) -> Tensor:
            self.drawn.append(2 * (torch.rand(len(batch.inputs), 5, dtype=DTYPE) < 0.5))
            return self.drawn[-1]

    problem = counted(Careless())
    problem.drawn = []
    g2 = encoder_gradient(problem)
    result = call(problem)
    assert len(problem.drawn) == 1
    torch.testing.assert_close(result.gradient, by_hand(problem, problem.drawn[0], g2, damping=1.0))


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_same_arguments_give_the_same_bits(solver: Any) -> None:
    problem = Normed()
    first, second = call(problem, Neumann(3, 0.1), solver), call(problem, Neumann(3, 0.1), solver)
    assert all(torch.equal(a, b) for a, b in zip(tensors(first), tensors(second), strict=True))
