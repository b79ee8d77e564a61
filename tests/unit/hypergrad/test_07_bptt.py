"""Backpropagation through all of PT and FT, against finite differences and against the hypergradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import SGD, Dense, ExactHypergradient, Params, Pretrained, Unroll, exact_hypergradient

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
    finetuned_loss,
    flat,
    trained,
)

pytestmark = pytest.mark.filterwarnings("error")

PRETRAIN = [classification(400 + 2 * i, 8) for i in range(6)]
TRAIN = [classification(500 + 2 * i, 6) for i in range(3)]
VALIDATION = [classification(600 + 2 * i, 7) for i in range(2)]


def exact(problem: Any, **changes: Any) -> ExactHypergradient:
    pretrained = changes.pop("pretrained", None) or problem.pretrained
    settings = {
        "pretrain_batches": PRETRAIN,
        "train_batches": TRAIN,
        "validation_batches": VALIDATION,
        "pretrain_optimizer": SGD(lr=0.3),
        "finetune_optimizer": SGD(lr=0.3),
    }
    return exact_hypergradient(problem, pretrained, problem.meta, problem.head, **{**settings, **changes})


def whole(problem: Any, meta: Params, pretrain: Reference, finetune: Reference, network: bool) -> Tensor:
    """PT, then FT, by torch's optimisers; the mean loss over the validation minibatches."""
    encoder, head = (
        {k: v.detach().clone().requires_grad_() for k, v in part.items()} for part in problem.pretrained[:2]
    )
    stepper = pretrain([*encoder.values(), *head.values()])
    for batch in PRETRAIN:
        stepper.zero_grad()
        problem.pretrain_loss(Pretrained(encoder, head), meta, batch).backward()
        stepper.step()
    ended = Pretrained(encoder, head)
    return torch.stack(
        [finetuned_loss(problem, ended, problem.head, TRAIN, batch, finetune, network) for batch in VALIDATION]
    ).mean()


@pytest.mark.parametrize("activation", [torch.tanh, torch.relu])
@pytest.mark.parametrize("network", [True, False])
@pytest.mark.parametrize(("optimizer", "reference"), OPTIMIZERS)
def test_the_exact_hypergradient_is_the_finite_difference_of_pretraining_and_fine_tuning(
    optimizer: Any, reference: Reference, network: bool, activation: Any
) -> None:
    problem = Classifier(activation)
    result = exact(problem, pretrain_optimizer=optimizer, finetune_optimizer=optimizer, network=network)
    loss = lambda meta: whole(problem, meta, reference, reference, network)  # noqa: E731
    torch.testing.assert_close(result.gradient, central_difference(loss, problem.meta, step=1e-6), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(result.validation_loss, loss(problem.meta))


def test_without_pretraining_steps_the_meta_parameters_do_not_matter() -> None:
    result = exact(Classifier(), pretrain_batches=[])
    assert not flat(result.gradient).any()
    assert result.pretrain_losses.shape == (0,)


def test_without_fine_tuning_steps_the_loss_is_that_of_the_pretrained_encoder_under_the_initial_head() -> None:
    problem = Classifier()
    result = exact(problem, train_batches=[])
    assert all(torch.equal(result.head[name], value) for name, value in problem.head.items())
    losses = [
        problem.head_loss(problem.head, problem.encode(result.pretrained.encoder, batch), batch) for batch in VALIDATION
    ]
    torch.testing.assert_close(result.validation_loss, torch.stack(losses).mean())


def test_what_the_stages_end_with_is_what_plain_training_ends_with() -> None:
    problem = Classifier()
    result = exact(problem)
    expected = trained(problem, problem.pretrained, problem.meta, PRETRAIN, lr=0.3)
    torch.testing.assert_close(result.pretrained.encoder, expected.encoder)
    torch.testing.assert_close(result.pretrained.head, expected.head)
    first = problem.pretrain_loss(problem.pretrained, problem.meta, PRETRAIN[0])
    torch.testing.assert_close(result.pretrain_losses[0], first)
    assert result.pretrain_losses.shape == (6,)
    tuned = Unroll(3, SGD(lr=0.3), network=True)(
        problem, expected.encoder, {}, problem.head, None, TRAIN, VALIDATION[0]
    )
    torch.testing.assert_close(result.head, tuned.head)


def quadratic_gap(steps: int) -> float:
    """The distance from the exact hypergradient after so many PT steps to the one that assumes PT's minimum."""
    problem = Quadratic()
    start = Pretrained({"map": draw(60, 3, 2)}, {"bias": draw(61, 2)})
    train, validation = problem.batches(2), problem.batches(1, seed=50)[0]
    oracle = exact(
        problem,
        pretrained=start,
        pretrain_batches=[None] * steps,
        train_batches=train,
        validation_batches=[validation],
        pretrain_optimizer=SGD(lr=0.5),
        finetune_optimizer=SGD(lr=0.1),
    )
    estimate = called(
        problem,
        pretrained=oracle.pretrained,
        pretrain_batch=None,
        train=train,
        validation_batch=validation,
        inverse=Dense(),
        solver=Unroll(2, SGD(lr=0.1), network=True),
    )
    return float((flat(oracle.gradient) - flat(estimate.gradient)).norm())


def test_the_hypergradient_approaches_the_exact_one_at_the_rate_of_pretraining() -> None:
    # d w_T / d meta = (I - (I - lr H)^T) A, so the gap shrinks by max |1 - lr eigenvalue| = 0.75 a step
    gaps = {steps: quadratic_gap(steps) for steps in (1, 10, 20, 40, 100)}
    assert gaps[1] > 0.1
    assert gaps[40] / gaps[20] == pytest.approx(0.75**20, rel=0.2)
    assert gaps[100] < 1e-10


def test_the_hypergradient_approaches_the_exact_one_on_a_network() -> None:
    problem = Classifier()
    batch = classification(400, 12)
    oracle = exact(
        problem,
        pretrain_batches=[batch] * 600,
        pretrain_optimizer=SGD(lr=0.5, momentum=0.9),
        validation_batches=VALIDATION[:1],
    )
    estimate = called(
        problem,
        pretrained=oracle.pretrained,
        pretrain_batch=batch,
        train=TRAIN,
        validation_batch=VALIDATION[0],
        inverse=Dense(),
        solver=Unroll(3, SGD(lr=0.3), network=True),
    )
    torch.testing.assert_close(estimate.gradient, oracle.gradient, rtol=1e-4, atol=1e-8)
    assert flat(oracle.gradient).norm() > 1e-3


@pytest.mark.parametrize("network", [True, False])
def test_with_batch_norm_and_dropout_it_is_exact_for_the_statistics_that_pretraining_ends_with(network: bool) -> None:
    problem = Normed()
    batches = [SeededBatch(*classification(700 + 2 * i, 8), seed=i) for i in range(4)]
    result = exact(problem, pretrain_batches=batches, network=network)
    ended = trained(problem, problem.pretrained, problem.meta, batches, lr=0.3)
    torch.testing.assert_close(result.pretrained.buffers, ended.buffers)
    reference = lambda p: torch.optim.SGD(p, lr=0.3)  # noqa: E731

    def loss(meta: Params) -> Tensor:
        shifted = trained(problem, problem.pretrained, meta, batches, lr=0.3)._replace(buffers=ended.buffers)
        return torch.stack(
            [finetuned_loss(problem, shifted, problem.head, TRAIN, batch, reference, network) for batch in VALIDATION]
        ).mean()

    torch.testing.assert_close(result.gradient, central_difference(loss, problem.meta), rtol=1e-6, atol=1e-9)


def test_no_validation_minibatch_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="no validation minibatch"):
        exact(Classifier(), validation_batches=[])
