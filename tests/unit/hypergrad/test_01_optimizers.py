"""The differentiable optimisers are torch's, and can be differentiated through, zero gradients included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import SGD, Adam

from .problems import DTYPE, draw

PAIRS = [
    pytest.param(SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1), id="sgd"),
    pytest.param(SGD(lr=0.05, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), id="momentum"),
    pytest.param(Adam(lr=0.03), lambda p: torch.optim.Adam(p, lr=0.03), id="adam"),
    pytest.param(
        Adam(lr=0.1, betas=(0.5, 0.9), eps=1e-2),
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.5, 0.9), eps=1e-2),
        id="adam-2",
    ),
]


def loss(params: dict[str, Tensor]) -> Tensor:
    """Not convex, and of different scale in each parameter."""
    a, b = params["a"], params["b"]
    return (1 + a.square()).log().sum() + (a.sum() * b).sin().sum() / 2 + 3 * b.square().sum()


@pytest.mark.parametrize(("optimizer", "reference"), PAIRS)
def test_a_hundred_steps_are_those_of_torch_optim(optimizer: Any, reference: Any) -> None:
    ours = {"a": draw(0, 3, 2), "b": draw(1, 4)}
    theirs = {name: value.clone().requires_grad_() for name, value in ours.items()}
    stepper, state = reference(list(theirs.values())), optimizer.init(ours)
    for _ in range(100):
        leaves = {name: value.detach().requires_grad_() for name, value in ours.items()}
        gradients = dict(zip(leaves, torch.autograd.grad(loss(leaves), list(leaves.values())), strict=True))
        ours, state = optimizer.step(ours, gradients, state)
        stepper.zero_grad()
        loss(theirs).backward()
        stepper.step()
        torch.testing.assert_close(
            ours, {name: value.detach() for name, value in theirs.items()}, rtol=1e-11, atol=1e-13
        )


@pytest.mark.parametrize(("optimizer", "reference"), PAIRS)
def test_three_steps_have_right_first_and_second_derivatives(optimizer: Any, reference: Any) -> None:
    def after_three_steps(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        params = {"a": a, "b": b}
        state = optimizer.init(params)
        for _ in range(3):
            gradients = dict(
                zip(params, torch.autograd.grad(loss(params), list(params.values()), create_graph=True), strict=True)
            )
            params, state = optimizer.step(params, gradients, state)
        return tuple(params.values())

    start = draw(0, 2, 2).requires_grad_(), draw(1, 2).requires_grad_()
    assert torch.autograd.gradcheck(after_three_steps, start)
    assert torch.autograd.gradgradcheck(after_three_steps, start, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(("optimizer", "reference"), PAIRS)
def test_a_step_changes_neither_parameters_nor_gradients_nor_state(optimizer: Any, reference: Any) -> None:
    params, gradients = {"a": draw(0, 3)}, {"a": draw(1, 3)}
    _, state = optimizer.step(params, gradients, optimizer.init(params))
    before = [{name: value.clone() for name, value in part.items()} for part in (params, gradients, state)]
    optimizer.step(params, gradients, state)
    for part, copy in zip((params, gradients, state), before, strict=True):
        assert all(torch.equal(part[name], copy[name]) for name in copy)


@pytest.mark.parametrize("steps", [1, 4])
def test_adam_with_a_gradient_of_zero_has_finite_first_and_second_derivatives(steps: int) -> None:
    # The second coordinate has no gradient: its second moment, whose root has an infinite derivative there, stays 0.
    start = draw(0, 3).requires_grad_()
    alive = torch.tensor([1.0, 0.0, 1.0], dtype=DTYPE)
    params, optimizer = {"w": start}, Adam(lr=0.1)
    state = optimizer.init(params)
    for _ in range(steps):
        (gradient,) = torch.autograd.grad((alive * params["w"]).pow(4).sum(), params["w"], create_graph=True)
        params, state = optimizer.step(params, {"w": gradient}, state)
    (first,) = torch.autograd.grad(params["w"].square().sum(), start, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), start)
    assert first.isfinite().all()
    assert second.isfinite().all()
    assert first[1] == 2 * start[1]


def test_adam_moves_no_parameter_that_never_had_a_gradient() -> None:
    params, optimizer = {"w": draw(0, 3)}, Adam(lr=0.1)
    after, _ = optimizer.step(params, {"w": torch.zeros(3, dtype=DTYPE)}, optimizer.init(params))
    assert torch.equal(after["w"], params["w"])


@pytest.mark.parametrize("exponent", [5, 10, 19, 22, 30, 40])
def test_adam_in_float32_has_a_finite_derivative_however_small_the_gradient(exponent: int) -> None:
    gradient = torch.tensor([10.0**-exponent], requires_grad=True)
    params, optimizer = {"w": torch.ones(1)}, Adam(lr=1e-3)
    after, _ = optimizer.step(params, {"w": gradient}, optimizer.init(params))
    (derivative,) = torch.autograd.grad(after["w"].sum(), gradient)
    assert derivative.isfinite().all()


@pytest.mark.parametrize(
    ("make", "legal"),
    [
        (lambda: SGD(lr=0.0), "positive"),
        (lambda: SGD(lr=float("nan")), "positive"),
        (lambda: SGD(lr=float("inf")), "positive"),
        (lambda: SGD(lr=0.1, momentum=1.0), "from 0 up to"),
        (lambda: SGD(lr=0.1, momentum=-0.1), "from 0 up to"),
        (lambda: Adam(lr=-1.0), "positive"),
        (lambda: Adam(lr=0.1, betas=(0.9, 1.0)), "from 0 up to"),
        (lambda: Adam(lr=0.1, betas=(0.9,)), "two numbers"),  # type: ignore[arg-type]
        (lambda: Adam(lr=0.1, eps=0.0), "positive"),
    ],
)
def test_an_illegal_setting_is_refused_with_what_is_legal(make: Any, legal: str) -> None:
    with pytest.raises(ValueError, match=f"legal: .*{legal}"):
        make()
