"""The unrolled FT solver equals a loop by hand: direct part, part through the steps, and the state carried on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import SGD, Adam, Dense, FineTuned, Neumann, Params, Pretrained, Status, Unroll, hypergradient
from metapt.hypergrad.finetune import FineTuning

from .problems import Batch, Classifier, Quadratic, central_difference, classification, draw, finetuned_loss, trained

pytestmark = pytest.mark.filterwarnings("error")

PROBLEM = Classifier()
ENCODER = PROBLEM.pretrained.encoder
TRAIN = [classification(200 + 2 * i, 6) for i in range(5)]
VALIDATION = classification(300, 8)
OPTIMIZERS = [
    pytest.param(SGD(lr=0.5), lambda p: torch.optim.SGD(p, lr=0.5), id="sgd"),
    pytest.param(SGD(lr=0.3, momentum=0.8), lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.8), id="momentum"),
    pytest.param(Adam(lr=0.1, eps=1e-3), lambda p: torch.optim.Adam(p, lr=0.1, eps=1e-3), id="adam"),
]
Reference = Callable[[list[Tensor]], torch.optim.Optimizer]


def tune(
    solver: FineTuning, train: list[Batch], encoder: Params = ENCODER, head: Params = PROBLEM.head, state: Any = None
) -> FineTuned:
    return solver(PROBLEM, encoder, {}, head, state, train, VALIDATION)


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize(("optimizer", "reference"), OPTIMIZERS)
def test_the_encoder_gradient_is_the_derivative_of_a_fine_tuning_by_torch_optim(
    optimizer: Any, reference: Reference, steps: int, network: bool
) -> None:
    result = tune(Unroll(steps, optimizer, network), TRAIN[:steps])

    def loss(encoder: Params) -> Tensor:
        return finetuned_loss(
            PROBLEM, Pretrained(encoder, {}), PROBLEM.head, TRAIN[:steps], VALIDATION, reference, network
        )

    torch.testing.assert_close(result.encoder_gradient, central_difference(loss, ENCODER), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(result.validation_loss, loss(ENCODER))


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize(("optimizer", "reference"), OPTIMIZERS)
def test_the_head_and_the_losses_are_those_of_a_loop_by_hand(
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
    torch.testing.assert_close(result.head_gradient_norm, torch.cat([slope.reshape(-1) for slope in slopes]).norm())
    assert result.status is Status.OK


def parts(steps: int, lr: float) -> tuple[list[Tensor], list[Tensor]]:
    """The gradient w.r.t. the encoder by hand: through the validation features, and through the head's SGD steps."""
    used, trained_on = ({name: value.clone().requires_grad_() for name, value in ENCODER.items()} for _ in range(2))
    head = {name: value.clone().requires_grad_() for name, value in PROBLEM.head.items()}
    for batch in TRAIN[:steps]:
        loss = PROBLEM.head_loss(head, PROBLEM.encode(trained_on, batch), batch)
        slopes = torch.autograd.grad(loss, list(head.values()), create_graph=True)
        head = {name: value - lr * slope for (name, value), slope in zip(head.items(), slopes, strict=True)}
    loss = PROBLEM.head_loss(head, PROBLEM.encode(used, VALIDATION), VALIDATION)
    direct = torch.autograd.grad(loss, list(used.values()), retain_graph=True)
    through = (
        torch.autograd.grad(loss, list(trained_on.values())) if steps else [torch.zeros_like(part) for part in direct]
    )
    return list(direct), list(through)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_direct_part_and_the_part_through_the_steps_are_both_kept(steps: int) -> None:
    direct, through = parts(steps, lr=0.5)
    result = list(tune(Unroll(steps, SGD(lr=0.5)), TRAIN[:steps]).encoder_gradient.values())
    torch.testing.assert_close(result, [a + b for a, b in zip(direct, through, strict=True)])
    assert all(part.abs().max() > 1e-3 for part in (*direct, *through))  # so dropping either would show


@pytest.mark.parametrize("network", [False, True])
def test_without_steps_only_the_direct_part_is_left_and_the_head_stays(network: bool) -> None:
    direct, _ = parts(0, lr=0.5)
    result = tune(Unroll(0, SGD(lr=0.5), network), [])
    torch.testing.assert_close(list(result.encoder_gradient.values()), direct)
    assert all(torch.equal(result.head[name], value) for name, value in PROBLEM.head.items())
    assert result.train_losses.shape == (0,)


@pytest.mark.parametrize("network", [False, True])
def test_a_minibatch_may_serve_several_steps_and_validation(network: bool) -> None:
    train = [VALIDATION, TRAIN[0], VALIDATION]
    result = tune(Unroll(3, SGD(lr=0.5), network), train)

    def loss(encoder: Params) -> Tensor:
        reference = lambda p: torch.optim.SGD(p, lr=0.5)  # noqa: E731
        return finetuned_loss(PROBLEM, Pretrained(encoder, {}), PROBLEM.head, train, VALIDATION, reference, network)

    torch.testing.assert_close(result.encoder_gradient, central_difference(loss, ENCODER), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("optimizer", "reference"), OPTIMIZERS)
def test_head_and_state_carried_over_two_calls_are_those_of_one_call(optimizer: Any, reference: Reference) -> None:
    whole = tune(Unroll(5, optimizer), TRAIN)
    first = tune(Unroll(2, optimizer), TRAIN[:2])
    second = tune(Unroll(3, optimizer), TRAIN[2:], head=first.head, state=first.head_state)
    torch.testing.assert_close(second.head, whole.head)
    torch.testing.assert_close(second.head_state, whole.head_state)


def test_the_state_given_to_the_hypergradient_is_used_and_the_new_one_returned() -> None:
    solver = Unroll(1, Adam(lr=0.1))
    before = tune(solver, TRAIN[:1])
    expected = tune(solver, TRAIN[1:2], head=before.head, state=before.head_state)
    result = hypergradient(
        PROBLEM,
        PROBLEM.pretrained,
        PROBLEM.meta,
        before.head,
        pretrain_batch=classification(100, 12),
        train_batches=TRAIN[1:2],
        validation_batch=VALIDATION,
        inverse=Neumann(1, 0.1),
        finetuning=solver,
        head_state=before.head_state,
    )
    torch.testing.assert_close(result.head, expected.head, rtol=0.0, atol=0.0)
    torch.testing.assert_close(result.head_state, expected.head_state, rtol=0.0, atol=0.0)
    assert int(result.head_state["step"]) == 2


def test_adam_and_features_that_are_all_zero_give_no_nan() -> None:
    class Dead(Classifier):
        def encode(self, encoder: Params, batch: Batch) -> Tensor:
            return torch.relu(super().encode(encoder, batch) - 10)

    problem = Dead()
    result = Unroll(2, Adam(lr=0.1))(problem, ENCODER, {}, problem.head, None, TRAIN[:2], VALIDATION)
    assert all(value.isfinite().all() for value in result.encoder_gradient.values())


@pytest.mark.parametrize("given", [0, 1, 3])
def test_not_one_minibatch_a_step_is_refused_in_words(given: int) -> None:
    with pytest.raises(ValueError, match=f"{given} FT training minibatches for 2 unrolled steps; give one per step"):
        tune(Unroll(2, SGD(lr=0.1)), TRAIN[:given])


def test_a_negative_number_of_steps_is_refused_with_what_is_legal() -> None:
    with pytest.raises(ValueError, match="legal: 0 or more"):
        Unroll(steps=-1)


# Both stages side by side: the IFT of PT forgets where PT started, unrolled FT keeps what it started from.


def quadratic(start: Pretrained, pretrain_steps: int, solver: FineTuning, train: list[Batch]) -> Params:
    problem = Quadratic()
    ended = trained(problem, start, problem.meta, [None] * pretrain_steps, lr=0.5)
    return hypergradient(
        problem,
        ended,
        problem.meta,
        problem.head,
        pretrain_batch=None,
        train_batches=train,
        validation_batch=problem.batches(1, seed=50)[0],
        inverse=Dense(),
        finetuning=solver,
    ).gradient


def test_after_pretraining_the_hypergradient_does_not_depend_on_pretrainings_initial_weights() -> None:
    starts = [Pretrained({"map": draw(seed, 3, 2)}, {"bias": draw(seed + 1, 2)}) for seed in (60, 70)]
    train = Quadratic().batches(2)
    after = [quadratic(start, 200, Unroll(2, SGD(lr=0.2)), train) for start in starts]
    torch.testing.assert_close(after[0], after[1], rtol=1e-9, atol=1e-9)
    before = [quadratic(start, 0, Unroll(2, SGD(lr=0.2)), train) for start in starts]
    assert any((before[0][name] - before[1][name]).abs().max() > 1e-2 for name in before[0])


def test_at_pretrainings_minimum_the_true_function_does_not_depend_on_the_initial_weights_either() -> None:
    problem = Quadratic()
    start = {"map": draw(60, 3, 2), "bias": draw(61, 2)}

    def loss(weights: Params) -> Tensor:
        ended = trained(
            problem, Pretrained({"map": weights["map"]}, {"bias": weights["bias"]}), problem.meta, [None] * 200, lr=0.5
        )
        validation = problem.batches(1, seed=50)[0]
        reference = lambda p: torch.optim.SGD(p, lr=0.2)  # noqa: E731
        return finetuned_loss(problem, ended, problem.head, problem.batches(2), validation, reference, False)

    slope = central_difference(loss, start)
    torch.testing.assert_close(
        slope, {name: torch.zeros_like(value) for name, value in start.items()}, rtol=0.0, atol=1e-9
    )


@pytest.mark.parametrize("network", [False, True])
def test_the_unrolled_leg_carries_the_dependence_on_the_weights_that_fine_tuning_starts_from(network: bool) -> None:
    # Were FT run to convergence on encoder and head, this would be zero; after K steps it is not.
    result = tune(Unroll(3, SGD(lr=0.1), network), TRAIN[:3])
    assert max(float(value.abs().max()) for value in result.encoder_gradient.values()) > 1e-2


def test_fine_tuning_of_the_whole_network_to_convergence_forgets_what_it_started_from() -> None:
    # FT on a strictly convex loss in encoder and head: features = encoder, so the minimum does not depend on the start.
    class Convex:
        def encode(self, encoder: Params, batch: Any) -> Tensor:
            return encoder["w"]

        def head_loss(self, head: Params, features: Tensor, batch: Any) -> Tensor:
            return (features - 1).square().sum() + (head["v"] - features).square().sum()

    encoder, head = {"w": draw(0, 3)}, {"v": draw(1, 3)}
    sizes = []
    for steps in (0, 5, 100):
        solver = Unroll(steps, SGD(lr=0.2), network=True)
        gradient = solver(Convex(), encoder, {}, head, None, [None] * steps, None).encoder_gradient  # type: ignore[arg-type]
        sizes.append(float(gradient["w"].norm()))
    assert sizes[0] > sizes[1] > 1e-4
    assert sizes[2] < 1e-8
