"""Backpropagation through all of PT and FT, against finite differences and against the hypergradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import SGD, Dense, ExactHypergradient, Params, Pretrained, Unroll

from .problems import (
    OPTIMIZERS,
    Classifier,
    Normed,
    Quadratic,
    Reference,
    SeededBatch,
    called,
    central_difference,
    classification,
    draw,
    exact,
    finetuned_loss,
    flat,
    sgd,
    trained,
)

pytestmark = pytest.mark.filterwarnings("error")

PRETRAIN = [classification(400 + 2 * i, 8) for i in range(6)]
TRAIN = [classification(500 + 2 * i, 6) for i in range(3)]
VALIDATION = [classification(600 + 2 * i, 7) for i in range(2)]


def through_all(problem: Any, **changes: Any) -> ExactHypergradient:
    batches = {"pretrain_batches": PRETRAIN, "train_batches": TRAIN, "validation_batches": VALIDATION}
    return exact(problem, **batches | changes)


def validation_loss(problem: Any, ended: Pretrained, optimizer: Reference, network: bool) -> Tensor:
    losses = [finetuned_loss(problem, ended, problem.head, TRAIN, batch, optimizer, network) for batch in VALIDATION]
    return torch.stack(losses).mean()


@pytest.mark.parametrize("network", [True, False])
@pytest.mark.parametrize(("optimizer", "reference"), OPTIMIZERS)
def test_the_exact_hypergradient_is_the_finite_difference_of_pretraining_and_fine_tuning(
    optimizer: Any, reference: Reference, network: bool
) -> None:
    problem = Classifier(torch.tanh if network else torch.relu)
    result = through_all(problem, pretrain_optimizer=optimizer, finetune_optimizer=optimizer, network=network)

    def loss(meta: Params) -> Tensor:
        return validation_loss(problem, trained(problem, meta, PRETRAIN, reference), reference, network)

    torch.testing.assert_close(result.gradient, central_difference(loss, problem.meta, step=1e-6), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(result.validation_loss, loss(problem.meta))


def test_without_pretraining_steps_the_meta_parameters_do_not_matter() -> None:
    result = through_all(Classifier(), pretrain_batches=[])
    assert not flat(result.gradient).any()
    assert result.pretrain_losses.shape == (0,)


def test_what_the_stages_end_with_is_what_plain_training_ends_with() -> None:
    problem = Classifier()
    result = through_all(problem)
    expected = trained(problem, problem.meta, PRETRAIN)
    torch.testing.assert_close(result.pretrained, expected)
    first = problem.pretrain_loss(problem.pretrained, problem.meta, PRETRAIN[0])
    torch.testing.assert_close(result.pretrain_losses[0], first)
    assert result.pretrain_losses.shape == (6,)
    solver = Unroll(3, SGD(lr=0.3), network=True)
    tuned = solver(problem, expected.encoder, {}, problem.head, None, TRAIN, VALIDATION[0])
    torch.testing.assert_close(result.head, tuned.head)
    without = through_all(problem, train_batches=[])
    assert all(torch.equal(without.head[name], value) for name, value in problem.head.items())
    losses = [problem.head_loss(problem.head, problem.encode(expected.encoder, batch), batch) for batch in VALIDATION]
    torch.testing.assert_close(without.validation_loss, torch.stack(losses).mean())


def both(problem: Any, pretrain: list[Any], train: list[Any], validation: Any, lr: float, **given: Any) -> list[Tensor]:
    """The exact hypergradient, and the one that assumes PT's minimum, where PT has ended."""
    how = {"pretrain_batches": pretrain, "train_batches": train, "validation_batches": [validation]}
    oracle = exact(problem, finetune_optimizer=SGD(lr), **how, **given)
    estimate = called(
        problem,
        pretrained=oracle.pretrained,
        pretrain_batch=pretrain[-1],
        train_batches=train,
        validation_batch=validation,
        inverse=Dense(),
        finetuning=Unroll(len(train), SGD(lr), network=True),
    )
    return [flat(oracle.gradient), flat(estimate.gradient)]


def test_the_hypergradient_approaches_the_exact_one_at_the_rate_of_pretraining() -> None:
    # d w_T / d meta = (I - (I - lr H)^T) A, so the gap shrinks by max |1 - lr eigenvalue| = 0.75 a step
    problem, gaps = Quadratic(), {}
    start = Pretrained({"map": draw(60, 3, 2)}, {"bias": draw(61, 2)})
    for steps in (1, 10, 20, 40, 100):
        data = problem.batches(2), problem.batches(1, seed=50)[0]
        oracle, estimate = both(problem, [None] * steps, *data, 0.1, pretrained=start, pretrain_optimizer=SGD(lr=0.5))
        gaps[steps] = float((oracle - estimate).norm())
    assert gaps[1] > 0.1
    assert gaps[40] / gaps[20] == pytest.approx(0.75**20, rel=0.2)
    assert gaps[100] < 1e-10


def test_the_hypergradient_approaches_the_exact_one_on_a_network() -> None:
    pretrain, momentum = [classification(400, 12)] * 200, SGD(lr=2.0, momentum=0.8)
    oracle, estimate = both(Classifier(), pretrain, TRAIN, VALIDATION[0], 0.3, pretrain_optimizer=momentum)
    torch.testing.assert_close(estimate, oracle, rtol=1e-4, atol=1e-8)
    assert oracle.norm() > 1e-3


@pytest.mark.parametrize("network", [True, False])
def test_with_batch_norm_and_dropout_it_is_exact_for_the_statistics_that_pretraining_ends_with(network: bool) -> None:
    problem = Normed()
    batches = [SeededBatch(*classification(700 + 2 * i, 8), seed=i) for i in range(4)]
    result = through_all(problem, pretrain_batches=batches, network=network)
    ended = trained(problem, problem.meta, batches)
    torch.testing.assert_close(result.pretrained.buffers, ended.buffers)

    def loss(meta: Params) -> Tensor:
        shifted = trained(problem, meta, batches)._replace(buffers=ended.buffers)
        return validation_loss(problem, shifted, sgd, network)

    torch.testing.assert_close(result.gradient, central_difference(loss, problem.meta), rtol=1e-6, atol=1e-9)


def test_no_validation_minibatch_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="no validation minibatch"):
        through_all(Classifier(), validation_batches=[])
