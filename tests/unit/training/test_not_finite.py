"""Numbers that are not finite, and runs that do not learn: not applied, counted, named, and the run goes on well."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import metapt
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
from metapt.training.diagnosis import Diagnosis
from metapt.training.meta import MetaPretraining
from metapt.training.meta_settings import MetaSettings
from metapt.training.optimizers import OptimizerSpec

from . import problems
from .kinds import refused, warned
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
    "no step": Unroll(0),
    "head": Unroll(2, Adam(0.1)),
    "network": Unroll(2, SGD(0.1, 0.9), network=True),
    "fitted": FittedHead(0.1),
    "cross-fitted": FittedHead(0.1, cross_fit=True, minibatches=2),
    "ridge": RidgeHead(0.1),
    "cross-fitted ridge": RidgeHead(0.1, cross_fit=True, minibatches=2),
}
TRAINED = [name for name in FINETUNINGS if name != "no step"]
REGRESSED = Regressed()  # one for all, so that its derivatives are compared once


def with_bad(counts: dict[str, Any], value: float = math.nan) -> OwnStreams:
    """Batches of which the given one, or ones, of each set have one bad number."""

    def made(name: str, count: int, generator: torch.Generator) -> Batch:
        batch = classification(name, count, generator)
        if count in (bad if isinstance(bad := counts.get(name), tuple) else (bad,)):
            batch.inputs[1, 2] = value
        return batch

    return OwnStreams(made)


def loop_of(batches: Any, problem: Any = None, **changes: Any) -> MetaPretraining:
    pretrain, meta = (OptimizerSpec("Adam", {"lr": lr}) for lr in (0.05, 0.1))
    fields = {"iterations": 4, "pretrain_steps": 2, "inverse": Identity(), "finetuning": Unroll(1)}
    fields |= {"pretrain_optimizer": pretrain, "meta_optimizer": meta}
    return problems.loop_of(problem or REGRESSED, batches, **(fields | changes))


def learned(loop: MetaPretraining) -> Any:
    """What a skipped meta-update leaves as it is."""
    parts = (loop.meta, loop.averaged_meta, loop.head, loop.head_state, loop._meta_optimizer.state_dict())
    return copy.deepcopy(parts)


def skips_one(loop: MetaPretraining) -> Any:
    """Run to the end of the bad iteration, which must change nothing that is learned; return what is learned."""
    for _ in range(BAD):
        loop.iterate()
    before = learned(loop)
    loop.iterate()
    assert same(learned(loop), before)
    return before


def goes_on_well(loop: MetaPretraining, before: Any) -> None:
    """Another meta-update is applied, and all is finite at the end."""
    diagnosis = loop.run()
    assert loop.guard.skipped == {"not finite": 1, "exploding": 0}
    assert diagnosis.figures["skipped"] == 1 / loop.settings.iterations
    assert not same(learned(loop)[0], before[0])
    for params in (loop.meta, loop.averaged_meta, loop.head, loop.head_state, *loop.pretrained):
        assert all(value.isfinite().all() for value in params.values())


class Deaf(Regressed):
    """Its ReLU by hand turns NaN into 0, in values and all derivatives: a comparison with NaN is false."""

    def encode(self, encoder: Params, batch: Batch) -> Tensor:
        hidden = batch.inputs @ encoder["weight"].T + encoder["bias"]
        return torch.where(hidden > 0, hidden, 0.0)

    def pretrain_loss(self, pretrained: Any, meta: Params, batch: Batch) -> Tensor:
        return super().pretrain_loss(pretrained, meta, batch) + 0 * batch.inputs.sum()


class Marked(Regressed):
    """An FT loss that is infinite on the marked minibatch, with finite derivatives."""

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return super().head_loss(head, features, batch) + (math.inf if batch.inputs[1, 2] == 77 else 0.0)


DEAF, MARKED = Deaf(), Marked()


@pytest.mark.parametrize(
    ("problem", "value", "where", "finetuning", "inverse"),
    [
        *((REGRESSED, math.nan, "train", solver, "Neumann") for solver in TRAINED),
        *((REGRESSED, math.nan, "validation", solver, "Neumann") for solver in FINETUNINGS),
        *((REGRESSED, math.inf, "validation", "head", inverse) for inverse in ("CG", "damped CG", "dense")),
        *((DEAF, math.nan, "hypergradient", "head", inverse) for inverse in INVERSES),
        *((MARKED, 77.0, "train", solver, "identity") for solver in TRAINED[:4]),
        (MARKED, 77.0, "validation", "head", "identity"),
    ],
)
def test_what_is_not_finite_is_counted_logged_and_not_applied(
    problem: Any, value: float, where: str, finetuning: str, inverse: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A loss that is not finite is seen even where no derivative shows it."""
    solver = FINETUNINGS[finetuning]
    bad = with_bad({where: BAD * (solver.minibatches if where == "train" else 1)}, value)
    loop = loop_of(bad, problem, finetuning=solver, inverse=INVERSES[inverse])
    before = skips_one(loop)
    assert f"at iteration {BAD} is not applied: it is not finite (norm nan), as " in caplog.text
    assert problem is not MARKED or loop.trace.state_dict()["statuses"]["FT not finite"] == 1
    goes_on_well(loop, before)


@pytest.mark.parametrize(
    ("bad", "where", "changes"),
    [
        (1, "train", {"clip_norm": 0.1}),
        (2, "validation", {"normalise": True}),
        (0, "hypergradient", {"average_decay": 0.9}),
    ],
)
def test_one_of_several_spoils_the_whole_meta_update(bad: int, where: str, changes: dict[str, Any]) -> None:
    batches = with_bad({where: 3 * BAD + bad})
    loop = loop_of(batches, inverse=ConjugateGradient(), finetuning=Unroll(1, Adam(0.1)), accumulate=3, **changes)
    goes_on_well(loop, skips_one(loop))


@pytest.mark.parametrize("pretrain_steps", [1, 2])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_no_pt_step_is_taken_along_a_gradient_that_is_not_finite(accumulate: int, pretrain_steps: int) -> None:
    """Its place takes a plain PT step, on the next PT minibatch."""
    batches = with_bad({"pretrain": pretrain_steps * (BAD + 1)})
    changes = {"accumulate": accumulate, "pretrain_steps": pretrain_steps, "reuse_gradient": True}
    loop = loop_of(batches, inverse=ConjugateGradient(), **changes)
    before = skips_one(loop)
    assert loop.batches.counts["pretrain"] == pretrain_steps * (BAD + 1) + 1
    loss, encoder = loop.loss.clone(), copy.deepcopy(loop.pretrained.encoder)
    assert loss.isfinite()
    loop._pretrain_step()
    assert loop.batches.counts["pretrain"] == pretrain_steps * (BAD + 1) + 2
    assert not same(encoder, loop.pretrained.encoder)
    goes_on_well(loop, before)


def test_a_plain_step_of_the_head_is_not_taken_where_it_is_not_finite(caplog: pytest.LogCaptureFixture) -> None:
    options = {"finetuning": Unroll(1, Adam(0.1)), "pretrain_steps": 3, "head_steps_between_updates": 1}
    loop = loop_of(with_bad({"train": 1}), **options)
    stepped: list[tuple[Params, Params]] = [(loop.head, loop.head_state)]
    for _ in range(3):
        loop._head_step()
        stepped.append((loop.head, loop.head_state))
    assert [same(a, b) for a, b in pairwise(stepped)] == [False, True, False]
    assert "a step of the FT head at iteration 0 is not taken: " in caplog.text
    assert loop.run().statuses["a step of the FT head not finite and not taken"] == 1
    assert all(value.isfinite().all() for value in loop.head.values())


@pytest.mark.parametrize(("warmup", "step"), [(2, 6), (0, 4)])
def test_where_reading_waits_a_pt_loss_of_nan_is_seen_at_the_next_meta_update(
    warmup: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(meta_module, "is_read", lambda loss, step: False)
    monkeypatch.setattr(meta_module, "check_problem", lambda *given, **named: checked.append(given))
    loop = loop_of(with_bad({"pretrain": 2}), warmup=warmup)
    with pytest.raises(TrainingError, match=f"the PT loss at PT step {step} is nan"):
        loop.run()
    assert loop.guard.skipped == {"not finite": 0, "exploding": 0}
    assert len(checked) == (warmup == 0)  # a problem is not checked with weights of NaN


class Rooted(Regressed):
    """A PT loss that is finite, with a derivative of NaN: the PT step makes the weights NaN."""

    def pretrain_loss(self, pretrained: Any, meta: Params, batch: Batch) -> Tensor:
        return super().pretrain_loss(pretrained, meta, batch) + (0 * pretrained.encoder["bias"]).sum().sqrt()


def test_a_pt_loss_that_is_not_finite_is_named_before_all_that_it_spoils(caplog: pytest.LogCaptureFixture) -> None:
    loop = loop_of(with_bad({}), Rooted(), finetuning=FINETUNINGS["fitted"], pretrain_steps=1)
    with pytest.raises(TrainingError, match="the PT loss at PT step 2 is nan"):
        loop.run()
    words = "iteration 0 is not applied: it is not finite (norm nan), as the PT loss on the PT minibatch was nan"
    assert words in caplog.text


def test_advice_is_logged_once_for_skipped_updates_in_a_row(caplog: pytest.LogCaptureFixture) -> None:
    loop_of(with_bad({"validation": (2, 3, 5)}), iterations=7).run()
    assert caplog.text.count("is not applied") == 3
    assert caplog.text.count("Look for NaN in the FT validation minibatches") == 2


@pytest.mark.parametrize("inverse", [Neumann(60, 1e6), Neumann(2, 1e200)])
def test_a_series_that_overflows_is_told_from_ft_that_diverges(inverse: Neumann) -> None:
    loop = loop_of(with_bad({}), inverse=inverse, max_skipped=3)
    with pytest.raises(TrainingError, match=r"was not finite .*The series diverged: lower step_size") as error:
        loop.run()
    assert "FT learning rate" not in str(error.value)
    assert "times the series diverged: lower step_size" in str(loop.trace.diagnosis(loop.guard.skipped))


# What a user reads

FITTED = FittedHead(l2=0.01, tolerance=1e-3)


def pretrain_loss(encoder: nn.Module, head: nn.Module, meta: Params, batch: Any) -> Tensor:
    return F.mse_loss(head(encoder(batch[0] * torch.exp(meta["scale"]))), batch[1])


def finetune_loss(head: nn.Module, features: Tensor, batch: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(head(features).squeeze(1), batch[1])


def squared(head: nn.Module, features: Tensor, batch: Any) -> Tensor:
    return head(features).square().mean()


class Own(metapt.ModuleProblem):
    """A problem with labels for a ridge head."""

    def targets(self, batch: Any) -> Tensor:
        labels: Tensor = batch[1]
        return labels[:, None]


def brought(
    bad: str = "",
    number: int = 0,
    value: float = math.nan,
    lr: float = 0.05,
    meta_lr: float = 0.05,
    optimizer: str = "Adam",
    functions: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[Any, ...]:
    """Return the arguments of `MetaPretraining`, with a number in minibatch `number` of the set `bad`, as "train x"."""
    torch.manual_seed(0)
    sets = zip(("train", "validation"), torch.randn(2, 16, 4), strict=True)
    data = {name: [(x, (x.sum(1) > 0).float())] for name, x in sets}
    data["pretrain"] = [(x, x @ torch.ones(4, 4).tril()) for x in torch.randn(10, 16, 4)]
    if bad:
        name, part = bad.split()
        data[name][number]["xy".index(part)][3] = value
    encoder, head, finetune_head = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), nn.Linear(3, 4), nn.Linear(3, 1)
    losses = {"pretrain_loss": pretrain_loss, "finetune_loss": finetune_loss}
    problem = Own(encoder, head, finetune_head, **losses | (functions or {}))
    made = MetaSettings(
        **{"iterations": 20, "inverse": Neumann(2, 0.05), "finetuning": FITTED} | settings,
        pretrain_optimizer=OptimizerSpec(optimizer, {"lr": lr}),
        meta_optimizer=OptimizerSpec("Adam", {"lr": meta_lr}),
    )
    return problem, metapt.LoaderBatches(**data), problem.pretrained, {"scale": torch.zeros(4)}, problem.head, made


def run(**given: Any) -> Diagnosis:
    return MetaPretraining(*brought(**given)).run()


def check(**given: Any) -> None:
    metapt.check(*brought(**given))


def of_pt(loss: Callable[..., Tensor]) -> dict[str, Any]:
    """Return what replaces the PT loss by itself and a loss of the same arguments."""
    return {"functions": {"pretrain_loss": lambda *given: pretrain_loss(*given) + loss(*given)}}


def root(encoder: nn.Module, head: nn.Module, meta: Params, batch: Any) -> Tensor:
    return meta["scale"].square().sum().sqrt() * sum(value.square().sum() for value in encoder.parameters())


PT_NAN, LONG = "a PT minibatch with NaN, a PT loss that becomes NaN or infinite", {"iterations": 4000, "warmup": 3000}
STEP_5, FOURTH = "PT loss at PT step 5 is nan", {"bad": "pretrain x", "number": 4, **LONG}
FT_NAN = "an FT minibatch with NaN in inputs or labels, an FT loss that is NaN"
TEN = FT_NAN, "10 hypergradients in a row", "look for NaN in the FT"
VALIDATION = *TEN, "as the FT validation loss was nan."
TRAIN, ZERO_STEPS = (*TEN, "as the FT training loss was nan."), (*TEN, "loss after 0 of 3 FT steps was nan.")
DIVERGED = FT_NAN, "FT training loss after 1 of 3 FT steps was", "lower the FT learning rate"
CHECKED, ITSELF = "numbers that are not finite, in `metapt.check`", "not finite itself"
SQUARED = {"functions": {"finetune_loss": squared}}
Named = tuple[tuple[str, ...], dict[str, Any]]
RUNS: list[Named] = [
    ((PT_NAN, STEP_5, "PT minibatches", "PT learning rate"), {**FOURTH, "pretrain_steps": 1}),
    ((PT_NAN, STEP_5), {**FOURTH, "pretrain_steps": 7}),
    ((PT_NAN, STEP_5), {**FOURTH, "pretrain_steps": 2, "reuse_gradient": True}),
    ((PT_NAN, "is nan", "a logarithm"), of_pt(lambda _, head, *given: torch.log(0.7 - head.weight.abs().max())) | LONG),
    ((PT_NAN, "PT loss at PT step", "is inf", "PT learning rate"), {"lr": 1e6, "optimizer": "SGD", **LONG}),
    (VALIDATION, {"bad": "validation x", "finetuning": Unroll(3)}),
    (VALIDATION, {"bad": "validation y", "finetuning": RidgeHead(0.1)}),
    (TRAIN, {"bad": "train x"}),
    (TRAIN, {"bad": "train y", "finetuning": RidgeHead(0.1)}),
    (TRAIN, {"bad": "train x", "finetuning": replace(FITTED, cross_fit=True)}),
    (ZERO_STEPS, {"bad": "train x", "finetuning": Unroll(3)}),
    (ZERO_STEPS, {"bad": "train y", "finetuning": Unroll(3, network=True)}),
    *((DIVERGED, SQUARED | {"finetuning": Unroll(3, SGD(lr))}) for lr in (1e12, 1e30)),
    (
        ("learning rates of the meta-parameters that are far", "the PT loss at PT step", "whose norm is 2e+06"),
        {"meta_lr": 1e6, "iterations": 60},
    ),
]
CHECKS: list[Named] = [
    ((CHECKED, "the PT loss is not finite", "first PT minibatch", ITSELF), {"bad": "pretrain y", "value": -math.inf}),
    (
        (CHECKED, "the PT loss is not finite (nan)", "whose own numbers are finite", "a logarithm"),
        of_pt(lambda _, head, *given: torch.log(-head.weight.square().sum())),
    ),
    ((CHECKED, "features (encode) are not finite", "FT validation minibatch", ITSELF), {"bad": "validation x"}),
    ((CHECKED, "the FT loss is not finite", "FT validation minibatch", ITSELF), {"bad": "validation y"}),
    ((CHECKED, "not finite", "FT training minibatch", ITSELF), {"bad": "train x", "finetuning": Unroll(3)}),
    ((CHECKED, "not finite", "FT training minibatch", ITSELF), {"bad": "train y"}),
    (
        (CHECKED, "hypergradient is not finite", "FT training loss after 1 of 3 FT steps", "FT learning rate"),
        SQUARED | {"finetuning": Unroll(3, SGD(1e30))},
    ),
    ((CHECKED, "hypergradient is not finite", "a derivative of the PT loss", "root of 0"), of_pt(root)),
]


@pytest.mark.parametrize(("refuses", "given"), [(refused(*row), given) for row, given in RUNS])
def test_a_run_names_what_was_not_finite_first(refuses: Callable[..., Any], given: dict[str, Any]) -> None:
    refuses(run)(**given)


@pytest.mark.parametrize(("refuses", "given"), [(refused(*row), given) for row, given in CHECKS])
def test_check_names_what_is_not_finite_and_calls_it_not_right(
    refuses: Callable[..., Any], given: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    refuses(check)(**given)
    assert "nan" not in capsys.readouterr().out


@refused(PT_NAN, "PT loss at step 5 is nan", "PT minibatches", "PT learning rate")
def test_plain_pt_stops_at_a_minibatch_with_nan() -> None:
    problem, batches, start, meta, *_ = brought("pretrain y", 4)
    metapt.Pretrainer(problem, batches, start, OptimizerSpec("Adam")).run(meta, 100_000)


@warned("a PT minibatch with NaN that only a hypergradient uses", "iteration 0 is not applied", "PT loss", "was nan")
def test_a_pt_minibatch_of_a_hypergradient_with_nan_is_named() -> None:
    problem, batches, *rest = brought(iterations=3)
    batches.hypergradient = brought("pretrain x")[1].pretrain
    MetaPretraining(problem, batches, *rest).run()


@pytest.mark.parametrize("solver", [Unroll(0), FITTED, RidgeHead(0.1)])
def test_no_advice_on_a_learning_rate_that_is_not_there(solver: Any) -> None:
    with pytest.raises(TrainingError, match=VALIDATION[-1]) as error:
        run(bad="validation x", finetuning=solver)
    assert "learning rate" not in str(error.value)


def rounded(function: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    return {"encode": lambda encoder, batch: function(encoder(batch[0]))}


def signed(function: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    def loss(encoder: nn.Module, head: nn.Module, meta: Params, batch: Any) -> Tensor:
        return pretrain_loss(
            encoder, head, {"scale": 0 * meta["scale"]}, (batch[0] * function(meta["scale"] + 0.5), batch[1])
        )

    return {"pretrain_loss": loss}


OF_FT, OF_PT = "FT validation loss has derivative 0 w.r.t. the encoder", "derivative 0 w.r.t. the meta-parameters"
ROUND = "round, sign, argmax, a comparison or detach", "hypergradients were exactly 0", "20 times exactly 0"
ZERO = {words: warned(*ROUND, words) for words in (OF_FT, OF_PT)}


@pytest.mark.parametrize(
    ("words", "functions"),
    [
        pytest.param(OF_FT, rounded(torch.round), id="round"),
        pytest.param(OF_FT, rounded(lambda x: (x > 0) + 0 * x), id=">"),
        pytest.param(OF_PT, signed(torch.sign), id="sign"),
        pytest.param(OF_PT, signed(lambda x: x.clamp(max=0.1)), id="max"),
    ],
)
def test_a_step_function_is_named(words: str, functions: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    ZERO[words](run)(functions=functions)
    check(functions=functions)
    (wrong,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wrong: ")]
    assert "exactly 0" in wrong
    assert words in wrong


DRAWN = warned("an FT head that `l2` draws to 0", "20 times 0 up to rounding", OF_FT, "lower l2", "another FT head")


def test_an_ft_head_of_almost_0_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    DRAWN(run)(finetuning=FittedHead(l2=1e12))
    check(finetuning=FittedHead(l2=1e12))
    assert "wrong: the hypergradient is 0 up to rounding, as the FT validation loss" in capsys.readouterr().out


UNSOLVED = "an inverse or a fitted FT head with too few steps", "not solved as asked", "raise"
SHORT = [
    (warned(*UNSOLVED, "20 times", "max_steps", "damping"), {"inverse": ConjugateGradient(max_steps=1)}),
    (warned(*UNSOLVED, "20 times FT not fitted", "max_steps", "l2"), {"finetuning": FittedHead(0.01, max_steps=1)}),
]


@pytest.mark.parametrize(("warns", "given"), SHORT, ids=["inverse", "head"])
def test_what_is_short_of_its_tolerance_is_not_all_well(warns: Callable[..., Any], given: dict[str, Any]) -> None:
    warns(run)(**given)
