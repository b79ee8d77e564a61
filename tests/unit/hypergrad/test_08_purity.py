"""No call changes its arguments, statistics and masks are used as they should be, no result is attached to a graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from metapt.hypergrad import SGD, Adam, ConjugateGradient, Dense, FittedHead, Identity, Neumann, Unroll
from metapt.hypergrad.nested import cloned

from .problems import DTYPE, Masked, SeededBatch, called, classification, counted, exact, flat, flat_vector, rebuilt

pytestmark = pytest.mark.filterwarnings("error")

PRETRAIN = SeededBatch(*classification(700, 9), seed=3)
TRAIN = [classification(500 + 2 * i, 6) for i in range(2)]
VALIDATION = classification(600, 7)
STEPS = Unroll(2, SGD(lr=0.3))

SOLVERS = [
    STEPS,
    Unroll(2, SGD(lr=0.3, momentum=0.9), network=True),
    Unroll(2, Adam(lr=0.1)),
    FittedHead(0.01),
    FittedHead(0.01, cross_fit=True),
]
INVERSES = [Identity(), Neumann(3, 0.1), ConjugateGradient(damping=1.0), Dense(damping=1.0)]


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested dictionaries, tuples, lists and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | tuple | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors(part)
    elif is_dataclass(value):
        yield from tensors([getattr(value, field.name) for field in fields(value)])


def call(problem: Masked, **changes: Any) -> Any:
    given = {"pretrain_batch": PRETRAIN, "train_batches": TRAIN, "validation_batch": VALIDATION}
    return called(problem, **given | {"inverse": Dense(damping=1.0), "finetuning": STEPS} | changes)


HOW = [(solver, INVERSES[0]) for solver in SOLVERS] + [(SOLVERS[0], inverse) for inverse in INVERSES[1:]]


@pytest.mark.parametrize(("solver", "inverse"), HOW)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_every_argument_is_bitwise_what_it_was_and_no_result_has_a_graph(
    solver: Any, inverse: Any, requires_grad: bool
) -> None:
    problem = Masked()
    state = solver.optimizer.init(problem.head) if isinstance(solver, Unroll) else {}
    for params in (problem.pretrained.encoder, problem.pretrained.head, problem.meta, problem.head):
        for value in params.values():
            value.requires_grad_(requires_grad)
    given = [problem.pretrained, problem.meta, problem.head, state, PRETRAIN, TRAIN, VALIDATION]
    before = [(value, value.detach().clone(), value.requires_grad) for value in tensors(given)]
    assert len(before) > 15
    found = list(tensors(call(problem, inverse=inverse, finetuning=solver, head_state=state)))
    assert len(found) > 15
    assert not any(value.requires_grad for value in found)
    for value, copy, flag in before:
        assert torch.equal(value, copy)
        assert value.requires_grad is flag
        assert value.grad is None


def test_the_exact_hypergradient_changes_nothing_and_returns_nothing_attached() -> None:
    problem = Masked()
    for value in tensors([problem.pretrained.encoder, problem.pretrained.head, problem.meta, problem.head]):
        value.requires_grad_()
    before = [(value, value.detach().clone()) for value in tensors([problem.pretrained, problem.meta, problem.head])]
    batches = {"pretrain_batches": [PRETRAIN], "train_batches": TRAIN, "validation_batches": [VALIDATION]}
    result = exact(problem, **batches, pretrain_optimizer=SGD(0.1, 0.9), finetune_optimizer=Adam(0.1))
    assert all(torch.equal(value, copy) and value.grad is None for value, copy in before)
    assert not any(value.requires_grad for value in tensors(result))


def test_fine_tuning_uses_the_given_statistics_and_pretraining_those_of_the_minibatch_and_returns_new_ones() -> None:
    problem = Masked()
    encoder, _, buffers = problem.pretrained
    before = {name: value.clone() for name, value in buffers.items()}
    shifted = {**buffers, "1.running_mean": buffers["1.running_mean"] + 1}
    result, other = (
        call(problem, finetuning=Unroll(0), train_batches=[], pretrained=problem.pretrained._replace(buffers=given))
        for given in (buffers, shifted)
    )
    assert all(torch.equal(buffers[name], value) for name, value in before.items())
    expected = problem.head_loss(problem.head, problem.encode({**encoder, **buffers}, VALIDATION), VALIDATION)
    torch.testing.assert_close(result.diagnostics.validation_loss, expected)
    assert (flat(result.gradient) - flat(other.gradient)).norm() > 1e-3
    assert torch.equal(result.diagnostics.pretrain_loss, other.diagnostics.pretrain_loss)
    problem.module.train()
    functional_call(problem.module, {**encoder, **before}, PRETRAIN.inputs)  # changes `before` in place
    torch.testing.assert_close(result.pretrain_gradient.buffers, before)
    assert not torch.equal(before["1.running_mean"], buffers["1.running_mean"])


def test_a_mask_is_drawn_once_for_the_hessian_and_the_mixed_derivative_even_from_the_global_generator() -> None:
    """It is -(g2, 0) (H + 1)^-1 d2L / (dw dmeta) with the one mask, by autograd's own second derivatives."""

    class Careless(Masked):
        drawn: list[Tensor]

        def mask(self, batch: SeededBatch) -> Tensor:
            self.drawn.append(2 * (torch.rand(len(batch.inputs), 5, dtype=DTYPE) < 0.5))
            return self.drawn[-1]

    problem = counted(Careless())
    problem.drawn = []
    result = call(problem)
    (mask,) = problem.drawn
    problem.mask = lambda batch: mask
    encoder, _, buffers = problem.pretrained
    g2 = flat(STEPS(problem, encoder, buffers, problem.head, None, TRAIN, VALIDATION).encoder_gradient)
    at = flat_vector(problem.pretrained.vector())

    def loss(point: Tensor, *meta: Tensor) -> Any:
        return problem.pretrain_loss(
            rebuilt(problem.pretrained, point), dict(zip(problem.meta, meta, strict=True)), PRETRAIN
        )

    blocks = torch.autograd.functional.hessian(loss, (at, *problem.meta.values()))
    v = torch.cat([g2, torch.zeros(len(at) - len(g2), dtype=DTYPE)])
    solved = torch.linalg.solve(blocks[0][0] + torch.eye(len(at), dtype=DTYPE), v)
    expected = {name: -solved @ block for name, block in zip(problem.meta, blocks[0][1:], strict=True)}
    torch.testing.assert_close(result.gradient, expected)


def test_a_copy_has_the_strides_of_its_tensor() -> None:
    whole = torch.randn(3, 4, 5)
    for part in (whole[:, :2], whole[:, ::2, 1:], whole.mT[1:], whole[:, :1].expand(3, 7, 5), whole[:0], whole[0, 0]):
        copy = cloned(part)
        assert torch.equal(copy, part)
        assert copy.stride() == part.stride()
        assert copy.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()


def test_copies_of_columns_take_the_memory_of_their_table_once() -> None:
    table = torch.randn(6, 40)
    columns = {str(column): table[:, column] for column in range(40)} | {"last rows": table[4:, :-1]}
    copies = cloned(columns)
    assert all(torch.equal(copies[name], column) for name, column in columns.items())
    assert len({copy.untyped_storage().data_ptr() for copy in copies.values()}) == 1
    assert copies["0"].untyped_storage().nbytes() == 4 * table.numel()
    apart = cloned([table[:1, :4].mT, table[:2, 1:3], table[4:, 1:3]])
    assert [copy.untyped_storage().nbytes() for copy in apart] == [16, 4 * 42, 4 * 42]


def test_an_array_that_torch_cannot_hold_is_in_the_copy_as_it_is() -> None:
    numbers = torch.randn(3, 4).numpy()
    odd = numbers[::-1], numbers.astype(">f8")
    assert all(each is array for each, array in zip(cloned(odd), odd, strict=True))
