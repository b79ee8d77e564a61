"""Backpropagation through all of PT and FT, against finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import SGD, ExactHypergradient, Params, Pretrained, Unroll

from .problems import (
    OPTIMIZERS,
    Classifier,
    Masked,
    Reference,
    SeededBatch,
    central_difference,
    classification,
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


class Fading(Classifier):
    """The same with a factor of the outputs that each PT step changes in place, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.pretrained = self.pretrained._replace(buffers={"factor": torch.ones((), dtype=torch.float64)})

    def pretrain_outputs(self, pretrained: Pretrained, *given: Any) -> Tensor:
        pretrained.buffers["factor"].data.mul_(0.8)  # of which autograd knows nothing
        return pretrained.buffers["factor"] * super().pretrain_outputs(pretrained, *given)


@pytest.mark.parametrize("network", [True, False])
@pytest.mark.parametrize(("optimizer", "reference"), OPTIMIZERS)
def test_the_exact_hypergradient_is_the_finite_difference_of_pretraining_and_fine_tuning(
    optimizer: Any, reference: Reference, network: bool
) -> None:
    problem = Fading() if network else Classifier(torch.relu)
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


@pytest.mark.parametrize("network", [True, False])
def test_with_batch_norm_and_dropout_it_is_exact_for_the_statistics_that_pretraining_ends_with(network: bool) -> None:
    problem = Masked()
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
