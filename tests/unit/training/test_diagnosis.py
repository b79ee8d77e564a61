"""The verdict at the end of a run: each of the appendix's symptoms is seen, and none where there is none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from metapt.errors import TrainingError
from metapt.hypergrad import Diagnostics, Identity, Status, Unroll
from metapt.training.diagnosis import Diagnosis, Trace, Verdict
from metapt.training.optimizers import OptimizerSpec

from .problems import DTYPE, Line, Streams, loop_of

TARGET, NOISE = 3.0, 0.3


def ran(
    meta_lr: float = 0.1,
    iterations: int = 60,
    warmup: int = 0,
    optimizer: str = "SGD",
    problem: Line | None = None,
    start: float = 1.0,
    targets: dict[int, float] | None = None,
    max_skipped: int = 1000,
    **optimizer_settings: Any,
) -> Diagnosis:
    """phi <- phi - meta_lr (phi - target) with noisy minibatches."""

    def batch(name: str, count: int, generator: torch.Generator) -> Tensor:
        noise = NOISE * torch.randn((), generator=generator, dtype=DTYPE)
        return noise + ((targets or {}).get(count, TARGET) if name == "validation" else 0.0)

    pretrain, meta = OptimizerSpec("SGD", {"lr": 1.0}), OptimizerSpec(optimizer, {"lr": meta_lr, **optimizer_settings})
    how = {"inverse": Identity(), "finetuning": Unroll(0), "pretrain_optimizer": pretrain, "meta_optimizer": meta}
    problem = problem or Line()
    problem.meta, problem.head = {"phi": torch.tensor([start], dtype=DTYPE)}, {}
    return loop_of(problem, Streams(batch), iterations=iterations, warmup=warmup, max_skipped=max_skipped, **how).run()


def test_too_many_exploding_hypergradients_in_a_row_stop_the_run_with_advice() -> None:
    nearly = dict.fromkeys((12, 13, 15, 16), -1e9)
    ran(targets=nearly, max_skipped=3)
    words = "3 hypergradients in a row .* at iteration 17, was exploding .*changing wildly: lower the learning rate of"
    with pytest.raises(TrainingError, match=words):
        ran(targets=nearly | {17: -1e9}, max_skipped=3)


class Deaf(Line):
    """FT does not see the encoder at all."""

    def encode(self, encoder: dict[str, Tensor], batch: Tensor) -> Tensor:
        return 0 * encoder["w"][0]


def saturating(phi: Tensor) -> Tensor:
    return 2.5 * torch.sigmoid(phi)  # the target is out of reach


EXPLODING, NO_NUMBER = ({"targets": dict.fromkeys(range(20, 55, 3), value)} for value in (1e9, math.nan))
DECAYING = {"problem": Deaf(), "optimizer": "AdamW", "weight_decay": 0.5}
FIGURES = ("moved", "swing", "straight", "rise", "hypergradient", "fade", "skipped")
VERDICTS: dict[str, tuple[dict[str, Any], Verdict]] = {
    "phi comes to its target and jitters about it": ({}, Verdict.WELL),
    "phi is there from the start": ({"start": TARGET, "meta_lr": 0.01}, Verdict.WELL),
    "a long warm-up": ({"warmup": 40}, Verdict.WELL),
    "twenty iterations": ({"iterations": 20}, Verdict.WELL),
    "nineteen meta-updates": ({"iterations": 20, "warmup": 1}, Verdict.SHORT),
    "a short run's count of zeros": ({"iterations": 2, "problem": Deaf()}, Verdict.ZERO),
    "a short run's count of NaN": ({"iterations": 2, "targets": {1: math.nan}}, Verdict.NOT_FINITE),
    "phi is not finite": ({"iterations": 1, "meta_lr": 1e308, "start": 1e3}, Verdict.LOST),
    "Adam, on its way": ({"meta_lr": 0.03, "optimizer": "Adam"}, Verdict.WELL),
    "phi flips to and fro at each update": ({"meta_lr": 2.0}, Verdict.OSCILLATING),
    "phi swings slowly with momentum": ({"meta_lr": 0.5, "momentum": 0.99}, Verdict.OSCILLATING),
    "explosions": (EXPLODING, Verdict.OSCILLATING),
    "PT's learning rate is too large": ({"problem": Line(stiffness=2.1)}, Verdict.UNSTABLE),
    "NaN": (NO_NUMBER, Verdict.NOT_FINITE),
    "a tiny learning rate": ({"meta_lr": 1e-7}, Verdict.NOT_MOVING),
    "a hypergradient of 0": ({"problem": Deaf()}, Verdict.ZERO),
    "a hypergradient of 0, and only weight decay moves phi": (DECAYING, Verdict.ZERO),
    "phi saturates": ({"problem": Line(saturating), "meta_lr": 1.0, "optimizer": "Adam"}, Verdict.FADED),
}


@pytest.mark.parametrize(("given", "verdict"), VERDICTS.values(), ids=VERDICTS)
def test_the_verdict_names_the_symptom(given: dict[str, Any], verdict: Verdict) -> None:
    diagnosis = ran(**given)
    assert diagnosis.verdict is verdict, str(diagnosis)
    assert all(f"{name} " in str(diagnosis) for name in FIGURES)
    if not given:
        start = "Diagnosis: all well. Of 60 hypergradients: 60 times solved as asked. Figures: moved 2."
        assert str(diagnosis).startswith(start)


@pytest.mark.parametrize(
    ("meta_lr", "iterations", "stiffness"), [(0.1, 1, 0.5), (1e-7, 19, 0.5), (0.1, 19, 2.1), (2.05, 19, 0.5)]
)
def test_a_short_run_is_called_short_and_no_figure_of_it_alarms(
    meta_lr: float, iterations: int, stiffness: float
) -> None:
    diagnosis = ran(meta_lr, iterations, problem=Line(stiffness=stiffness))
    assert diagnosis.verdict is Verdict.SHORT
    assert not diagnosis.alarming
    assert "too short to tell" in str(diagnosis)
    assert all(f"{name} unknown" in str(diagnosis) for name in ("swing", "straight", "rise", "fade"))
    assert not re.search(r"\b(inf|nan)\b", str(diagnosis))


@pytest.mark.parametrize(
    ("norm", "verdict"),
    [(lambda i: i % 3 == 0, Verdict.ZERO), (lambda i: i < 15, Verdict.FADED), (lambda i: i % 3 > 0, Verdict.WELL)],
    ids=["most are 0", "0 at the end", "some are 0"],
)
def test_hypergradients_of_0_in_between_and_at_the_end(norm: Callable[[int], bool], verdict: Verdict) -> None:
    assert diagnosed(range(1, 42), [1.0] * 40, [1.0 * norm(i) for i in range(40)]).verdict is verdict


def traced(*given: Any, **named: Any) -> dict[str, float]:
    return diagnosed(*given, **named).figures


def diagnosed(
    phis: Iterable[Any] = (), losses: Iterable[float] = (), norms: Iterable[float] | None = None
) -> Diagnosis:
    way = [torch.as_tensor(phi, dtype=DTYPE).reshape(-1) for phi in phis] or [torch.ones(1, dtype=DTYPE)]
    trace = Trace({"phi": way[0]}, len(way) - 1)
    for phi, norm in zip(way[1:], norms or [1.0] * (len(way) - 1), strict=True):
        trace.record_update(norm, {"phi": phi})
    for loss in losses:
        trace.record_loss(torch.tensor(loss))
    return trace.diagnosis({"not finite": 0, "exploding": 0})


def test_the_figures_of_phis_way_are_what_they_say() -> None:
    figures = traced([2, *[4, 6] * 5, *[5, 7] * 5])  # twenty updates, of which the last ten are late
    assert figures["moved"] == 5 / 2
    late = torch.tensor([5.0, 7.0] * 5)
    assert figures["swing"] == pytest.approx(float(late.std(correction=0) / (late.mean() - 2)))
    assert figures["straight"] == pytest.approx((7 - 6) / (1 + 9 * 2))
    assert traced(range(1, 50))["straight"] == traced([1.0] * 80 + [9.0] * 20)["straight"] == 1
    assert traced(range(1, 22), norms=[1] * 5 + [4] * 5 + [2] * 5 + [0.1] * 5)["fade"] == pytest.approx(0.1 / 4)
    jitter = 1e6 + 1e-3 * torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=DTYPE)
    assert traced(jitter)["moved"] < 1e-8
    assert traced(jitter)["swing"] == pytest.approx(float(jitter[501:].std()) / 1e5, rel=1e-3)


RANDOM = torch.Generator().manual_seed(1)
RISES: dict[str, tuple[list[float], float, float]] = {
    "a falling loss": ([1 - 0.01 * i for i in range(90)], 0, 0),
    "a constant loss": ([3.0] * 40, 0, 0),
    "a loss of next to nothing": ([1e-8 * (1 + i % 5) for i in range(40)], -0.01, 0.3),
    "a negative loss": ([-1 - 0.1 * i for i in range(40)], 0, 0),
    "half of the fall is lost": ([2.0, *torch.linspace(2, 1, 30).tolist(), *[1.5] * 10], 0.3, 0.6),
    "a loss that only grows": ([1.05**i for i in range(100)], 3, math.inf),
    "rounding": ([*[1.0] * 30, *[1 + 1e-7] * 10], 0, 0.3),
    "a rise from a constant": ([*[1.0] * 30, *[1.1] * 10], 1, 1e9),
    "a loss that is large from the second step": ([1.0, *(1e4 * (2 + i % 3) for i in range(40))], 1e4, 4e4),
    "a loss that is no number": ([1.0, 1.0, math.nan, 1.0], math.inf, math.inf),
    "noise": ((1 + torch.randn(400, generator=RANDOM)).tolist(), 0, 0.3),
}


@pytest.mark.parametrize(("losses", "low", "high"), RISES.values(), ids=RISES)
def test_rise_is_the_share_of_the_fall_that_is_lost_again(losses: list[float], low: float, high: float) -> None:
    assert low <= traced(losses=losses)["rise"] <= high


@pytest.mark.parametrize("count", [20, 120])
def test_noise_seldom_passes_for_a_rise_and_divergence_is_seen(count: int) -> None:
    random = torch.Generator().manual_seed(count)
    noise = torch.randn(60, count, generator=random)
    growth = 5 ** (torch.arange(count) / count) * (1 + 0.1 * noise)
    assert sum(traced(losses=row.tolist())["rise"] > 0.5 for row in noise) <= 4
    assert sum(traced(losses=row.tolist())["rise"] > 0.5 for row in growth) >= 57


def solved(count: int, norm: float, statuses: Callable[[int], dict[str, Status]], move: float) -> Trace:
    """Return the trace of so many hypergradients with statuses of their inverse and of FT."""
    trace = Trace({"phi": torch.ones(1)}, count)
    for number in range(count):
        known = {"solve_status": Status.OK, "fit_status": Status.OK} | statuses(number)
        trace.record_hypergradient(cast(Diagnostics, SimpleNamespace(**known)))
        trace.record_update(norm, {"phi": torch.full((1,), 1 + move * (number + 1))})
        trace.record_loss(torch.ones(()))
    return trace


@pytest.mark.parametrize("part", ["solve_status", "fit_status"])
@pytest.mark.parametrize("status", [Status.MAX_STEPS, Status.INDEFINITE, Status.SINGULAR])
def test_solves_short_of_what_was_asked_are_not_well_if_they_are_more_than_a_tenth(part: str, status: Status) -> None:
    for failed, expected in {10: Verdict.WELL, 11: Verdict.UNSOLVED, 100: Verdict.UNSOLVED}.items():
        diagnosis = solved(100, 1.0, lambda i, n=failed: {part: status} if i < n else {}, 1.0).diagnosis({})
        assert diagnosis.verdict is expected
        assert f"Of 100 hypergradients: {failed} times " in str(diagnosis) or f"; {failed} times FT " in str(diagnosis)


@pytest.mark.parametrize("head", [Status.OK, Status.MAX_STEPS])
def test_statuses_of_the_head_do_not_hide_an_inverse_that_diverges(head: Status) -> None:
    trace = solved(20, math.inf, lambda number: {"solve_status": Status.DIVERGED, "fit_status": head}, 0.0)
    for _ in range(20):
        trace.record_skipped_head_step()
    assert trace.diagnosis({"not finite": 20}).verdict is Verdict.DIVERGING


def test_a_trace_keeps_a_constant_amount_of_phi_and_few_elements_of_a_large_one() -> None:
    trace = Trace({"phi": torch.ones(100_001)}, 10)
    for _ in range(10):
        trace.record_update(1.0, {"phi": torch.ones(100_001)})
    assert sum(value.numel() for value in trace.state_dict().values() if isinstance(value, Tensor)) < 5 * 1000
