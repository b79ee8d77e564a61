"""The differentiable optimisers are torch's, and can be differentiated through, zero gradients included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import SGD, Adam

from .problems import DTYPE, draw

both = pytest.mark.parametrize(
    ("optimizer", "reference"),
    [
        (SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (SGD(lr=0.05, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
        (Adam(lr=0.03), lambda p: torch.optim.Adam(p, lr=0.03)),
        (Adam(0.1, (0.5, 0.9), 1e-2), lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.5, 0.9), eps=1e-2)),
    ],
    ids=["sgd", "momentum", "adam", "adam-2"],
)


def slopes(params: dict[str, Tensor], create_graph: bool = False) -> dict[str, Tensor]:
    """The gradient of a loss that is not convex, and of different scale in each parameter."""
    a, b = params["a"], params["b"]
    loss = (1 + a.square()).log().sum() + (a.sum() * b).sin().sum() / 2 + 3 * b.square().sum()
    return dict(zip("ab", torch.autograd.grad(loss, [a, b], create_graph=create_graph), strict=True))


@both
def test_steps_are_those_of_torch_optim_and_change_no_argument(optimizer: Any, reference: Any) -> None:
    ours = {"a": draw(0, 3, 2), "b": draw(1, 4)}
    theirs = {name: value.clone().requires_grad_() for name, value in ours.items()}
    stepper, state = reference(list(theirs.values())), optimizer.init(ours)
    for _ in range(40):
        gradients = slopes({name: value.detach().requires_grad_() for name, value in ours.items()})
        given = [value for part in (ours, gradients, state) for value in part.values()]
        before = [value.clone() for value in given]
        ours, state = optimizer.step(ours, gradients, state)
        assert all(map(torch.equal, given, before))
        for name, slope in slopes(theirs).items():
            theirs[name].grad = slope
        stepper.step()
        torch.testing.assert_close(
            ours, {name: value.detach() for name, value in theirs.items()}, rtol=1e-11, atol=1e-13
        )


@both
def test_three_steps_have_right_first_and_second_derivatives(optimizer: Any, reference: Any) -> None:
    def after_three_steps(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        params = {"a": a, "b": b}
        state = optimizer.init(params)
        for _ in range(3):
            params, state = optimizer.step(params, slopes(params, create_graph=True), state)
        return tuple(params.values())

    start = draw(0, 2).requires_grad_(), draw(1, 2).requires_grad_()
    assert torch.autograd.gradcheck(after_three_steps, start)
    assert torch.autograd.gradgradcheck(after_three_steps, start, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("steps", [1, 4])
def test_adam_with_a_gradient_of_zero_has_finite_derivatives_and_moves_nothing_there(steps: int) -> None:
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
    assert params["w"][1] == start[1]
    assert first.isfinite().all()
    assert second.isfinite().all()
    assert first[1] == 2 * start[1]


@pytest.mark.parametrize("exponent", [5, 10, 19, 22, 30, 40])
def test_adam_in_float32_has_a_finite_derivative_however_small_the_gradient(exponent: int) -> None:
    gradient = torch.tensor([10.0**-exponent], requires_grad=True)
    params, optimizer = {"w": torch.ones(1)}, Adam(lr=1e-3)
    after, _ = optimizer.step(params, {"w": gradient}, optimizer.init(params))
    (derivative,) = torch.autograd.grad(after["w"].sum(), gradient)
    assert derivative.isfinite().all()


@pytest.mark.parametrize(
    ("kind", "settings", "legal"),
    [
        (SGD, {"lr": 0.0}, "positive"),
        (SGD, {"lr": float("nan")}, "positive"),
        (SGD, {"lr": float("inf")}, "positive"),
        (SGD, {"lr": 0.1, "momentum": 1.0}, "from 0 up to"),
        (SGD, {"lr": 0.1, "momentum": -0.1}, "from 0 up to"),
        (Adam, {"lr": -1.0}, "positive"),
        (Adam, {"lr": 0.1, "betas": (0.9, 1.0)}, "from 0 up to"),
        (Adam, {"lr": 0.1, "betas": (0.9,)}, "two numbers"),
        (Adam, {"lr": 0.1, "eps": 0.0}, "positive"),
    ],
)
def test_an_illegal_setting_is_refused_with_what_is_legal(kind: Any, settings: dict[str, Any], legal: str) -> None:
    with pytest.raises(ValueError, match=f"legal: .*{legal}"):
        kind(**settings)
