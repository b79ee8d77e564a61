"""What a user gets wrong in a problem is said at the first call; what is right is left alone, random streams too."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from metapt.errors import ConfigError
from metapt.hypergrad import (
    SGD,
    FittedHead,
    Params,
    Pretrained,
    RidgeHead,
    Stacked,
    Unroll,
    exact_hypergradient,
    hypergradient,
)
from metapt.hypergrad.inverse import ConjugateGradient, Identity
from metapt.hypergrad.stacked import stack, stack_pretrained
from metapt.training.meta import MetaPretraining
from metapt.training.meta_settings import MetaSettings
from metapt.training.pretraining import Pretrainer

from .problems import DTYPE, Batch, Classifier, Normed, Regressed, Streams, classification, draw


def loop_of(problem: Any, batches: Any = None, **changes: Any) -> MetaPretraining:
    settings = MetaSettings(**({"iterations": 3, "inverse": Identity(), "finetuning": Unroll(1)} | changes))
    return MetaPretraining(
        problem, batches or Streams(classification), problem.pretrained, problem.meta, problem.head, settings
    )


def changed(base: type, **methods: Callable[..., Any]) -> Any:
    """A problem of which some methods are replaced; each gets the original as its first argument."""

    def replaced(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *arguments: method(getattr(base, name).__get__(self), *arguments)

    return type("Wrong", (base,), {name: replaced(name, method) for name, method in methods.items()})()


def in_training(method: Any) -> nn.Module:
    return method.__self__.module.train()


class Forgetful(Normed):
    """BatchNorm's buffers are left out of `Pretrained.buffers`, so that the module keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.pretrained = self.pretrained._replace(buffers={})


class NeverInTraining(Normed):
    """`encode` leaves the module in evaluation mode."""

    def hidden(self, pretrained: Pretrained, batch: Batch) -> Tensor:
        return functional_call(self.module, {**pretrained.encoder, **pretrained.buffers}, batch.inputs)


OTHERS = Pretrained(
    *({name: value.requires_grad_() for name, value in part.items()} for part in Classifier().pretrained)
)
WRONG = {
    "PT loss that is no scalar": (
        changed(Classifier, pretrain_loss=lambda whole, *given: whole(*given).expand(8)),
        r"pretrain_loss returned a tensor of shape \[8\]; legal: a scalar, such as its mean: loss.mean\(\)",
    ),
    "FT loss that is no scalar": (
        changed(Classifier, head_loss=lambda whole, *given: whole(*given).expand(2, 3)),
        r"head_loss returned a tensor of shape \[2, 3\]; legal: a scalar",
    ),
    "PT loss with one element": (
        changed(Classifier, pretrain_loss=lambda whole, *given: whole(*given).reshape(1)),
        r"pretrain_loss returned a tensor of shape \[1\]",
    ),
    "PT loss that is a number": (
        changed(Classifier, pretrain_loss=lambda whole, *given: whole(*given).item()),
        "pretrain_loss returned a float; legal: a tensor",
    ),
    "features in a tuple": (
        changed(
            Classifier,
            encode=lambda whole, *given: (whole(*given),),
            hidden=lambda whole, *given: torch.ones(8, 5, dtype=DTYPE),
        ),
        "encode returned a tuple; legal: a tensor",
    ),
    "PT loss that draws": (
        changed(Classifier, pretrain_loss=lambda whole, *given: whole(*given) * (1 + torch.rand((), dtype=DTYPE))),
        "pretrain_loss returned two different numbers in two equal calls; .* Draw random numbers when the minibatch is",
    ),
    "encode that draws": (
        changed(
            Classifier,
            encode=lambda whole, *given: F.dropout(whole(*given)),
            hidden=lambda whole, *given: torch.ones(8, 5, dtype=DTYPE),
        ),
        "encode returned two different tensors in two equal calls",
    ),
    "BatchNorm's buffers left out": (
        Forgetful(),
        "a call of pretrain_loss changes what encode returns: .*Pretrained.buffers",
    ),
    "no training mode": (NeverInTraining(), r"a call of encode changes what pretrain_loss returns: .*module.train\(\)"),
    "encode in training mode": (
        changed(
            Normed, encode=lambda whole, encoder, batch: functional_call(in_training(whole), encoder, batch.inputs)
        ),
        r"encode changes the buffer '1.running_mean'; .*module.eval\(\)",
    ),
    "one of two meta-parameters unused": (
        changed(
            Classifier, pretrain_loss=lambda whole, pt, meta, batch: whole(pt, {**meta, "ridge": draw(0, 1)}, batch)
        ),
        "pretrain_loss does not depend on the meta-parameter 'ridge', so that it can't be learned",
    ),
    "PT loss without a graph": (
        changed(Classifier, pretrain_loss=lambda whole, *given: whole(*given).detach()),
        r"pretrain_loss returned a tensor that depends on none of its parameters; .*detach\(\)",
    ),
    "PT loss of other weights": (
        changed(Classifier, pretrain_loss=lambda whole, pt, meta, batch: whole(OTHERS, meta, batch)),
        "pretrain_loss depends on no parameter of `pretrained`, so that PT changes nothing",
    ),
    "FT loss without a graph": (
        changed(Classifier, head_loss=lambda whole, *given: whole(*given).detach()),
        "head_loss returned a tensor that depends on none of its parameters",
    ),
    "FT loss without features": (
        changed(Classifier, head_loss=lambda whole, head, features, batch: whole(head, features.detach(), batch)),
        "head_loss depends on no argument features",
    ),
    "FT loss without a head": (
        changed(Classifier, head_loss=lambda whole, head, features, batch: features.square().mean()),
        "head_loss depends on no parameter of the FT head",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_problem_is_said_at_its_first_hypergradient(name: str) -> None:
    problem, sentence = WRONG[name]
    loop = loop_of(problem)
    with pytest.raises((TypeError, ValueError), match=sentence):
        loop.iterate()


def arguments(problem: Any) -> dict[str, Any]:
    return {"problem": problem, "pretrained": problem.pretrained, "meta": problem.meta, "head": problem.head}


BATCH = classification("", 0, torch.Generator().manual_seed(0))


def once(**given: Any) -> None:
    batches = {"pretrain_batch": BATCH, "train_batches": [BATCH], "validation_batch": BATCH}
    hypergradient(**given, **batches, inverse=Identity(), finetuning=Unroll(1))


def exactly(**given: Any) -> None:
    batches = {"pretrain_batches": [BATCH], "train_batches": [BATCH], "validation_batches": [BATCH]}
    exact_hypergradient(**given, **batches, pretrain_optimizer=SGD(0.1), finetune_optimizer=SGD(0.1))


def looped(**given: Any) -> None:
    MetaPretraining(batches=Streams(classification), settings=MetaSettings(1, inverse=Identity()), **given)


@pytest.mark.parametrize("call", [once, exactly, looped])
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"problem": Classifier}, r"the problem is the class Classifier; give an instance of it: Classifier\(...\)"),
        ({"problem": nn.Linear(1, 1)}, "the problem, a Linear, has no method pretrain_loss and no method encode"),
        ({"pretrained": nn.Linear(1, 1)}, r"pretrained is a Linear; legal: Pretrained\(encoder, head, buffers\)"),
        ({"pretrained": Pretrained(nn.Linear(1, 1), {})}, r"the encoder is a Linear; .*module.named_parameters\(\)"),
        ({"pretrained": Pretrained({"a": torch.ones(1)}, {}, {"n": 3})}, "'n' of the set of buffers is of type int"),
        ({"meta": torch.ones(3)}, "the set of meta-parameters is a Tensor; legal: a dictionary of named tensors"),
        ({"meta": {"share": 0.5}}, "'share' of the set of meta-parameters is of type float; legal: a tensor"),
        ({"head": None}, "the FT head is a NoneType"),
    ],
)
def test_arguments_of_another_type_are_named(call: Callable[..., None], changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        call(**(arguments(Classifier()) | changes))


@pytest.mark.parametrize(
    ("part", "values", "sentence"),
    [
        ("encoder", {}, "the encoder has no parameters"),
        ("meta", {}, "the set of meta-parameters has no parameters"),
        ("meta", {"w": torch.zeros(0)}, "the set of meta-parameters has no parameters"),
        ("meta", {"w": torch.arange(3)}, "'w' of the set of meta-parameters is of type torch.int64"),
        ("head", {"b": torch.tensor([torch.nan])}, "'b' of the FT head has values that are not finite"),
        ("pt_head", {"h": torch.tensor([torch.inf])}, "'h' of the PT head has values"),
    ],
)
def test_parameters_that_cannot_be_trained_are_refused(part: str, values: Params, sentence: str) -> None:
    given = arguments(Classifier())
    encoder, pt_head, _ = given["pretrained"]
    if part in given:
        given[part] = values
    encoder, pt_head = (values if part == name else old for name, old in (("encoder", encoder), ("pt_head", pt_head)))
    with pytest.raises(ConfigError, match=sentence):
        looped(**given | {"pretrained": Pretrained(encoder, pt_head)})


def plain_step(problem: Any, pretrained: Pretrained, meta: Params, **_: Any) -> None:
    Pretrainer(problem, Streams(classification), pretrained, MetaSettings(1).pretrain_optimizer).step(meta)


def head_step(problem: Any, **_: Any) -> None:
    loop_of(problem, head_steps_between_updates=1, pretrain_steps=2).iterate()


OF_PT, OF_FT = (
    ("PT loss that is no scalar", "PT loss with one element", "PT loss without a graph"),
    ("FT loss that is no scalar",),
)
EACH = (*OF_PT, *OF_FT, "PT loss that is a number", "FT loss without a graph", "features in a tuple")
CALLS = {once: EACH, exactly: EACH, plain_step: (*OF_PT, "PT loss of other weights"), head_step: OF_FT}


@pytest.mark.parametrize(("call", "name"), [(call, name) for call, names in CALLS.items() for name in names])
def test_each_call_sees_what_costs_nothing_to_see(call: Callable[..., None], name: str) -> None:
    problem, sentence = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=sentence):
        call(**arguments(problem))


class Forward(Classifier):
    """With the product with the mixed derivative, which here is taken from the graph."""

    calls = 0

    def mixed_product(
        self, pretrained: Pretrained, meta: Params, batch: Batch, vector: list[Tensor]
    ) -> tuple[Params, Tensor]:
        self.calls += 1
        loss = self.pretrain_loss(pretrained, meta, batch)
        gradient = torch.autograd.grad(loss, pretrained.vector(), create_graph=True)
        products = torch.autograd.grad(gradient, list(meta.values()), vector, allow_unused=True)
        return dict(zip(meta, products, strict=True)), loss


class ZeroSlope(Classifier):
    """A meta-parameter that the PT loss has, with a derivative of 0 on every minibatch."""

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        return super().pretrain_loss(pretrained, {**meta, "ridge": -meta["ridge"].relu() - 20}, batch)


class Noisy(Classifier):
    """Equal calls differ in the last digits, as sums of a GPU do."""

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        return super().pretrain_loss(pretrained, meta, batch) * (1 + 1e-10 * torch.rand((), dtype=DTYPE))

    def encode(self, encoder: Params, batch: Batch) -> Tensor:
        features = super().encode(encoder, batch)
        return features * (1 + 1e-10 * torch.rand_like(features))


class Silent(Classifier):
    """Functions that draw without using it."""

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        return super().pretrain_loss(pretrained, meta, batch) + 0 * torch.rand((), dtype=DTYPE)


class RidgeOnly(Regressed):
    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        raise NotImplementedError


def stacked() -> Any:
    problem = Stacked(Normed())
    replicates = [Normed() for _ in range(2)]
    problem.pretrained = stack_pretrained([replicate.pretrained for replicate in replicates])  # type: ignore[attr-defined]
    for part in ("meta", "head"):
        setattr(problem, part, stack([getattr(replicate, part) for replicate in replicates]))
    return problem


def replicated(name: str, count: int, generator: torch.Generator) -> Batch:
    return Batch(*map(torch.stack, zip(*(classification(name, count, generator) for _ in range(2)), strict=True)))


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        pytest.param(Forward, {}, id="forward mode"),
        pytest.param(ZeroSlope, {}, id="derivative of 0"),
        pytest.param(Noisy, {}, id="last digits"),
        pytest.param(RidgeOnly, {"finetuning": RidgeHead()}, id="ridge head"),
        pytest.param(Classifier, {"finetuning": FittedHead(), "inverse": ConjugateGradient()}, id="fitted head"),
        pytest.param(stacked, {"batches": replicated}, id="stacked"),
    ],
)
def test_what_is_right_is_left_alone(make: Callable[[], Any], changes: dict[str, Any]) -> None:
    problem = make()
    batches = Streams(changes.pop("batches", classification))
    loop_of(problem, batches, **changes).run()
    if isinstance(problem, Forward):
        assert problem.calls == 3


@pytest.mark.parametrize("make", [Normed, Silent])
def test_the_checks_change_nothing(make: Callable[[], Any]) -> None:
    """Parameters, buffers, streams and torch's own random state stay, so that a checked run has the same bits."""
    checked, unchecked = loop_of(make()), loop_of(make())
    unchecked._checked = True
    states = []
    for loop in (checked, unchecked):
        torch.manual_seed(5)
        loop.run()
        states.append((copy.deepcopy(loop.state_dict()), torch.get_rng_state()))
    assert str(states[0]) == str(states[1])
    assert torch.equal(states[0][1], states[1][1])
    for name, value in checked.pretrained.buffers.items():
        assert torch.equal(value, unchecked.pretrained.buffers[name])


def test_a_problem_is_checked_once_in_a_run() -> None:
    problem = Classifier()
    calls: list[str] = []
    for name in ("pretrain_loss", "encode", "head_loss"):
        whole = getattr(problem, name)
        setattr(problem, name, lambda *given, name=name, whole=whole: calls.append(name) or whole(*given))
    loop = loop_of(problem)
    counts = []
    for _ in range(3):
        calls.clear()
        loop.iterate()
        counts.append(Counter(calls))
    assert counts[1] == counts[2]
    assert counts[0]["pretrain_loss"] == counts[1]["pretrain_loss"] + 3 + 3  # a graph and two differences
    assert counts[0]["head_loss"] == counts[1]["head_loss"] + 2 + 3


def test_a_minibatch_that_is_not_finite_is_no_fault_of_the_problem() -> None:
    def bad(name: str, count: int, generator: torch.Generator) -> Batch:
        batch = classification(name, count, generator)
        factor = torch.nan if (name, count) in {("pretrain", 1), ("validation", 0)} else 1
        return batch._replace(inputs=batch.inputs * factor)

    loop = loop_of(Normed(), Streams(bad))
    loop.run()
    assert loop.guard.skipped == {"not finite": 1, "exploding": 0}
