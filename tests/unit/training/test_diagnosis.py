"""The verdict at the end of a run: each of the appendix's symptoms is seen, and none where there is none."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from metapt.errors import TrainingError
from metapt.hypergrad import Diagnostics, Identity, Status, Unroll
from metapt.training.diagnosis import Diagnosis, Trace, Verdict, _quarters
from metapt.training.meta import MetaPretraining
from metapt.training.meta_settings import MetaSettings
from metapt.training.optimizers import OptimizerSpec

from .problems import DTYPE, Line, Streams

TARGET, NOISE = 3.0, 0.3


def ran(
    meta_lr: float = 0.1,
    iterations: int = 100,
    warmup: int = 0,
    optimizer: str = "SGD",
    problem: Line | None = None,
    start: float = 1.0,
    targets: dict[int, float] | None = None,
    **optimizer_settings: Any,
) -> Diagnosis:
    """phi <- phi - meta_lr (phi - target) with noisy minibatches."""

    def batch(name: str, count: int, generator: torch.Generator) -> Tensor:
        noise = NOISE * torch.randn((), generator=generator, dtype=DTYPE)
        return noise + ((targets or {}).get(count, TARGET) if name == "validation" else 0.0)

    settings = MetaSettings(
        iterations=iterations,
        warmup=warmup,
        inverse=Identity(),
        finetuning=Unroll(0),
        pretrain_optimizer=OptimizerSpec("SGD", {"lr": 1.0}),
        meta_optimizer=OptimizerSpec(optimizer, {"lr": meta_lr, **optimizer_settings}),
        max_skipped=iterations,
    )
    problem = problem or Line()
    meta = {"phi": torch.tensor([start], dtype=DTYPE)}
    return MetaPretraining(problem, Streams(batch), problem.pretrained, meta, {}, settings).run()


class Deaf(Line):
    """FT does not see the encoder at all."""

    def encode(self, encoder: dict[str, Tensor], batch: Tensor) -> Tensor:
        return 0 * encoder["w"][0]


def saturating(phi: Tensor) -> Tensor:
    return 2.5 * torch.sigmoid(phi)  # the target is out of reach


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        pytest.param({}, Verdict.WELL, id="phi comes to its target and jitters about it"),
        pytest.param({"start": 0.0}, Verdict.WELL, id="from 0"),
        pytest.param({"start": TARGET, "meta_lr": 0.01}, Verdict.WELL, id="phi is there from the start"),
        pytest.param({"warmup": 80}, Verdict.WELL, id="a long warm-up"),
        pytest.param({"iterations": 20}, Verdict.WELL, id="twenty iterations"),
        pytest.param({"iterations": 20, "warmup": 1}, Verdict.SHORT, id="nineteen meta-updates"),
        pytest.param({"iterations": 2, "problem": Deaf()}, Verdict.ZERO, id="a short run's count of zeros"),
        pytest.param({"iterations": 2, "targets": {1: math.nan}}, Verdict.NOT_FINITE, id="a short run's count of NaN"),
        pytest.param({"iterations": 1, "meta_lr": 1e308, "start": 1e3}, Verdict.LOST, id="phi is not finite"),
        pytest.param({"meta_lr": 0.03, "optimizer": "Adam"}, Verdict.WELL, id="Adam, on its way"),
        pytest.param({"meta_lr": 2.0}, Verdict.OSCILLATING, id="phi flips to and fro at each update"),
        pytest.param({"meta_lr": 2.05}, Verdict.OSCILLATING, id="phi flips further each time"),
        pytest.param({"meta_lr": 0.5, "momentum": 0.99}, Verdict.OSCILLATING, id="phi swings slowly with momentum"),
        pytest.param({"targets": dict.fromkeys(range(20, 90, 3), 1e9)}, Verdict.OSCILLATING, id="explosions"),
        pytest.param({"problem": Line(stiffness=2.1)}, Verdict.UNSTABLE, id="PT's learning rate is too large"),
        pytest.param({"targets": dict.fromkeys(range(20, 90, 3), math.nan)}, Verdict.NOT_FINITE, id="NaN"),
        pytest.param({"meta_lr": 1e-7}, Verdict.NOT_MOVING, id="a tiny learning rate"),
        pytest.param({"problem": Deaf()}, Verdict.ZERO, id="a hypergradient of 0"),
        pytest.param(
            {"problem": Deaf(), "optimizer": "AdamW", "weight_decay": 0.5},
            Verdict.ZERO,
            id="a hypergradient of 0, and only weight decay moves phi",
        ),
        pytest.param(
            {"problem": Line(saturating), "meta_lr": 1.0, "optimizer": "Adam"}, Verdict.FADED, id="phi saturates"
        ),
    ],
)
def test_the_verdict_names_the_symptom(given: dict[str, Any], verdict: Verdict) -> None:
    diagnosis = ran(**given)
    assert diagnosis.verdict is verdict, str(diagnosis)


@pytest.mark.parametrize("iterations", [1, 19])
@pytest.mark.parametrize("stiffness", [0.5, 2.1])
@pytest.mark.parametrize("meta_lr", [1e-7, 0.1, 2.05])
def test_a_short_run_is_called_short_and_no_figure_of_it_alarms(
    iterations: int, stiffness: float, meta_lr: float
) -> None:
    diagnosis = ran(meta_lr, iterations, problem=Line(stiffness=stiffness))
    assert diagnosis.verdict is Verdict.SHORT
    assert not diagnosis.alarming
    assert "too short to tell" in str(diagnosis)
    assert all(f"{name} unknown" in str(diagnosis) for name in ("swing", "straight", "rise", "fade"))
    assert not re.search(r"\b(inf|nan)\b", str(diagnosis))


@pytest.mark.parametrize(
    ("problem", "words"),
    [(Deaf(), "FT validation loss has derivative 0 w.r.t. the encoder"), (Line(torch.round), "w.r.t. the meta-para")],
)
def test_a_hypergradient_of_0_names_the_derivative_that_is_0(problem: Line, words: str) -> None:
    (text,) = [text for text in ran(problem=problem).statuses if text.startswith("exactly 0")]
    assert words in text
    assert "round, sign" in text


def test_hypergradients_that_are_0_in_between_are_named_and_those_that_become_0_have_faded() -> None:
    phis = range(1, 42)
    assert verdict(phis, [1.0 * (i % 3 == 0) for i in range(40)]) is Verdict.ZERO
    assert verdict(phis, [1.0 * (i < 15) for i in range(40)]) is Verdict.FADED
    assert verdict(phis, [1.0 * (i % 3 > 0) for i in range(40)]) is Verdict.WELL


def test_pretraining_that_ends_in_infinity_is_an_error() -> None:
    with pytest.raises(TrainingError, match=r"the PT loss at PT step \d+ is inf: "):
        ran(problem=Line(stiffness=1e9))


def test_the_diagnosis_reads_as_a_sentence_with_its_figures() -> None:
    text = str(ran())
    start = "Diagnosis: all well. Of 100 hypergradients: 100 times solved as asked. Figures: moved 2."
    assert text.startswith(start)
    assert all(f"{name} " in text for name in ("swing", "straight", "rise", "hypergradient", "fade", "skipped"))


def traced(
    phis: Iterable[Any] = (), losses: Iterable[float] = (), norms: Iterable[float] | None = None
) -> dict[str, float]:
    return diagnosed(phis, losses, norms).figures


def verdict(phis: Iterable[Any], norms: Iterable[float]) -> Verdict:
    return diagnosed(phis, [1.0] * 40, norms).verdict


def diagnosed(phis: Iterable[Any], losses: Iterable[float], norms: Iterable[float] | None) -> Diagnosis:
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


@pytest.mark.parametrize(
    ("losses", "low", "high"),
    [
        pytest.param([1 - 0.01 * i for i in range(90)], 0, 0, id="a falling loss"),
        pytest.param([3.0] * 40, 0, 0, id="a constant loss"),
        pytest.param([1e-8 * (1 + i % 5) for i in range(40)], -0.01, 0.3, id="a loss of next to nothing"),
        pytest.param([-1 - 0.1 * i for i in range(40)], 0, 0, id="a negative loss"),
        pytest.param([2.0, *torch.linspace(2, 1, 30).tolist(), *[1.5] * 10], 0.3, 0.6, id="half of the fall is lost"),
        pytest.param([1.05**i for i in range(100)], 3, math.inf, id="a loss that only grows"),
        pytest.param([*[1.0] * 30, *[1 + 1e-7] * 10], 0, 0.3, id="rounding"),
        pytest.param([*[1.0] * 30, *[1.1] * 10], 1, 1e9, id="a rise from a constant"),
        pytest.param(
            [1.0, *(1e4 * (2 + i % 3) for i in range(40))], 1e4, 4e4, id="a loss that is large from the second step"
        ),
        pytest.param([1.0, 1.0, math.nan, 1.0], math.inf, math.inf, id="a loss that is no number"),
        pytest.param((1 + torch.randn(400, generator=torch.Generator().manual_seed(1))).tolist(), 0, 0.3, id="noise"),
    ],
)
def test_rise_is_the_share_of_the_fall_that_is_lost_again(losses: list[float], low: float, high: float) -> None:
    assert low <= traced(losses=losses)["rise"] <= high


@pytest.mark.parametrize("count", [20, 120])
def test_noise_seldom_passes_for_a_rise_and_divergence_is_seen(count: int) -> None:
    random = torch.Generator().manual_seed(count)
    noise = torch.randn(200, count, generator=random)
    growth = 5 ** (torch.arange(count) / count) * (1 + 0.1 * noise)
    assert sum(traced(losses=row.tolist())["rise"] > 0.5 for row in noise) <= 12
    assert sum(traced(losses=row.tolist())["rise"] > 0.5 for row in growth) >= 190


@pytest.mark.parametrize("count", [1, 3, 4, 6, 17, 400])
def test_the_quarters_of_a_run_are_equally_long(count: int) -> None:
    parts = _quarters([float(i) for i in range(count)])
    lengths = [len(part) for part in parts]
    assert [value for part in parts for value in part] == list(range(count))
    assert len(parts) == min(count, 4)
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("part", ["solve_status", "fit_status"])
@pytest.mark.parametrize("status", [Status.MAX_STEPS, Status.INDEFINITE, Status.SINGULAR])
def test_solves_short_of_what_was_asked_are_not_well_if_they_are_more_than_a_tenth(part: str, status: Status) -> None:
    for failed, expected in {10: Verdict.WELL, 11: Verdict.UNSOLVED, 100: Verdict.UNSOLVED}.items():
        trace = Trace({"phi": torch.ones(1)}, 100)
        for number in range(100):
            statuses = {"solve_status": Status.OK, "fit_status": Status.OK} | (
                {part: status} if number < failed else {}
            )
            trace.record_hypergradient(cast(Diagnostics, SimpleNamespace(**statuses)))
            trace.record_update(1.0, {"phi": torch.full((1,), number + 2.0)})
            trace.record_loss(torch.ones(()))
        diagnosis = trace.diagnosis({})
        assert diagnosis.verdict is expected
        assert f"Of 100 hypergradients: {failed} times " in str(diagnosis) or f"; {failed} times FT " in str(diagnosis)


@pytest.mark.parametrize("head", [Status.OK, Status.MAX_STEPS])
def test_statuses_of_the_head_do_not_hide_an_inverse_that_diverges(head: Status) -> None:
    trace = Trace({"phi": torch.ones(1)}, 20)
    for _ in range(20):
        trace.record_hypergradient(cast(Diagnostics, SimpleNamespace(solve_status=Status.DIVERGED, fit_status=head)))
        trace.record_skipped_head_step()
        trace.record_update(math.inf, {"phi": torch.ones(1)})
    assert trace.diagnosis({"not finite": 20}).verdict is Verdict.DIVERGING


def test_a_trace_keeps_a_constant_amount_of_phi_and_few_elements_of_a_large_one() -> None:
    trace = Trace({"phi": torch.ones(100_001)}, 10)
    for _ in range(10):
        trace.record_update(1.0, {"phi": torch.ones(100_001)})
    assert sum(value.numel() for value in trace.state_dict().values() if isinstance(value, Tensor)) < 5 * 1000
