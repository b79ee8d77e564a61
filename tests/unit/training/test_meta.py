"""The loop is Algorithm 2, number by number, with all its options, and resumes."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.hypergrad import SGD, Adam, Neumann, Params, Pretrained, Unroll
from metapt.training.checkpoint import Checkpoint
from metapt.training.meta import MetaPretraining
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer

from . import problems
from .problems import DTYPE, Batch, Classifier, Normed, OwnStreams, Streams, classification, copied, same

HEAD_LR, STEP_SIZE, UNROLL_STEPS = 0.3, 0.05, 2


def ft_loss(problem: Any, head: Params, network: Params, batch: Batch) -> Tensor:
    loss: Tensor = problem.head_loss(head, problem.encode(network, batch), batch)
    return loss


def hypergradient_by_hand(
    problem: Any, pretrained: Pretrained, meta: Params, head: Params, batches: Streams
) -> tuple[list[Tensor], Params]:
    """Return -g2 (I + (I - a H)) a d2L/(dw dphi), g2 through two SGD steps on the head, and the head after them."""
    encoder, pretrain_head, phi, psi = (copied(part) for part in (pretrained.encoder, pretrained.head, meta, head))
    buffers = {name: value.clone() for name, value in pretrained.buffers.items()}  # those of the run stay as they are
    network, pretrain_batch = {**encoder, **buffers}, batches.pretrain()
    for batch in [batches.train() for _ in range(UNROLL_STEPS)]:
        slopes = torch.autograd.grad(ft_loss(problem, psi, network, batch), list(psi.values()), create_graph=True)
        psi = {name: value - HEAD_LR * slope for (name, value), slope in zip(psi.items(), slopes, strict=True)}
    g2 = torch.autograd.grad(ft_loss(problem, psi, network, batches.validation()), list(encoder.values()))
    v = [*g2, *(torch.zeros_like(value) for value in pretrain_head.values())]
    weights = [*encoder.values(), *pretrain_head.values()]
    loss = problem.pretrain_loss(Pretrained(encoder, pretrain_head, buffers), phi, pretrain_batch)
    gradient = torch.autograd.grad(loss, weights, create_graph=True)
    curved = torch.autograd.grad(gradient, weights, v, retain_graph=True)
    solved = [STEP_SIZE * (2 * a - STEP_SIZE * b) for a, b in zip(v, curved, strict=True)]
    mixed = torch.autograd.grad(gradient, list(phi.values()), solved)
    return [-value for value in mixed], {name: value.detach() for name, value in psi.items()}


def algorithm_2(
    problem: Any,
    *,
    N: int,
    P: int,
    warmup: int = 0,
    head_steps: int = 0,
    accumulate: int = 1,
    clip: float | None = None,
    normalise: bool = False,
    decay: float | None = None,
    meta_optimizer: Any = lambda phi: torch.optim.Adam(phi.values(), lr=0.1),
) -> dict[str, Params]:
    """The appendix's algorithm, line by line; the options where the loop has them."""
    batches = Streams(classification)
    encoder, pretrain_head, phi, psi = (
        copied(part) for part in (problem.pretrained.encoder, problem.pretrained.head, problem.meta, problem.head)
    )
    buffers = {name: value.clone() for name, value in problem.pretrained.buffers.items()}
    average = {name: value.detach().clone() for name, value in phi.items()}
    pretrain_optimizer = torch.optim.Adam([*encoder.values(), *pretrain_head.values()], lr=0.05)
    stepper = meta_optimizer(phi)
    for n in range(N):
        for p in range(P):
            pretrain_optimizer.zero_grad()
            problem.pretrain_loss(Pretrained(encoder, pretrain_head, buffers), phi, batches.pretrain()).backward()
            pretrain_optimizer.step()
            if n < warmup or p < P - 1:
                for _ in range(head_steps):
                    psi = copied(psi)
                    ft_loss(problem, psi, {**encoder, **buffers}, batches.train()).backward()
                    psi = {name: value.detach() - HEAD_LR * value.grad for name, value in psi.items()}
        if n < warmup:
            continue
        total = [torch.zeros_like(value) for value in phi.values()]
        for _ in range(accumulate):
            pretrained = Pretrained(encoder, pretrain_head, buffers)
            gradient, psi = hypergradient_by_hand(problem, pretrained, phi, psi, batches)
            total = [a + b / accumulate for a, b in zip(total, gradient, strict=True)]
        length = torch.cat([value.reshape(-1) for value in total]).norm()
        if normalise:
            total, length = [value / length for value in total], torch.ones((), dtype=DTYPE)
        if clip is not None and length > clip:
            total = [value * clip / length for value in total]
        for value, gradient in zip(phi.values(), total, strict=True):
            value.grad = gradient
        stepper.step()
        if decay is not None:
            average = {name: decay * average[name] + (1 - decay) * phi[name].detach() for name in phi}
        else:
            average = {name: value.detach().clone() for name, value in phi.items()}
    parts = {"meta": phi, "head": psi, "average": average}
    return {"encoder": encoder, "pretrain_head": pretrain_head, "buffers": buffers} | parts


def state(loop: MetaPretraining) -> dict[str, Params]:
    parts = {"meta": loop.meta, "head": loop.head, "average": loop.averaged_meta}
    return dict(zip(("encoder", "pretrain_head", "buffers"), loop.pretrained, strict=True)) | parts


FIELDS: dict[str, Any] = {
    "iterations": 6,
    "pretrain_steps": 2,
    "inverse": Neumann(1, STEP_SIZE),
    "finetuning": Unroll(UNROLL_STEPS, SGD(HEAD_LR)),
    "pretrain_optimizer": OptimizerSpec("Adam", {"lr": 0.05}),
    "meta_optimizer": OptimizerSpec("Adam", {"lr": 0.1}),
}


def made(problem: Any, batches: Any = None, **changes: Any) -> MetaPretraining:
    return problems.loop_of(problem, batches, **FIELDS | changes)


def test_without_a_decay_the_average_is_the_present_value_also_where_it_was_changed_in_place() -> None:
    loop = made(Classifier())
    loop.run()
    with torch.no_grad():
        for value in loop.meta.values():
            value.clamp_(0, 0.1)
    assert same(loop.averaged_meta, loop.meta)


def test_the_pt_steps_that_fill_no_iteration_follow_the_last_one(tmp_path: Path) -> None:
    problem = Classifier()
    loop, exact, halted = made(problem, remainder=3), made(problem), made(problem, remainder=3)
    for each in (loop, exact):
        each.run()
    assert same(exact.meta, loop.meta), "phi is learned in iterations only"
    assert loop.steps_taken == 6 * 2 + 3
    for _ in range(3):
        exact._pretrain_step()
    assert same(exact.pretrained, loop.pretrained)

    checkpoint = Checkpoint(tmp_path / "state.pt", "here")
    for _ in range(5):
        halted.iterate()
    checkpoint.save({"loop": halted.state_dict(), "recorder": {}, "settings": halted._described()})
    for left in (2 + 3, 0):
        resumed = made(problem, remainder=3)
        resumed.run(checkpoint=checkpoint)
        assert same(resumed.pretrained, loop.pretrained)
        assert resumed.steps_taken == left


def grouped(phi: Params) -> torch.optim.Optimizer:
    groups = [{"params": [phi["ridge"]], "lr": 0.5, "momentum": 0.0}, {"params": [phi["weights"]]}]
    return torch.optim.SGD(groups, lr=2.0, momentum=0.9)


GROUPED = OptimizerSpec("SGD", {"lr": 2.0, "momentum": 0.9}, {"rid*": {"lr": 0.5, "momentum": 0.0}})
WARM = {"warmup": 2, "pretrain_steps": 3, "head_steps_between_updates": 1}, {"warmup": 2, "P": 3, "head_steps": 1}
CLIPPED = {"clip_norm": 0.003, "meta_optimizer": GROUPED}  # Adam's step would not depend on the scale
LONG = {"normalise": True, "clip_norm": 3.0, "meta_optimizer": GROUPED}
ALL = {"accumulate": 2, "normalise": True, "warmup": 1}


ALGORITHMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "P is 1": ({"pretrain_steps": 1}, {"P": 1}),
    "warm-up and head steps between updates": WARM,
    "mean of 3 hypergradients": ({"accumulate": 3}, {"accumulate": 3}),
    "SGD with groups, clipped": (CLIPPED, {"clip": 0.003, "meta_optimizer": grouped}),
    "normalised, too short to be clipped": (LONG, {"normalise": True, "clip": 3.0, "meta_optimizer": grouped}),
    "all": (ALL | {"clip_norm": 0.3, "average_decay": 0.7}, ALL | {"clip": 0.3, "decay": 0.7}),
}


@pytest.mark.parametrize(("changes", "by_hand"), ALGORITHMS.values(), ids=ALGORITHMS)
def test_the_loop_is_algorithm_2(changes: dict[str, Any], by_hand: dict[str, Any]) -> None:
    loop = made(Normed(), **changes)
    loop.run()
    expected = algorithm_2(Normed(), **({"N": 6, "P": 2} | by_hand))
    for part, params in state(loop).items():
        torch.testing.assert_close(params, {k: v.detach() for k, v in expected[part].items()}, rtol=1e-10, atol=1e-12)


def test_the_state_of_the_heads_optimiser_goes_on_from_update_to_update() -> None:
    loop = made(Classifier(), finetuning=Unroll(2, Adam(0.1)), head_steps_between_updates=1, iterations=3)
    loop.run()
    assert loop.head_state["step"] == 3 * (1 + 2)


@pytest.mark.parametrize("used", [True, False], ids=["part of the head", "none of the head"])
def test_a_step_of_the_head_leaves_what_its_loss_does_not_use(used: bool) -> None:
    class Headless(Classifier):
        def head_loss(self, head: Params, features: Tensor, batch: Any) -> Tensor:
            return F.cross_entropy(features, batch.targets)

    problem = Classifier() if used else Headless()
    problem.head = {**problem.head, "spare": torch.ones(2, dtype=DTYPE)} if used else {}
    loop = made(problem, finetuning=Unroll(1), head_steps_between_updates=1)
    loop.run()
    assert not used or torch.equal(loop.head["spare"], torch.ones(2, dtype=DTYPE))
    assert not torch.equal(loop.meta["weights"], problem.meta["weights"])


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("pretrain_steps", [1, 3])
def test_a_reused_gradient_is_that_of_the_last_hypergradients_minibatch(accumulate: int, pretrain_steps: int) -> None:
    """The first PT step after a meta-update is Adam's along the PT gradient at that minibatch before the update."""
    problem, batches = Normed(), Streams(classification)
    loop = made(problem, reuse_gradient=True, accumulate=accumulate, pretrain_steps=pretrain_steps)
    encoder, head = (copied(part) for part in problem.pretrained[:2])
    buffers = {name: value.clone() for name, value in problem.pretrained.buffers.items()}
    optimizer = torch.optim.Adam([*encoder.values(), *head.values()], lr=0.05)
    spare: tuple[Params, Any] | None = None
    for _ in range(4):
        for _ in range(pretrain_steps):
            phi, batch = spare or (copied(loop.meta), batches.pretrain())
            spare = None
            optimizer.zero_grad()
            problem.pretrain_loss(Pretrained(encoder, head, buffers), phi, batch).backward()
            optimizer.step()
        # The hypergradients' minibatches come next, and the last of them is what is left.
        spare = copied(loop.meta), [batches.pretrain() for _ in range(accumulate)][-1]
        loop.iterate()
        for ours, theirs in zip(loop.pretrained, (encoder, head, buffers), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert loop.batches.counts["pretrain"] == 4 * (pretrain_steps - 1 + accumulate) + 1  # one less each time


class WithUnused(Classifier):
    """Has a parameter that the PT loss does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.pretrained.encoder["unused"] = problems.draw(8, 2)

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        used = {name: value for name, value in pretrained.encoder.items() if name != "unused"}
        return super().pretrain_loss(pretrained._replace(encoder=used), meta, batch)


def test_a_reused_gradient_moves_no_parameter_that_the_pt_loss_does_not_use() -> None:
    """A gradient of zeros would let weight decay move it, and a plain PT step leaves it alone."""
    problem = WithUnused()
    decaying = OptimizerSpec("AdamW", {"lr": 0.05, "weight_decay": 0.5})
    for reuse in (False, True):
        loop = made(problem, reuse_gradient=reuse, pretrain_optimizer=decaying)
        loop.run()
        assert torch.equal(loop.pretrained.encoder["unused"], problem.pretrained.encoder["unused"])
        assert not torch.equal(loop.pretrained.encoder["weight"], problem.pretrained.encoder["weight"])


def test_the_loop_under_no_grad_is_the_same() -> None:
    ours, other = (made(problem, head_steps_between_updates=1, iterations=2) for problem in (Normed(), Normed()))
    ours.run()
    with torch.no_grad():
        other.run()
    assert same(state(ours), state(other))


def test_meta_parameters_may_have_different_dtypes() -> None:
    problem = Classifier()
    problem.meta["ridge"] = problem.meta["ridge"].reshape(()).float()
    loop = made(problem, normalise=True, clip_norm=0.1)
    loop.run()
    assert {value.dtype for value in loop.meta.values()} == {torch.float32, torch.float64}


OPTIONS = [
    {},
    {"pretrain_steps": 1},
    {"reuse_gradient": True, "pretrain_steps": 1, "accumulate": 2},
    {"warmup": 5},
    {"finetuning": Unroll(3, SGD(0.1), network=True)},
    {"finetuning": Unroll(1, Adam(0.1)), "head_steps_between_updates": 2, "pretrain_steps": 3},
    {"finetuning": Unroll(1), "head_steps_between_updates": 1, "warmup": 1, "reuse_gradient": True, "accumulate": 2},
]


@pytest.mark.parametrize("resumed", [False, True], ids=["at once", "resumed"])
@pytest.mark.parametrize("changes", OPTIONS, ids=str)
def test_pt_steps_see_the_minibatches_of_plain_pt_to_the_end(changes: dict[str, Any], resumed: bool) -> None:
    problem = problems.Telling()
    step = OptimizerSpec("SGD", {"lr": 1.0})
    changes = {"finetuning": Unroll(1), "pretrain_optimizer": step} | changes
    plain = Pretrainer(problem, OwnStreams(problems.number), problem.pretrained, step)
    loop = made(problem, OwnStreams(problems.number), **changes)
    chosen = loop.settings
    for _ in range(chosen.iterations):
        if resumed:
            state, loop = copy.deepcopy(loop.state_dict()), made(problem, OwnStreams(problems.number), **changes)
            loop.load_state_dict(state)
        loop.iterate()
        for _ in range(chosen.pretrain_steps):
            plain.step(problem.meta)
        assert torch.equal(loop.pretrained.encoder["w"][0], plain.pretrained.encoder["w"][0])
    updates = chosen.iterations - chosen.warmup
    own = chosen.accumulate - chosen.reuse_gradient  # hypergradients of a meta-update that no PT step follows along
    assert loop.batches.counts["hypergradient"] == updates * own
    assert loop.batches.counts["pretrain"] == chosen.iterations * chosen.pretrain_steps + chosen.reuse_gradient


RESUMED: dict[str, dict[str, Any]] = {
    "Adam, averaged": {"average_decay": 0.9, "warmup": 1, "accumulate": 2},
    "SGD with groups, RMSprop": {"meta_optimizer": GROUPED, "pretrain_optimizer": OptimizerSpec("RMSprop")},
    "Adam on the head": {"finetuning": Unroll(1, Adam(0.1)), "head_steps_between_updates": 1},
    "reused gradients alone": {"reuse_gradient": True, "pretrain_steps": 1, "accumulate": 2},
}


@pytest.mark.parametrize("changes", RESUMED.values(), ids=RESUMED)
def test_a_saved_and_loaded_loop_goes_on_to_the_same_bits(changes: dict[str, Any]) -> None:
    problem = Normed()
    whole, stopped = (made(problem, iterations=4, **changes) for _ in range(2))
    whole.run()
    for iteration in range(4):
        stopped.iterate()
        torch.save(stopped.state_dict(), file := io.BytesIO())
        saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        other, stopped = (made(problem, iterations=4, **changes) for _ in range(2))
        for each in (other, stopped):  # a state can be loaded twice: no loop goes on with its tensors
            each.load_state_dict(saved)
        if iteration == 2:
            other.iterate()
    assert same(whole.state_dict(), stopped.state_dict())
