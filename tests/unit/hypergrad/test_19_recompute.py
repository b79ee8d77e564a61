"""A part that is computed anew for each derivative has the same derivatives and holds less memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.hypergrad.layers.convolution import convolution
from metapt.hypergrad.layers.passes import unread
from metapt.hypergrad.layers.recompute import recomputed

from .problems import draw


def part(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.softplus(convolution(x, w, (1, 1), (0, 1))).mul(b).sum(1, keepdim=True).tanh()


def inputs() -> list[Tensor]:
    return [value.requires_grad_() for value in (draw(1, 4, 3, 1, 8), draw(2, 5, 3, 1, 3), draw(3, 1, 5, 1, 1))]


def ours(*tensors: Tensor) -> Tensor:
    return recomputed(part, part, *tensors)


@pytest.mark.parametrize("wrt", [(0, 1, 2), (1, 2), (0,), (2,)])
def test_first_and_second_derivatives_are_those_of_the_part(wrt: tuple[int, ...]) -> None:
    results = []
    for function in (ours, part):
        tensors = inputs()
        chosen = [tensors[index] for index in wrt]
        loss = function(*tensors).pow(3).sum()
        first = torch.autograd.grad(loss, chosen, create_graph=True)
        vectors = [draw(10 + i, *value.shape) for i, value in enumerate(first)]
        second = torch.autograd.grad(first, tensors, vectors, retain_graph=True)
        some = torch.autograd.grad(first, tensors[1:2], vectors, retain_graph=True)
        results.append([loss, *first, *second, *some, *torch.autograd.grad(first[0], tensors[:1], vectors[0])])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def test_derivatives_are_those_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(ours, inputs())
    assert torch.autograd.gradgradcheck(ours, inputs())


def test_constants_have_no_derivative() -> None:
    x, w, b = inputs()
    first = torch.autograd.grad(ours(x.detach(), w, b.detach()).sum(), w, create_graph=True)[0]
    torch.testing.assert_close(first, torch.autograd.grad(part(x, w, b).sum(), w)[0])
    assert torch.autograd.grad(first.sum(), w)[0].norm() > 0


def test_a_gradient_that_is_not_read_is_not_computed_and_its_derivatives_are_right() -> None:
    tensors = inputs()
    loss = ours(*tensors).pow(3).sum()
    expected = torch.autograd.grad(loss, tensors, create_graph=True)
    with unread(loss, tensors[1:]):
        first = torch.autograd.grad(loss, tensors, create_graph=True)
    assert first[1].isnan().all()
    torch.testing.assert_close(first[0], expected[0])
    vectors = [draw(20 + i, *value.shape) for i, value in enumerate(tensors)]
    torch.testing.assert_close(
        *(torch.autograd.grad(value, tensors, vectors, retain_graph=True) for value in (first, expected))
    )


def test_only_the_first_call_updates_anything() -> None:
    calls = []

    def first(x: Tensor) -> Tensor:
        calls.append("first")
        return x.sin()

    def again(x: Tensor) -> Tensor:
        calls.append("again")
        return x.sin()

    x = draw(1, 4).requires_grad_()
    gradient = torch.autograd.grad(recomputed(first, again, x).sum(), x, create_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(gradient.sum(), x)[0], -x.sin())
    assert calls == ["first", "again", "again", "again"] or calls == ["first", "again", "again"]


def test_it_computes_again_in_the_precision_of_autocast() -> None:
    x, w, b = (value.detach().float().requires_grad_() for value in inputs())
    results = []
    for function in (ours, part):
        with torch.autocast("cpu", torch.bfloat16):
            y = function(x, w, b)
        results.append(torch.autograd.grad(y.float().sum(), [x, w, b]))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_third_derivative_is_an_error() -> None:
    x, w, b = inputs()
    first = torch.autograd.grad(ours(x, w, b).sum(), w, create_graph=True)[0]
    second = torch.autograd.grad(first.pow(2).sum(), w, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="third derivative"):
        torch.autograd.grad(second.sum(), b)


def test_saved_tensors_are_those_at_the_border_of_the_part() -> None:
    def bytes_held(function: object) -> int:
        held: dict[int, int] = {}

        def pack(value: Tensor) -> Tensor:
            held[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
            return value

        tensors = inputs()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            loss = function(*tensors).sum()  # type: ignore[operator]
            torch.autograd.grad(loss, tensors, create_graph=True)
        return sum(held.values())

    assert bytes_held(ours) < 0.7 * bytes_held(part)
