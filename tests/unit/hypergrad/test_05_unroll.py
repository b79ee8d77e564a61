"""The unrolled FT solver equals a loop by hand: direct part, part through the steps, and the state carried on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import SGD, FineTuned, Params, Pretrained, Status, Unroll

from .problems import (
    OPTIMIZERS,
    Batch,
    Classifier,
    Reference,
    central_difference,
    classification,
    finetuned_loss,
    flat_vector,
)

pytestmark = pytest.mark.filterwarnings("error")

PROBLEM = Classifier()
ENCODER = PROBLEM.pretrained.encoder
TRAIN = [classification(200 + 2 * i, 6) for i in range(5)]
VALIDATION = classification(300, 8)
optimizers = pytest.mark.parametrize(("optimizer", "reference"), OPTIMIZERS)
networks = pytest.mark.parametrize("network", [False, True])


def tune(solver: Unroll, train: list[Batch], head: Params = PROBLEM.head, state: Any = None) -> FineTuned:
    return solver(PROBLEM, ENCODER, {}, head, state, train, VALIDATION)


@networks
@pytest.mark.parametrize("train", [TRAIN[:2], [VALIDATION, TRAIN[0], VALIDATION]], ids=["2", "repeated"])
@optimizers
def test_the_encoder_gradient_is_the_derivative_of_a_fine_tuning_by_torch_optim(
    optimizer: Any, reference: Reference, train: list[Batch], network: bool
) -> None:
    result = tune(Unroll(len(train), optimizer, network), train)

    def loss(encoder: Params) -> Tensor:
        return finetuned_loss(PROBLEM, Pretrained(encoder, {}), PROBLEM.head, train, VALIDATION, reference, network)

    torch.testing.assert_close(result.encoder_gradient, central_difference(loss, ENCODER), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(result.validation_loss, loss(ENCODER))


@networks
@optimizers
def test_head_and_losses_are_those_of_a_loop_by_hand_also_if_the_state_is_carried_over(
    optimizer: Any, reference: Reference, network: bool
) -> None:
    encoder = {name: value.clone().requires_grad_(network) for name, value in ENCODER.items()}
    head = {name: value.clone().requires_grad_() for name, value in PROBLEM.head.items()}
    stepper, losses = reference([*head.values(), *(encoder.values() if network else ())]), []
    for batch in TRAIN:
        stepper.zero_grad()
        loss = PROBLEM.head_loss(head, PROBLEM.encode(encoder, batch), batch)
        loss.backward()
        stepper.step()
        losses.append(loss.detach())
    last = PROBLEM.head_loss(head, PROBLEM.encode(encoder, VALIDATION), VALIDATION)
    slopes = torch.autograd.grad(last, list(head.values()))
    result = tune(Unroll(5, optimizer, network), TRAIN)
    torch.testing.assert_close(result.head, {name: value.detach() for name, value in head.items()})
    torch.testing.assert_close(result.train_losses, torch.stack(losses))
    torch.testing.assert_close(result.head_gradient_norm, flat_vector(slopes).norm())
    assert result.status is Status.OK
    if not network:
        first = tune(Unroll(2, optimizer), TRAIN[:2])
        second = tune(Unroll(3, optimizer), TRAIN[2:], head=first.head, state=first.head_state)
        torch.testing.assert_close(second.head, result.head)
        torch.testing.assert_close(second.head_state, result.head_state)


@pytest.mark.parametrize("given", [0, 1, 3])
def test_not_one_minibatch_a_step_is_refused_in_words(given: int) -> None:
    with pytest.raises(ValueError, match=f"{given} FT training minibatches for 2 unrolled steps; give one per step"):
        tune(Unroll(2, SGD(lr=0.1)), TRAIN[:given])


def test_a_negative_number_of_steps_is_refused_with_what_is_legal() -> None:
    with pytest.raises(ValueError, match="legal: 0 or more"):
        Unroll(steps=-1)
