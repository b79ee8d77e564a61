"""The loops on a rehearsed device: they add one wait for each meta-update, and read the rest when a run ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from metapt.hypergrad import SGD, Adam, Neumann, Params, Pretrained, Unroll
from metapt.training.meta import MetaPretraining
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.recorder import Recorder
from metapt.training.settings import MetaSettings
from metapt.training.streams import to_device

from .problems import Batch, Normed, Streams, classification

Rehearse = Callable[..., dict[str, int]]


class Placed(Normed):
    """A problem on a device, with its minibatches."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.pretrained = self.pretrained.to(device)
        self.meta, self.head = ({k: v.to(device) for k, v in part.items()} for part in (self.meta, self.head))
        self.batches = Streams(lambda *key: Batch(*(to_device(value, device) for value in classification(*key))))


@pytest.mark.parametrize(
    "spec",
    [
        OptimizerSpec("SGD", {"lr": 0.1, "momentum": 0.9}),
        OptimizerSpec("Adam", {"lr": 0.1}),
        OptimizerSpec("Adam", {"lr": 0.1, "fused": True}),
        OptimizerSpec("AdamW", {"lr": 0.1}, schedule=lambda made: torch.optim.lr_scheduler.CosineAnnealingLR(made, 9)),
    ],
    ids=["momentum", "Adam", "fused", "schedule"],
)
def test_a_pt_step_waits_nowhere(spec: OptimizerSpec, rehearse: Rehearse) -> None:
    def plain(device: str) -> Callable[[], Pretrained]:
        problem = Placed(device)
        trainer = Pretrainer(problem, problem.batches, problem.pretrained, spec)

        def step() -> Pretrained:
            trainer.step(problem.meta)
            return trainer.pretrained

        return step

    assert rehearse(plain) == {}


def test_a_pt_run_reads_its_loss_for_the_check_and_the_log_at_its_end(rehearse: Rehearse) -> None:
    def plain(device: str) -> Callable[[], Pretrained]:
        problem = Placed(device)
        trainer = Pretrainer(problem, problem.batches, problem.pretrained, OptimizerSpec("Adam"))

        def run() -> Pretrained:
            trainer.run(problem.meta, 20)
            return trainer.pretrained

        return run

    assert rehearse(plain) == {"training.pretraining: check_finite": 1, "training.progress: _number": 1}


SETTINGS = {
    "the paper's": MetaSettings(iterations=9, pretrain_steps=2, finetuning=Unroll(2, SGD(0.3))),
    "all options": MetaSettings(
        iterations=9,
        pretrain_steps=2,
        inverse=Neumann(3, 0.05),
        finetuning=Unroll(1, Adam(0.1), network=True),
        curvature="hessian",
        accumulate=2,
        clip_norm=1.0,
        normalise=True,
        average_decay=0.5,
        reuse_gradient=True,
    ),
}


def test_a_pt_run_reads_its_loss_at_every_100th_step(rehearse: Rehearse) -> None:
    def plain(device: str) -> Callable[[], Pretrained]:
        problem = Placed(device)
        trainer = Pretrainer(problem, problem.batches, problem.pretrained, OptimizerSpec("Adam"))

        def run() -> Pretrained:
            trainer.run(problem.meta, 210)
            return trainer.pretrained

        return run

    assert rehearse(plain)["training.pretraining: check_loss"] == 2


@pytest.mark.parametrize("name", SETTINGS)
def test_a_meta_update_waits_once_and_each_of_its_hypergradients_three_times(name: str, rehearse: Rehearse) -> None:
    settings = SETTINGS[name]

    def updates(device: str) -> Callable[[], Any]:
        problem = Placed(device)
        loop = MetaPretraining(problem, problem.batches, problem.pretrained, problem.meta, problem.head, settings)

        def update() -> Any:
            loop.iterate()
            return loop.pretrained, loop.meta, loop.head, loop.averaged_meta, loop.loss

        return update

    places = ("hypergrad.finetune: finished", "hypergrad.inverse: Neumann.__call__", "hypergrad.hybrid: hypergradient")
    hypergradients = dict.fromkeys(places, settings.accumulate)
    assert rehearse(updates) == hypergradients | {"training.meta: MetaPretraining._meta_update": 1}


def test_a_step_of_the_head_waits_once_for_its_check(rehearse: Rehearse) -> None:
    settings = MetaSettings(iterations=9, pretrain_steps=4, warmup=8, head_steps_between_updates=1)

    def warmup(device: str) -> Callable[[], Params]:
        problem = Placed(device)
        loop = MetaPretraining(problem, problem.batches, problem.pretrained, problem.meta, problem.head, settings)

        def iteration() -> Params:
            loop.iterate()
            return loop.head

        return iteration

    assert rehearse(warmup) == {"training.meta: MetaPretraining._head_step": 4}


def test_a_run_reads_losses_and_phi_for_its_diagnosis_once(rehearse: Rehearse) -> None:
    """The number of reads in the diagnosis does not depend on the number of iterations."""

    def reads(iterations: int) -> dict[str, int]:
        settings = MetaSettings(iterations=iterations)

        def run(device: str) -> Callable[[], Params]:
            problem = Placed(device)

            def whole() -> Params:
                loop = MetaPretraining(
                    problem, problem.batches, problem.pretrained, problem.meta, problem.head, settings
                )
                loop.run()
                return loop.meta

            return whole

        waits = rehearse(run)
        return {place: count for place, count in waits.items() if place.startswith("training.diagnosis")}

    assert reads(8) == reads(16)


def test_a_recorder_copies_each_value(rehearse: Rehearse) -> None:
    def observed(device: str) -> Callable[[], None]:
        values = {name: torch.ones(3).to(device) for name in ("first", "second")}
        recorder = Recorder(lambda: values, every=2)
        steps = iter(range(100))

        def four() -> None:
            for _ in range(4):
                recorder(next(steps))

        return four

    assert rehearse(observed) == {"training.recorder: Recorder.__call__.<locals>.<dictcomp>": 4}
