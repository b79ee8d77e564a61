"""The verdict at the end of a run: each of the appendix's symptoms is seen, and none where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from metapt.errors import TrainingError
from metapt.hypergrad import Diagnostics, Identity, Status, Unroll
from metapt.training.diagnosis import Diagnosis, Trace, Verdict, _quarters
from metapt.training.meta import MetaPretraining, MetaSettings
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
    ("run", "verdict"),
    [
        pytest.param(lambda: ran(), Verdict.WELL, id="phi comes to its target and jitters about it"),
        pytest.param(lambda: ran(start=0.0), Verdict.WELL, id="from 0"),
        pytest.param(lambda: ran(start=TARGET, meta_lr=0.01), Verdict.WELL, id="phi is there from the start"),
        pytest.param(lambda: ran(warmup=80), Verdict.WELL, id="a long warm-up"),
        pytest.param(lambda: ran(meta_lr=0.03, optimizer="Adam"), Verdict.WELL, id="Adam, on its way"),
        pytest.param(lambda: ran(meta_lr=2.0), Verdict.OSCILLATING, id="phi flips to and fro at each update"),
        pytest.param(lambda: ran(meta_lr=2.05), Verdict.OSCILLATING, id="phi flips further each time"),
        pytest.param(
            lambda: ran(meta_lr=0.5, momentum=0.99), Verdict.OSCILLATING, id="phi swings slowly with momentum"
        ),
        pytest.param(
            lambda: ran(targets=dict.fromkeys(range(20, 90, 3), 1000000000.0)),
            Verdict.OSCILLATING,
            id="exploding hypergradients",
        ),
        pytest.param(lambda: ran(problem=Line(stiffness=2.1)), Verdict.UNSTABLE, id="PT's learning rate is too large"),
        pytest.param(
            lambda: ran(targets=dict.fromkeys(range(20, 90, 3), math.nan)), Verdict.UNSTABLE, id="hypergradients of NaN"
        ),
        pytest.param(lambda: ran(meta_lr=1e-7), Verdict.NOT_MOVING, id="a tiny learning rate"),
        pytest.param(lambda: ran(problem=Deaf()), Verdict.NOT_MOVING, id="a hypergradient of 0"),
        pytest.param(
            lambda: ran(problem=Deaf(), optimizer="AdamW", weight_decay=0.5),
            Verdict.NOT_MOVING,
            id="a hypergradient of 0, and only weight decay moves phi",
        ),
        pytest.param(
            lambda: ran(problem=Line(saturating), meta_lr=1.0, optimizer="Adam"), Verdict.FADED, id="phi saturates"
        ),
    ],
)
def test_the_verdict_names_the_symptom(run: Callable[[], Diagnosis], verdict: Verdict) -> None:
    diagnosis = run()
    assert diagnosis.verdict is verdict, str(diagnosis)


def test_pretraining_that_ends_in_infinity_is_an_error() -> None:
    with pytest.raises(TrainingError, match="the PT loss at iteration 100 is"):
        ran(problem=Line(stiffness=1e9))


def test_the_diagnosis_reads_as_a_sentence_with_its_figures() -> None:
    text = str(ran())
    assert text.startswith("Diagnosis: all well. Figures: moved 2.")
    assert all(f"{name} " in text for name in ("swing", "straight", "rise", "hypergradient", "fade", "skipped"))
    assert text.endswith("Hypergradients: 100 times solved as asked.")


@pytest.mark.parametrize(
    ("number", "advice"), [(1, "learning rate of the meta-parameters"), (2, "PT learning rate"), (3, "1 Neumann term")]
)
def test_each_step_of_the_appendix_has_its_verdict_with_its_advice(number: int, advice: str) -> None:
    (verdict,) = (verdict for verdict in Verdict if f"(step {number})" in verdict.value)
    assert advice in verdict.value


def traced(
    phis: Iterable[Any] = (), losses: Iterable[float] = (), norms: Iterable[float] | None = None
) -> dict[str, float]:
    way = [torch.as_tensor(phi, dtype=DTYPE).reshape(-1) for phi in phis] or [torch.ones(1, dtype=DTYPE)]
    trace = Trace({"phi": way[0]}, len(way) - 1)
    for phi, norm in zip(way[1:], norms or [1.0] * (len(way) - 1), strict=True):
        trace.record_update(norm, {"phi": phi})
    for loss in losses:
        trace.record_loss(torch.tensor(loss))
    return trace.diagnosis({"not finite": 0, "exploding": 0}).figures


def test_the_figures_of_phis_way_are_what_they_say() -> None:
    figures = traced([2, 4, 6, 5, 7, 5, 7])  # late: 5, 7, 5, 7 less the first update of three
    assert figures["moved"] == 5 / 2
    late = torch.tensor([5.0, 7.0, 5.0, 7.0][1:])
    assert figures["swing"] == pytest.approx(float(late.std(correction=0) / (late.mean() - 2)))
    assert figures["straight"] == pytest.approx((7 - 5) / (2 + 2 + 2))


def test_a_straight_way_is_straight_and_a_jump_is_no_oscillation() -> None:
    assert traced(range(1, 50))["straight"] == 1
    assert traced([1.0] * 80 + [9.0] * 20)["straight"] == 1


def test_a_small_jitter_on_a_large_phi_is_small() -> None:
    jitter = 1e6 + 1e-3 * torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=DTYPE)
    figures = traced(jitter)
    assert figures["moved"] < 1e-8
    assert figures["swing"] == pytest.approx(float(jitter[501:].std()) / 1e5, rel=1e-3)


@pytest.mark.parametrize(
    ("losses", "low", "high"),
    [
        pytest.param([1 - 0.01 * i for i in range(90)], 0, 0, id="a falling loss"),
        pytest.param([3.0] * 40, 0, 0, id="a constant loss"),
        pytest.param([1e-8 * (1 + i % 5) for i in range(40)], -0.01, 0.3, id="a loss of next to nothing"),
        pytest.param([-1 - 0.1 * i for i in range(40)], 0, 0, id="a negative loss"),
        pytest.param([2.0, *torch.linspace(2, 1, 30).tolist(), *[1.5] * 10], 0.3, 0.6, id="half of the fall is lost"),
        pytest.param([1.05**i for i in range(100)], 3, math.inf, id="a loss that only grows"),
        pytest.param([1.0, 1.0, math.nan, 1.0], math.inf, math.inf, id="a loss that is no number"),
        pytest.param((1 + torch.randn(400, generator=torch.Generator().manual_seed(1))).tolist(), 0, 0.3, id="noise"),
    ],
)
def test_rise_is_the_share_of_the_fall_that_is_lost_again(losses: list[float], low: float, high: float) -> None:
    assert low <= traced(losses=losses)["rise"] <= high


@pytest.mark.parametrize("count", [1, 3, 4, 5, 6, 9, 10, 13, 17, 400])
def test_the_quarters_of_a_run_are_equally_long(count: int) -> None:
    parts = _quarters([float(i) for i in range(count)])
    lengths = [len(part) for part in parts]
    assert [value for part in parts for value in part] == list(range(count))
    assert len(parts) == min(count, 4)
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("head", [Status.OK, Status.MAX_STEPS])
def test_statuses_of_the_head_do_not_hide_an_inverse_that_diverges(head: Status) -> None:
    trace = Trace({"phi": torch.ones(1)}, 20)
    for _ in range(20):
        trace.record_hypergradient(cast(Diagnostics, SimpleNamespace(solve_status=Status.DIVERGED, fit_status=head)))
        trace.record_skipped_head_step()
        trace.record_update(math.inf, {"phi": torch.ones(1)})
    assert trace.diagnosis({"not finite": 20}).verdict is Verdict.DIVERGING


def test_fade_compares_the_last_quarter_of_norms_with_the_largest() -> None:
    assert traced(range(1, 10), norms=[1, 1, 4, 4, 2, 2, 0.1, 0.1])["fade"] == pytest.approx(0.1 / 4)


def test_a_trace_keeps_a_constant_amount_of_phi_and_few_elements_of_a_large_one() -> None:
    trace = Trace({"phi": torch.ones(100_001)}, 10)
    for _ in range(10):
        trace.record_update(1.0, {"phi": torch.ones(100_001)})
    assert sum(value.numel() for value in trace.state_dict().values() if isinstance(value, Tensor)) < 5 * 1000
