"""PT is what any training loop in torch does, what is not finite ends it, and replay takes its exact derivatives."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from metapt.errors import ConfigError, TrainingError
from metapt.hypergrad import SGD, Adam, Params, Pretrained, Unroll
from metapt.hypergrad.params import joined, parted
from metapt.training import replay
from metapt.training.batches import StreamBatches
from metapt.training.checkpoint import Checkpoint
from metapt.training.loaders import LoaderBatches
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.recorder import Recorder
from metapt.training.streams import ShuffledStream

from ..hypergrad.problems import exact, trained
from .problems import Batch, Classifier, Normed, OwnStreams, Streams, classification, same

SPEC = OptimizerSpec("Adam", {"lr": 0.05})


def trainer(problem: Any = None, batches: Streams | None = None) -> Pretrainer:
    problem = problem or Normed()
    return Pretrainer(problem, batches or Streams(classification), problem.pretrained, SPEC)


def test_it_is_a_plain_loop_in_torch() -> None:
    problem, batches = Normed(), Streams(classification)
    ours, before = trainer(problem), copy.deepcopy((problem.pretrained, problem.meta))
    meta = {name: value.requires_grad_() for name, value in problem.meta.items()}
    with torch.no_grad():  # it makes no difference
        ours.run(meta, 7)
    assert same(before, (problem.pretrained, meta))
    assert all(value.grad is None for value in meta.values())
    plain = trained(problem, problem.meta, [batches.pretrain() for _ in range(7)], lambda p: torch.optim.Adam(p, 0.05))
    assert same(ours.pretrained, plain)
    assert plain.buffers["1.num_batches_tracked"] == 7


class Rooted(Classifier):
    """Adds a square root of 0 to the PT loss: its value is finite, and its derivative is not."""

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        weight = pretrained.head["weight"]
        return super().pretrain_loss(pretrained, meta, batch) + (weight - weight.detach()).square().sum().sqrt()


LOSS = r"the PT loss at step 4 is nan: .* lower the PT learning rate\."
WEIGHTS = "the weights after step 1 are not finite, though the PT loss was: lower"


@pytest.mark.parametrize(("problem", "sentence", "step"), [(Classifier(), LOSS, 3), (Rooted(), WEIGHTS, None)])
def test_what_is_not_finite_is_an_error_and_is_not_kept(problem: Any, sentence: str, step: Any, tmp_path: Path) -> None:
    def batch(name: str, count: int, generator: torch.Generator) -> Batch:
        made = classification(name, count, generator)
        return made._replace(inputs=made.inputs * (torch.nan if count >= 3 else 1))

    checkpoint = Checkpoint(tmp_path / "c.pt", "f")
    with pytest.raises(TrainingError, match=sentence):
        trainer(problem, Streams(batch)).run(problem.meta, 6, "PT", checkpoint, 0)
    saved = checkpoint.load()
    assert (saved and saved["step"]) == step
    assert not saved or all(weight.isfinite().all() for weight in saved["pretrainer"]["encoder"].values())


def test_a_checkpoint_of_a_run_with_other_parts_is_refused(tmp_path: Path) -> None:
    checkpoint, problem = Checkpoint(tmp_path / "pt", "x"), Normed()
    trainer(problem).run(problem.meta, 2, checkpoint=checkpoint)
    recorder = Recorder(lambda: {"one": torch.ones(())})
    words = "is a checkpoint of a run with other parts .*: remove it, or give this run another fingerprint"
    with pytest.raises(ConfigError, match=words):
        trainer(problem).run(problem.meta, 4, checkpoint=checkpoint, recorder=recorder)
    with pytest.raises(ConfigError, match=words):
        trainer(Classifier()).run(problem.meta, 4, checkpoint=checkpoint)


@pytest.mark.parametrize("error", [RuntimeError("connection timed out"), ValueError("connection timed out")])
def test_an_error_of_the_loader_of_a_resumed_run_is_the_loaders(error: Exception, tmp_path: Path) -> None:
    checkpoint, problem = Checkpoint(tmp_path / "pt", "x"), Normed()
    trainer(problem).run(problem.meta, 2, checkpoint=checkpoint)
    again = trainer(problem)
    error.add_note("none, since the loader failed")
    again.batches.load_state_dict = Mock(side_effect=error)  # type: ignore[method-assign]
    with pytest.raises(type(error), match=r"^connection timed out\n"):
        again.run(problem.meta, 4, checkpoint=checkpoint)


def streams(*names: str) -> Any:
    return StreamBatches({name: ShuffledStream(4, 2, [torch.Generator()]) for name in names})


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (streams("pt"), streams("pt", "ft"), "of pt, and these are of pt, ft"),
        (streams("pt", "ft"), streams("pt"), "of pt, ft, and these are of pt"),
        (streams("pt"), StreamBatches({}, {"views": torch.Generator()}), "of pt, and these are of views"),
        (streams("pt"), LoaderBatches(pretrain=[0], train=[0], validation=[0]), "of pt, and these are of seed, pretra"),
        (OwnStreams(classification), Streams(classification), "KeyError: 'hypergradient'"),
    ],
)
def test_the_state_of_other_minibatches_is_refused(was: Any, now: Any, words: str) -> None:
    ours = trainer(batches=now)
    with pytest.raises(ConfigError, match=f"the run to be resumed had .*{words}.*; give it the old ones"):
        ours.load_state_dict(ours.state_dict() | {"batches": [was.state_dict()]})


# Exact derivatives by replay, against the graph of the whole run, finite differences and torch's optimisers


STEPS = 11


def ended(problem: Any, optimizer: Any, steps: int = STEPS) -> tuple[replay.Replay, Pretrained]:
    run = replay.pretraining(problem, Streams(classification), problem.pretrained, optimizer)
    weights = run.run(problem.meta, steps)
    return run, parted(weights, problem.pretrained, run.buffers)


def encoder_gradient(problem: Any, pretrained: Pretrained) -> Params:
    """The derivative of the loss on a validation minibatch w.r.t. the encoder, with the initial FT head."""
    validation = Streams(classification).validation()
    tuned = Unroll(0)(problem, pretrained.encoder, pretrained.buffers, problem.head, None, [], validation)
    return joined(tuned.encoder_gradient, {})


@pytest.mark.parametrize("problem", [Classifier(), Normed()], ids=["plain", "BatchNorm"])
@pytest.mark.parametrize(
    ("optimizer", "horizon"),
    [
        *((optimizer, STEPS) for optimizer in (SGD(lr=0.3), SGD(lr=0.2, momentum=0.8), Adam(lr=0.05, eps=1e-3))),
        *((SGD(lr=0.3), horizon) for horizon in (1, 4)),
    ],
    ids=str,
)
def test_it_is_the_exact_hypergradient_through_the_last_steps(problem: Any, optimizer: Any, horizon: int) -> None:
    """Through all steps, or, with an optimiser that begins anew, through the last ones from the weights before them."""
    run, pretrained = ended(problem, optimizer)
    ((_, found, _),) = run.derivatives(encoder_gradient(problem, pretrained), [horizon])
    streams = Streams(classification)
    first = replay.pretraining(problem, streams, problem.pretrained, optimizer)
    before = parted(first.run(problem.meta, STEPS - horizon), problem.pretrained, first.buffers)
    rest = exact(
        problem,
        pretrained=before,
        pretrain_batches=[streams.pretrain() for _ in range(horizon)],
        train_batches=[],
        validation_batches=[streams.validation()],
        pretrain_optimizer=optimizer,
    )
    for name, value in rest.gradient.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)


def test_the_derivative_with_respect_to_the_first_weights_is_a_finite_difference() -> None:
    problem, optimizer = Classifier(), Adam(lr=0.05, eps=1e-3)
    run, pretrained = ended(problem, optimizer)
    cotangent = encoder_gradient(problem, pretrained)
    ((_, _, first),) = run.derivatives(cotangent, [STEPS])

    def projected(shift: float) -> float:
        encoder = {**problem.pretrained.encoder, "bias": problem.pretrained.encoder["bias"] + shift}
        shifted = problem.pretrained._replace(encoder=encoder)
        weights = replay.pretraining(problem, Streams(classification), shifted, optimizer).run(problem.meta, STEPS)
        return float(sum((value * weights[name]).sum() for name, value in cotangent.items()))

    step = 1e-5
    slope = (projected(step) - projected(-step)) / (2 * step)
    assert float(first["encoder.bias"].sum()) == pytest.approx(slope, rel=1e-6)


def test_horizons_outside_of_the_run_and_another_run_are_errors() -> None:
    run, _ = ended(Classifier(), SGD(lr=0.3))
    for horizons in ([0], [STEPS + 1], []):
        with pytest.raises(ValueError, match=f"legal: one or more from 1 to {STEPS}"):
            list(run.derivatives({}, horizons))
    with pytest.raises(ValueError, match="make another one"):
        run.run({}, 1)


def test_a_segment_of_minibatches_is_drawn_at_a_time_and_at_the_end_all_is_as_after_the_run() -> None:
    problem, drawn = Classifier(), []

    class Counted(Streams):
        def pretrain(self) -> Any:
            drawn.append(self.counts["pretrain"])
            return super().pretrain()

    batches = Counted(classification)
    run = replay.pretraining(problem, batches, problem.pretrained, SGD(lr=0.3))
    weights = copy.deepcopy(run.run(problem.meta, 16))
    assert drawn == list(range(16))
    drawn.clear()
    list(run.derivatives({}, [6]))
    assert drawn == [12, 13, 14, 15, 8, 9, 10, 11]
    assert batches.counts["pretrain"] == 16
    assert same(run.weights, weights)
