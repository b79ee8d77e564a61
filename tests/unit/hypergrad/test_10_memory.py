"""Memory: one head per step, one copy of the encoder, no graph that is not differentiated."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from metapt.hypergrad import SGD, Adam, ConjugateGradient, Dense, FittedHead, Identity, Neumann, Params, Unroll

from .problems import Batch, Classifier, called, classification, counted, draw

PRETRAIN = classification(700, 9)
VALIDATION = classification(600, 7)


class Saved:
    """A tensor saved for a backward pass, counted as long as the graph keeps it."""

    def __init__(self, tensor: Tensor, meter: Meter) -> None:
        self.tensor, self.meter, self.key = tensor, meter, tensor.untyped_storage().data_ptr()
        self.bytes = tensor.untyped_storage().nbytes()
        meter.change(self.key, self.bytes, 1)

    def __del__(self) -> None:
        self.meter.change(self.key, self.bytes, -1)


class Meter:
    """The most bytes that autograd graphs hold at one time, each storage once."""

    def __init__(self) -> None:
        self.holders: Counter[int] = Counter()
        self.now = self.peak = 0

    def change(self, key: int, size: int, by: int) -> None:
        before = self.holders[key]
        self.holders[key] += by
        self.now += size * ((before + by > 0) - (before > 0))
        self.peak = max(self.peak, self.now)


def held(function: Callable[[], Any]) -> Meter:
    meter = Meter()
    gc.disable()  # what is freed is freed at once, without waiting for the garbage collector
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: Saved(tensor, meter), lambda saved: saved.tensor):
            function()
    finally:
        gc.enable()
    return meter


def call(problem: Any, inverse: Any, solver: Any, train: list[Any], **changes: Any) -> Any:
    batches = {"pretrain_batch": PRETRAIN, "train_batches": train, "validation_batch": VALIDATION}
    return called(problem, inverse=inverse, finetuning=solver, **batches, **changes)


@pytest.mark.parametrize("inverse", [Neumann(1, 0.1), Neumann(20, 0.1), ConjugateGradient(1e-6, 20, 1.0), Dense(1.0)])
def test_memory_does_not_depend_on_the_number_of_products(inverse: Any) -> None:
    problem = counted(Classifier())
    peaks = [held(lambda each=each: call(problem, each, Unroll(0), [])).peak for each in (Identity(), inverse)]
    assert peaks[0] == peaks[1] > 0


class Wide:
    """An encoder much bigger than the head: 20 x 400 -> tanh -> 400 x 8 weights, 64 examples; a head of 8 numbers."""

    def __init__(self) -> None:
        self.encoder = {"in": draw(0, 20, 400, scale=0.1), "out": draw(1, 400, 8, scale=0.1)}
        self.head = {"weight": draw(2, 8)}
        self.batch = Batch(draw(3, 64, 20), draw(4, 64))

    def encode(self, encoder: Params, batch: Batch) -> Tensor:
        return (batch.inputs @ encoder["in"]).tanh() @ encoder["out"]

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return (features @ head["weight"] - batch.targets).square().mean()

    def peak(self, solver: Any, batches: list[Batch]) -> int:
        return held(lambda: solver(self, self.encoder, {}, self.head, None, batches, self.batch)).peak

    @property
    def activations(self) -> int:
        """Bytes of one pass of the encoder."""
        return 8 * 64 * 400


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), SGD(lr=0.1, momentum=0.9), Adam(lr=0.1)])
def test_an_unrolled_step_of_the_head_keeps_one_more_head(optimizer: Any) -> None:
    problem = Wide()
    peaks = [problem.peak(Unroll(steps, optimizer), [problem.batch] * steps) for steps in (1, 6, 11)]
    step = (peaks[2] - peaks[1]) / 5
    assert peaks[1] - peaks[0] == pytest.approx(5 * step, rel=0.1)
    # a head's graph is a few vectors over examples and over the head, and nothing of the encoder
    assert 0 < step < 8 * (10 * 64 + 20 * 8)
    assert step < problem.activations / 20


def test_minibatches_that_are_the_same_are_kept_once() -> None:
    problem, solver = Wide(), Unroll(2, SGD(lr=0.1))
    other = Batch(*(value.clone() for value in problem.batch))
    same, different = (problem.peak(solver, [problem.batch, second]) for second in (problem.batch, other))
    assert different - same >= problem.activations


class Token:
    """Lives as long as a node of a graph."""


class Counting(Classifier):
    """Counts the encoder's runs by minibatch, and sees whether its backward pass is itself recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: Counter[int] = Counter()
        self.backward: list[bool] = []
        self.pretrain_calls = 0

    def pretrain_loss(self, pretrained: Any, meta: Params, batch: Batch) -> Tensor:
        self.pretrain_calls += 1
        return super().pretrain_loss(pretrained, meta, batch)

    def pretrain_outputs(self, pretrained: Any, meta: Params, batch: Batch) -> Tensor:
        features = Watched.apply(Classifier.encode(self, pretrained.encoder, batch), [])
        return features @ pretrained.head["weight"].T + pretrained.head["bias"]

    def encode(self, encoder: Params, batch: Batch) -> Tensor:
        self.runs[id(batch)] += 1
        features: Tensor = Watched.apply(super().encode(encoder, batch), self.backward)
        return features

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        loss: Tensor = Watched.apply(super().head_loss(head, features, batch), [])
        return loss


class Watched(torch.autograd.Function):
    """The identity; records whether each backward pass is made with `create_graph`, and which nodes are alive."""

    alive: ClassVar[weakref.WeakSet[Token]] = weakref.WeakSet()

    @staticmethod
    def forward(ctx: Any, value: Tensor, seen: list[bool]) -> Tensor:
        ctx.seen, ctx.token = seen, Token()
        Watched.alive.add(ctx.token)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.seen.append(torch.is_grad_enabled())
        return grad, None


NETWORK = Unroll(4, SGD(lr=0.1), network=True)


@pytest.mark.parametrize(
    "solver", [Unroll(4, Adam(lr=0.1)), FittedHead(), FittedHead(cross_fit=True), NETWORK], ids=str
)
def test_the_encoder_runs_once_a_minibatch_without_a_graph_of_its_backward_pass_or_once_a_step(solver: Any) -> None:
    problem, once = counted(Counting()), solver is not NETWORK
    one, two = classification(500, 6), classification(510, 6)
    call(problem, Neumann(3, 0.1), solver, [one, two, one, VALIDATION])
    assert problem.runs == {id(one): 1 if once else 2, id(two): 1, id(VALIDATION): 1 if once else 2}
    assert not once or problem.backward == [False] * 3
    assert problem.pretrain_calls == 1


@pytest.mark.parametrize(
    "solver", [Unroll(2, Adam(lr=0.1)), Unroll(2, SGD(0.1), network=True), FittedHead(), FittedHead(cross_fit=True)]
)
def test_no_graph_outlives_the_call(solver: Any) -> None:
    problem = Counting()
    probe: Tensor = Watched.apply(torch.ones((), requires_grad=True), [])
    assert len(Watched.alive) == 1
    del probe
    gc.disable()
    try:
        kept = call(problem, Neumann(2, 0.1), solver, [VALIDATION, classification(500, 6)])
        assert len(Watched.alive) == 0
    finally:
        gc.enable()
    assert kept.gradient
