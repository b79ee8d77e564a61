"""The benchmarks show each row as soon as it is measured, and measure what they say; their counted limit holds."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from metapt.hypergrad.layers import pairs
from metapt.hypergrad.layers.convolution import convolution
from metapt.training.guard import HypergradientGuard

Import = Callable[[str], ModuleType]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Import:
    """Return the function that imports a module of the folder `benchmarks`."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))

    def load(name: str) -> ModuleType:
        for each in ("limit", "steps", "ecg", "ppi"):
            monkeypatch.delitem(sys.modules, each, raising=False)
        return importlib.import_module(name)

    return load


def arguments(**changes: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **{"rounds": 2, "threads": 1, "device": "cpu", "precision": "float32", "json": None} | changes
    )


def test_a_row_is_shown_and_kept_when_it_is_measured(
    benchmark: Import, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = benchmark("steps").Table(arguments(json=tmp_path / "rows.json"), "width")
    assert capsys.readouterr().out.splitlines()[-2] == "| width | what | median (min-max) | at most |"
    table.row(8, "a ratio", [1.0, 3.0, 2.0], "1.5", step=lambda: None)
    assert capsys.readouterr().out == "| 8 | a ratio | 2 (1-3) | 1.5 |\n"
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["values"] == [1.0, 3.0, 2.0]


def test_steps_take_turns_after_a_warm_up(benchmark: Import) -> None:
    calls: list[str] = []
    table = benchmark("steps").Table(arguments(), "width")
    times = table.in_turn(lambda: calls.append("a"), lambda: calls.append("b"))
    assert calls == ["a", "b"] * 3
    assert [len(values) for values in times] == [2, 2]


def test_on_a_gpu_a_row_of_a_step_has_more_columns(
    benchmark: Import, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = benchmark("steps")
    monkeypatch.setattr(steps, "machine_name", lambda device: "a GPU")
    monkeypatch.setattr(steps, "on_gpu", lambda step: (0.001, 0.002, 300))
    table = steps.Table(arguments(device="cuda"), "width")
    assert capsys.readouterr().out.splitlines()[-2].endswith("| at most | queued, s | GPU, s | kernels |")
    table.row(8, "a step, s", [1.0], step=lambda: None)
    table.row(8, "a ratio", [1.0], "1.5")
    assert capsys.readouterr().out == (
        "| 8 | a step, s | 1 (1-1) |  | 0.001 | 0.002 | 300 |\n| 8 | a ratio | 1 (1-1) | 1.5 |  |  |  |\n"
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; torch.cuda.is_available() is false")
def test_kernels_are_counted_and_the_gpus_time_is_its_own(benchmark: Import) -> None:
    left = torch.randn(2048, 2048, device="cuda")

    def step() -> None:
        for _ in range(5):
            left.mul(2.0)

    step()
    queued, own, kernels = benchmark("steps").on_gpu(step)
    assert kernels == 5
    assert queued > 0
    assert 1e-5 < own < 1e-2


def test_no_meta_update_on_random_ecgs_is_skipped(
    benchmark: Import, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ecg, guard = benchmark("ecg"), HypergradientGuard
    monkeypatch.setattr(ecg, "HypergradientGuard", lambda factor, most: guard(factor / 100, most))
    given = arguments(batch=8, labelled=16)
    made = ecg.make_steps(ecg.make_setting(2, given), 2, given)
    for name in 12 * ["neumann"] + 12 * ["identity"]:
        made["plain"]()
        made[name]()
    assert not [record for record in caplog.records if "is not applied" in record.getMessage()]


def test_steps_that_are_said_to_be_captured_are(benchmark: Import, recordings: Callable[[], int]) -> None:
    ecg, given = benchmark("ecg"), arguments(batch=8, labelled=16)
    made = ecg.captured(ecg.make_setting(2, given), 2, given)
    for step in [*made.values()] * 4:
        step()
    assert recordings() == len(made) == 3


@pytest.mark.parametrize("name", ["ecg", "ppi", "precision", "paired"])
def test_help_says_how_long_it_takes(benchmark: Import, name: str) -> None:
    assert " within " in benchmark(name).parser().format_help()


@pytest.fixture
def limit(benchmark: Import) -> ModuleType:
    return benchmark("limit")


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
