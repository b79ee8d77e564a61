"""Convolutions on pairs of columns are torch's, with their derivatives, and are taken for narrow rows only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.hypergrad.layers import pairs
from metapt.hypergrad.layers.convolution import convolution
from metapt.hypergrad.layers.pairs import Adjoints, Pair

from .problems import draw

ROWS = [
    pytest.param(15, 1, 7, 12, id="kernel 15, stride 1"),
    pytest.param(15, 2, 7, 16, id="kernel 15, stride 2"),
    pytest.param(9, 1, 4, 6, id="kernel 9"),
    pytest.param(10, 2, 4, 8, id="even kernel"),
    pytest.param(13, 3, 6, 18, id="stride 3"),
]


def channels_last(values: Tensor) -> Tensor:
    return values.contiguous(memory_format=torch.channels_last)


def plain(x: Tensor, w: Tensor, stride: Pair, padding: Pair, b: Tensor | None = None) -> Tensor:
    return F.conv2d(x, w, b, stride, padding)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Adjoints | None]:
    """Take pairs wherever they are possible; return the passes that took them."""
    passes: list[Adjoints | None] = []

    def faster(x: Tensor, w: Tensor, stride: Pair, padding: Pair, adjoints: Adjoints | None = None) -> bool:
        if pairs.possible(x, w, stride, padding):
            passes.append(adjoints)
            return True
        return False

    monkeypatch.setattr(pairs, "faster", faster)
    return passes


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layout", [channels_last, lambda values: values])
@pytest.mark.parametrize(("kernel", "step", "padding", "columns"), ROWS)
def test_pairs_are_torchs_convolution_with_its_first_and_second_derivatives(
    taken: list[Adjoints | None],
    kernel: int,
    step: int,
    padding: int,
    columns: int,
    layout: Callable[[Tensor], Tensor],
    bias: bool,
) -> None:
    results = []
    for function in (convolution, plain):
        x, w = layout(draw(1, 3, 4, 1, columns)), layout(draw(2, 5, 4, 1, kernel))
        wrt = [x.requires_grad_(), w.requires_grad_(), *([draw(3, 5).requires_grad_()] if bias else [])]
        y = function(x, w, (1, step), (0, padding), wrt[2] if bias else None)
        first = torch.autograd.grad(y.pow(3).sum(), wrt, create_graph=True)
        second = torch.autograd.grad(first, wrt, [draw(10 + i, *value.shape) for i, value in enumerate(wrt)])
        results.append([y, *first, *second])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    assert set(taken) == {None, Adjoints(True, False), Adjoints(False, True)}


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "shape"),
    [
        ((1, 15), (1, 1), (0, 7), (2, 4, 1, 13)),
        ((1, 15), (1, 2), (0, 7), (2, 4, 1, 14)),
        ((1, 15), (1, 1), (0, 6), (2, 4, 1, 16)),
        ((1, 3), (1, 1), (0, 1), (2, 4, 1, 16)),
        ((1, 1), (1, 2), (0, 0), (2, 4, 1, 16)),
        ((1, 15), (1, 1), (0, 7), (2, 4, 2, 16)),
        ((3, 15), (1, 1), (1, 7), (2, 4, 1, 16)),
    ],
    ids=[
        "odd columns",
        "odd outputs",
        "fewer outputs than inputs",
        "mostly zeros",
        "one column",
        "two rows",
        "high kernel",
    ],
)
def test_other_convolutions_are_left_alone(
    taken: list[Adjoints | None], kernel: Pair, stride: Pair, padding: Pair, shape: tuple[int, ...]
) -> None:
    x, w = draw(1, *shape), draw(2, 5, 4, *kernel)
    torch.testing.assert_close(convolution(x, w, stride, padding), plain(x, w, stride, padding))
    assert not taken


@pytest.mark.parametrize(
    ("inputs", "outputs", "passes"),
    [
        (8, 8, (True, True, True)),
        (8, 16, (False, True, True)),
        (32, 64, (False, False, True)),
        (64, 64, (False, False, False)),
    ],
)
def test_pairs_are_taken_where_a_pass_is_narrow(
    monkeypatch: pytest.MonkeyPatch, inputs: int, outputs: int, passes: tuple[bool, ...]
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    x, w = torch.zeros(1, inputs, 1, 16), torch.zeros(outputs, inputs, 1, 15)
    kinds = (None, Adjoints(True, False), Adjoints(False, True))
    assert tuple(pairs.faster(x, w, (1, 1), (0, 7), kind) for kind in kinds) == passes
    assert not any(pairs.faster(x.double(), w.double(), (1, 1), (0, 7), kind) for kind in kinds)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not any(pairs.faster(x, w, (1, 1), (0, 7), kind) for kind in kinds)


def test_float32_is_as_exact_as_torchs(taken: list[Adjoints | None]) -> None:
    x, w = channels_last(draw(1, 8, 8, 1, 100)), draw(2, 8, 8, 1, 15)
    dy = channels_last(draw(3, 8, 8, 1, 100))
    errors = []
    for function in (convolution, plain):
        results = []
        for kind in (torch.float32, torch.float64):
            left, right = (value.detach().to(kind).requires_grad_() for value in (x, w))
            y = (function if kind is torch.float32 else plain)(left, right, (1, 1), (0, 7))
            results.append([y.detach(), *torch.autograd.grad(y, [left, right], dy.to(kind))])
        errors.append([float((a - b).norm() / b.norm()) for a, b in zip(*results, strict=True)])
    assert taken
    assert all(ours <= 2 * theirs + 1e-7 for ours, theirs in zip(*errors, strict=True)), errors
