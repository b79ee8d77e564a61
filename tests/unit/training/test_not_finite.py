"""NaN and infinity, wherever they enter: counted, logged, not applied, and the run goes on well."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.errors import TrainingError
from metapt.hypergrad import (
    SGD,
    Adam,
    ConjugateGradient,
    Dense,
    FittedHead,
    Identity,
    Neumann,
    Params,
    RidgeHead,
    Unroll,
)
from metapt.training import meta as meta_module
from metapt.training.meta import MetaPretraining
from metapt.training.optimizers import OptimizerSpec
from metapt.training.settings import MetaSettings

from .problems import Batch, OwnStreams, Regressed, classification, same

BAD = 2  # the iteration whose minibatch is not finite
INVERSES = {
    "identity": Identity(),
    "Neumann": Neumann(2, 0.05),
    "CG": ConjugateGradient(max_steps=10),
    "damped CG": ConjugateGradient(max_steps=10, relative_damping=0.5),
    "dense": Dense(1.0),
}
FINETUNINGS = {
    "head": Unroll(2, Adam(0.1)),
    "network": Unroll(2, SGD(0.1, 0.9), network=True),
    "no step": Unroll(0),
    "fitted": FittedHead(0.1),
    "cross-fitted": FittedHead(0.1, cross_fit=True, minibatches=2),
    "ridge": RidgeHead(0.1),
    "cross-fitted ridge": RidgeHead(0.1, cross_fit=True, minibatches=2),
}
SETS = ("train", "validation", "hypergradient")
NO_MINIBATCH = ("no step", "train")


def with_bad(counts: dict[str, int], value: float) -> OwnStreams:
    """Batches of which the given one of each set has one bad number."""

    def made(name: str, count: int, generator: torch.Generator) -> Batch:
        batch = classification(name, count, generator)
        if counts.get(name) == count:
            batch.inputs[1, 2] = value
        return batch

    return OwnStreams(made)


def loop_of(batches: Any, problem: Any = None, **changes: Any) -> MetaPretraining:
    problem = problem or Regressed()
    fields: dict[str, Any] = {
        "iterations": 5,
        "pretrain_steps": 2,
        "inverse": Identity(),
        "pretrain_optimizer": OptimizerSpec("Adam", {"lr": 0.05}),
        "meta_optimizer": OptimizerSpec("Adam", {"lr": 0.1}),
    }
    start = problem.pretrained, problem.meta, problem.head
    return MetaPretraining(problem, batches, *start, MetaSettings(**(fields | changes)))


def learned(loop: MetaPretraining) -> Any:
    """What a skipped meta-update leaves as it is."""
    parts = (loop.meta, loop.averaged_meta, loop.head, loop.head_state, loop._meta_optimizer.state_dict())
    return copy.deepcopy(parts)


def unchanged_by_the_bad_update(loop: MetaPretraining) -> Any:
    """Run up to the bad iteration, which must change nothing that is learned; return what is learned."""
    for _ in range(BAD):
        loop.iterate()
    before = learned(loop)
    loop.iterate()
    assert same(learned(loop), before)
    return before


def goes_on_well(loop: MetaPretraining, before: Any) -> None:
    """Another meta-update is applied, and all is finite at the end."""
    diagnosis = loop.run()
    assert sum(loop.guard.skipped.values()) == 1
    assert diagnosis.figures["skipped"] > 0
    assert not same(learned(loop)[0], before[0])
    for params in (loop.meta, loop.averaged_meta, loop.head, loop.head_state, *loop.pretrained):
        assert all(value.isfinite().all() for value in params.values())


@pytest.mark.parametrize("where", SETS)
@pytest.mark.parametrize(
    ("inverse", "finetuning", "value"),
    [
        *(("Neumann", name, math.nan) for name in FINETUNINGS),
        *((name, "head", math.nan) for name in ("identity", "CG", "dense")),
        ("damped CG", "head", math.inf),
    ],
)
def test_what_is_not_finite_is_counted_logged_and_not_applied(
    inverse: str, finetuning: str, where: str, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    if (finetuning, where) == NO_MINIBATCH:
        return
    solver = FINETUNINGS[finetuning]
    each = solver.minibatches if where == "train" else 1
    loop = loop_of(with_bad({where: BAD * each}, value), inverse=INVERSES[inverse], finetuning=solver)
    before = unchanged_by_the_bad_update(loop)
    assert loop.guard.skipped == {"not finite": 1, "exploding": 0}
    assert f"at iteration {BAD} is not applied: it is not finite (norm nan), as " in caplog.text
    goes_on_well(loop, before)


@pytest.mark.parametrize("where", SETS)
@pytest.mark.parametrize(
    ("bad", "changes"),
    [(1, {"clip_norm": 0.1}), (2, {"normalise": True}), (0, {"average_decay": 0.9})],
)
def test_one_of_several_spoils_the_whole_meta_update(bad: int, where: str, changes: dict[str, Any]) -> None:
    batches = with_bad({where: 3 * BAD + bad}, math.nan)
    loop = loop_of(batches, inverse=ConjugateGradient(), finetuning=Unroll(1, Adam(0.1)), accumulate=3, **changes)
    before = unchanged_by_the_bad_update(loop)
    goes_on_well(loop, before)


@pytest.mark.parametrize("pretrain_steps", [1, 2])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_no_pt_step_is_taken_along_a_gradient_that_is_not_finite(accumulate: int, pretrain_steps: int) -> None:
    """Its place takes a plain PT step, on the next PT minibatch."""
    batches = with_bad({"pretrain": pretrain_steps * (BAD + 1)}, math.nan)
    changes = {"accumulate": accumulate, "pretrain_steps": pretrain_steps, "finetuning": Unroll(1)}
    loop = loop_of(batches, reuse_gradient=True, inverse=ConjugateGradient(), **changes)
    before = unchanged_by_the_bad_update(loop)
    assert loop.batches.counts["pretrain"] == pretrain_steps * (BAD + 1) + 1
    loss, encoder = loop.loss.clone(), copy.deepcopy(loop.pretrained.encoder)
    assert loss.isfinite()
    loop._pretrain_step()
    assert loop.batches.counts["pretrain"] == pretrain_steps * (BAD + 1) + 2
    assert not same(encoder, loop.pretrained.encoder)
    goes_on_well(loop, before)


def test_a_plain_step_of_the_head_is_not_taken_where_it_is_not_finite(caplog: pytest.LogCaptureFixture) -> None:
    options = {"finetuning": Unroll(1, Adam(0.1)), "pretrain_steps": 3, "head_steps_between_updates": 1}
    loop = loop_of(with_bad({"train": 1}, math.nan), **options)
    stepped: list[tuple[Params, Params]] = [(loop.head, loop.head_state)]
    for _ in range(3):
        loop._head_step()
        stepped.append((loop.head, loop.head_state))
    assert [same(a, b) for a, b in pairwise(stepped)] == [False, True, False]
    assert "a step of the FT head at iteration 0 is not taken: " in caplog.text
    diagnosis = loop.run()
    assert diagnosis.statuses["a step of the FT head not finite and not taken"] == 1
    assert all(value.isfinite().all() for value in loop.head.values())


def hidden(features: Tensor) -> Tensor:
    """A ReLU by hand, which passes no NaN on: max(nan, 0) by a comparison is 0, and so is its derivative."""
    return torch.where(features > 0, features, 0.0)


class Deaf(Regressed):
    """An encoder and a PT loss whose ReLU turns NaN into 0 in one of the FT, PT and mixed derivatives."""

    def encode(self, encoder: Params, batch: Batch) -> Tensor:
        return hidden(batch.inputs @ encoder["weight"].T + encoder["bias"])

    def pretrain_loss(self, pretrained: Any, meta: Params, batch: Batch) -> Tensor:
        ridge = meta["ridge"].exp().sum() * sum(value.square().sum() for value in pretrained.vector())
        logits = self.encode(pretrained.encoder, batch) @ pretrained.head["weight"].T
        weights = meta["weights"].sigmoid()[batch.labels]
        return (
            (weights * F.cross_entropy(logits, batch.labels, reduction="none")).mean() + ridge + 0 * batch.inputs.sum()
        )


@pytest.mark.parametrize("inverse", INVERSES)
def test_a_pt_loss_that_is_not_finite_is_seen_where_no_derivative_shows_it(inverse: str) -> None:
    loop = loop_of(with_bad({"hypergradient": BAD}, math.nan), Deaf(), inverse=INVERSES[inverse], finetuning=Unroll(1))
    before = unchanged_by_the_bad_update(loop)
    goes_on_well(loop, before)


@pytest.mark.parametrize(("warmup", "step"), [(2, 6), (0, 4)])
def test_where_reading_waits_a_pt_loss_of_nan_is_seen_at_the_next_meta_update(
    warmup: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(meta_module, "is_read", lambda loss, step: False)
    monkeypatch.setattr(meta_module, "check_problem", lambda *given, **named: checked.append(given))
    loop = loop_of(with_bad({"pretrain": 2}, math.nan), finetuning=Unroll(1), warmup=warmup)
    with pytest.raises(TrainingError, match=f"the PT loss at PT step {step} is nan"):
        loop.run()
    assert loop.guard.skipped == {"not finite": 0, "exploding": 0}
    assert len(checked) == (warmup == 0)  # a problem is not checked with weights of NaN


class Rooted(Regressed):
    """A PT loss that is finite, with a derivative of NaN: the PT step makes the weights NaN."""

    def pretrain_loss(self, pretrained: Any, meta: Params, batch: Batch) -> Tensor:
        return super().pretrain_loss(pretrained, meta, batch) + (0 * pretrained.encoder["bias"]).sum().sqrt()


def test_a_pt_loss_that_is_not_finite_is_named_before_all_that_it_spoils(caplog: pytest.LogCaptureFixture) -> None:
    loop = loop_of(with_bad({}, 0.0), Rooted(), finetuning=FINETUNINGS["fitted"], pretrain_steps=1)
    with pytest.raises(TrainingError, match="the PT loss at PT step 2 is nan"):
        loop.run()
    words = "iteration 0 is not applied: it is not finite (norm nan), as the PT loss on the PT minibatch was nan"
    assert words in caplog.text


def test_advice_is_logged_once_for_skipped_updates_in_a_row(caplog: pytest.LogCaptureFixture) -> None:
    def made(name: str, count: int, generator: torch.Generator) -> Batch:
        batch = classification(name, count, generator)
        if name == "validation" and count in (2, 3, 5):
            batch.inputs[0] = math.nan
        return batch

    loop_of(OwnStreams(made), finetuning=Unroll(1), iterations=7).run()
    assert caplog.text.count("is not applied") == 3
    assert caplog.text.count("Look for NaN in the FT validation minibatches") == 2


@pytest.mark.parametrize("step_size", [100.0, 1e200])
def test_a_series_that_overflows_is_told_from_ft_that_diverges(step_size: float) -> None:
    loop = loop_of(with_bad({}, 0.0), inverse=Neumann(200, step_size), finetuning=Unroll(1), iterations=12)
    with pytest.raises(TrainingError, match=r"was not finite .*The series diverged: lower step_size") as error:
        loop.run()
    assert "FT learning rate" not in str(error.value)
    assert "times the series diverged: lower step_size" in str(loop.trace.diagnosis(loop.guard.skipped))


class Marked(Regressed):
    """An FT loss that is infinite on the marked minibatch, with finite derivatives."""

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return super().head_loss(head, features, batch) + (math.inf if batch.inputs[1, 2] == 77 else 0.0)


@pytest.mark.parametrize("where", ["train", "validation"])
@pytest.mark.parametrize("finetuning", ["head", "network", "fitted", "cross-fitted"])
def test_an_ft_loss_that_is_not_finite_is_seen_where_no_derivative_shows_it(finetuning: str, where: str) -> None:
    solver = FINETUNINGS[finetuning]
    each = solver.minibatches if where == "train" else 1
    loop = loop_of(with_bad({where: BAD * each}, 77.0), Marked(), finetuning=solver)
    before = unchanged_by_the_bad_update(loop)
    assert loop.trace.state_dict()["statuses"]["FT not finite"] == 1
    goes_on_well(loop, before)
