"""The counted limit of the benchmarks counts the arithmetic of a step and finds a rate that the step can't exceed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from metapt.hypergrad.layers import pairs
from metapt.hypergrad.layers.convolution import convolution


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    sys.modules.pop("limit", None)
    return __import__("limit")


def test_products_and_convolutions_are_counted_in_all_passes(limit: ModuleType) -> None:
    x = torch.randn(4, 8, 1, 32).contiguous(memory_format=torch.channels_last).requires_grad_()
    w = torch.randn(8, 8, 1, 15).requires_grad_()
    head = torch.randn(8, 3)

    def step() -> None:
        (convolution(x, w, (1, 1), (0, 7)).mean((2, 3)) @ head).sum().backward()  # type: ignore[no-untyped-call]

    before = pairs.faster
    assert limit.flop(step) == 3 * 2 * 4 * 32 * 15 * 8 * 8 + 2 * 2 * 4 * 8 * 3
    assert pairs.faster is before


def test_the_first_call_of_a_step_is_not_counted(limit: ModuleType) -> None:
    sizes = iter([2, 3])
    assert limit.flop(lambda: torch.ones(n := next(sizes), n) @ torch.ones(n, n)) == 2 * 3**3


def test_a_step_of_adam_reads_and_writes_four_numbers_per_parameter(limit: ModuleType) -> None:
    assert limit.moved([torch.zeros(10), torch.zeros(5, 2)]) == 20 * 4 * 4 * 2


def test_the_limit_is_the_sum_of_arithmetic_and_movement(limit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    least = limit.Limit(rows=1)
    monkeypatch.setattr(least, "rate", lambda: 1e9)
    monkeypatch.setattr(least, "bandwidth", lambda: 1e8)
    assert least.seconds(2e9) == 2
    assert least.seconds(2e9, 1e8) == 3


def test_rates_are_measured_and_leave_the_setting(limit: ModuleType) -> None:
    before = torch.get_float32_matmul_precision()
    least = limit.Limit(rows=1)
    assert least.rate() > 1e8
    assert least.bandwidth() > 1e7
    assert torch.get_float32_matmul_precision() == before
