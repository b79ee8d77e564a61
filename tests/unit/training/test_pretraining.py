"""PT with given meta-parameters is what any training loop in torch does, and goes on where it was stopped."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from metapt.errors import ConfigError, TrainingError
from metapt.hypergrad import Params, Pretrained
from metapt.training.checkpoint import Checkpoint
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.recorder import Recorder

from .problems import Batch, Classifier, Normed, Stopped, Streams, classification, same

SPEC = OptimizerSpec("Adam", {"lr": 0.05})


def trainer(problem: Any = None, batches: Streams | None = None, spec: OptimizerSpec = SPEC) -> Pretrainer:
    problem = problem or Normed()
    return Pretrainer(problem, batches or Streams(classification), problem.pretrained, spec)


def test_it_is_a_plain_loop_in_torch() -> None:
    problem, batches = Normed(), Streams(classification)
    ours, before = trainer(problem), copy.deepcopy((problem.pretrained, problem.meta))
    meta = {name: value.requires_grad_() for name, value in problem.meta.items()}
    with torch.no_grad():  # it makes no difference
        ours.run(meta, 7)
    assert same(before, (problem.pretrained, meta))
    assert all(value.grad is None for value in meta.values())
    encoder, head = ({k: v.clone().requires_grad_() for k, v in part.items()} for part in problem.pretrained[:2])
    buffers = {name: value.clone() for name, value in problem.pretrained.buffers.items()}
    optimizer = torch.optim.Adam([*encoder.values(), *head.values()], lr=0.05)
    for _ in range(7):
        optimizer.zero_grad()
        loss = problem.pretrain_loss(Pretrained(encoder, head, buffers), problem.meta, batches.pretrain())
        loss.backward()
        optimizer.step()
    assert same(ours.pretrained, Pretrained(encoder, head, buffers))
    assert buffers["1.num_batches_tracked"] == 7


@pytest.mark.parametrize("spec", [SPEC, OptimizerSpec("SGD", {"lr": 0.1, "momentum": 0.9})], ids=["Adam", "momentum"])
def test_a_step_along_the_gradient_of_a_minibatch_is_the_step_on_it(spec: OptimizerSpec) -> None:
    problem = Normed()
    ours, other = trainer(problem, spec=spec), trainer(problem, spec=spec)
    for _ in range(3):
        ours.step(problem.meta)
        leaves = other.pretrained.leaves()
        loss = problem.pretrain_loss(leaves, problem.meta, other.batches.pretrain())
        gradients = iter(torch.autograd.grad(loss, leaves.vector()))
        encoder, head = ({name: next(gradients) for name in part} for part in leaves[:2])
        other.step_along(Pretrained(encoder, head, leaves.buffers))
        assert same(ours.pretrained, other.pretrained)
    ours.step(problem.meta)
    other.step(problem.meta)  # nothing of the given gradient is left
    assert same(ours.pretrained, other.pretrained)


@pytest.mark.parametrize("at", [1, 6])
def test_an_interrupted_run_ends_in_the_same_bits(tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture) -> None:
    def fail(name: str, count: int, generator: torch.Generator) -> Batch:
        if count == at:
            raise Stopped
        return classification(name, count, generator)

    problem = Normed()
    whole = trainer(problem)
    whole.run(problem.meta, 7)
    with pytest.raises(Stopped):
        trainer(problem, Streams(fail)).run(problem.meta, 7, "PT", Checkpoint(tmp_path / "c.pt", "f"), 0)
    again = trainer(problem)
    caplog.set_level("INFO")
    again.run(problem.meta, 7, "this", Checkpoint(tmp_path / "c.pt", "f"))
    assert f"this goes on at step {at}" in caplog.text
    assert same(again.pretrained, whole.pretrained)
    done = trainer(problem)
    done.run(problem.meta, 7, "PT", Checkpoint(tmp_path / "c.pt", "f"))  # nothing left to do
    assert same(done.pretrained, whole.pretrained)
    done.step(problem.meta)
    whole.step(problem.meta)
    assert same(done.pretrained, whole.pretrained)


def test_a_loss_that_is_not_finite_is_an_error_and_is_not_kept(tmp_path: Path) -> None:
    class Diverging(Classifier):
        def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
            return super().pretrain_loss(pretrained, meta, batch) + batch.inputs.sum()

    def batch(name: str, count: int, generator: torch.Generator) -> Batch:
        made = classification(name, count, generator)
        return made._replace(inputs=made.inputs * (torch.inf if count >= 3 else 1))

    problem, checkpoint = Diverging(), Checkpoint(tmp_path / "c.pt", "f")
    with pytest.raises(
        TrainingError, match=r"the PT loss at step 4 is (nan|inf|-inf): .* lower the PT learning rate\."
    ):
        trainer(problem, Streams(batch)).run(problem.meta, 6, "PT", checkpoint, 0)
    saved = checkpoint.load()
    assert saved is not None
    assert saved["step"] == 3
    assert all(weight.isfinite().all() for weight in saved["pretrainer"]["encoder"].values())


class Rooted(Classifier):
    """Adds a square root of 0 to the PT loss: its value is finite, and its derivative is not."""

    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        weight = pretrained.head["weight"]
        return super().pretrain_loss(pretrained, meta, batch) + (weight - weight.detach()).square().sum().sqrt()


def test_weights_that_are_not_finite_end_pt_and_are_not_saved(tmp_path: Path) -> None:
    checkpoint, problem = Checkpoint(tmp_path / "pt", "x"), Rooted()
    with pytest.raises(TrainingError, match="the weights after step 1 are not finite, though the PT loss was: lower"):
        trainer(problem).run(problem.meta, 1, checkpoint=checkpoint)
    assert checkpoint.load() is None


def test_a_checkpoint_of_a_run_with_other_parts_is_refused(tmp_path: Path) -> None:
    checkpoint, problem = Checkpoint(tmp_path / "pt", "x"), Normed()
    trainer(problem).run(problem.meta, 2, checkpoint=checkpoint)
    recorder = Recorder(lambda: {"one": torch.ones(())})
    words = "is a checkpoint of a run with other parts .*: remove it, or give this run another fingerprint"
    with pytest.raises(ConfigError, match=words):
        trainer(problem).run(problem.meta, 4, checkpoint=checkpoint, recorder=recorder)
    with pytest.raises(ConfigError, match=words):
        trainer(Classifier()).run(problem.meta, 4, checkpoint=checkpoint)
