"""The loops on a rehearsed device: they add one wait for each meta-update, and read the rest when a run ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from metapt.hypergrad import SGD, Adam, Neumann, Params, Unroll
from metapt.training.meta import MetaPretraining
from metapt.training.meta_settings import MetaSettings
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.recorder import Recorder
from metapt.training.streams import to_device

from ...clock import Clock
from .problems import Batch, Normed, Streams, classification

Rehearse = Callable[..., dict[str, int]]


class Placed(Normed):
    """A problem on a device, with its minibatches."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.pretrained = self.pretrained.to(device)
        self.meta, self.head = ({k: v.to(device) for k, v in part.items()} for part in (self.meta, self.head))
        self.batches = Streams(lambda *key: Batch(*(to_device(value, device) for value in classification(*key))))

    def trainer(self, spec: OptimizerSpec) -> Pretrainer:
        return Pretrainer(self, self.batches, self.pretrained, spec)

    def loop(self, settings: MetaSettings) -> MetaPretraining:
        return MetaPretraining(self, self.batches, self.pretrained, self.meta, self.head, settings)


@pytest.mark.parametrize(
    "spec",
    [
        OptimizerSpec("SGD", {"lr": 0.1, "momentum": 0.9}),
        OptimizerSpec("Adam", {"lr": 0.1, "fused": True}),
        OptimizerSpec("AdamW", {"lr": 0.1}, schedule=lambda made: torch.optim.lr_scheduler.CosineAnnealingLR(made, 9)),
    ],
    ids=["momentum", "fused", "schedule"],
)
def test_a_pt_step_waits_nowhere(spec: OptimizerSpec, rehearse: Rehearse) -> None:
    def plain(device: str) -> Callable[[], Any]:
        problem = Placed(device)
        trainer = problem.trainer(spec)
        return lambda: (trainer.step(problem.meta), trainer.pretrained)

    assert rehearse(plain) == {}


def test_a_pt_run_reads_its_loss_for_the_check_and_the_log_at_its_end_and_every_100th_step(
    rehearse: Rehearse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metapt.training.progress.time", Clock())  # no line of the log is due before the end

    def plain(device: str, steps: int) -> Callable[[], Any]:
        problem = Placed(device)
        trainer = problem.trainer(OptimizerSpec("Adam"))
        return lambda: (trainer.run(problem.meta, steps), trainer.pretrained)

    reads = {"training.pretraining: check_finite": 1, "training.progress: _number": 1}
    assert rehearse(lambda device: plain(device, 20)) == reads
    assert rehearse(lambda device: plain(device, 210))["training.pretraining: check_loss"] == 2


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


@pytest.mark.parametrize("name", SETTINGS)
def test_a_meta_update_waits_once_and_each_of_its_hypergradients_three_times(name: str, rehearse: Rehearse) -> None:
    def updates(device: str) -> Callable[[], Any]:
        loop = Placed(device).loop(SETTINGS[name])
        return lambda: (loop.iterate(), loop.pretrained, loop.meta, loop.head, loop.averaged_meta, loop.loss)

    places = ("hypergrad.finetune: finished", "hypergrad.inverse: Neumann.__call__", "hypergrad.hybrid: hypergradient")
    hypergradients = dict.fromkeys(places, SETTINGS[name].accumulate)
    assert rehearse(updates) == hypergradients | {"training.meta: MetaPretraining._meta_update": 1}


def test_a_step_of_the_head_waits_once_for_its_check(rehearse: Rehearse) -> None:
    settings = MetaSettings(iterations=9, pretrain_steps=4, warmup=8, head_steps_between_updates=1)

    def warmup(device: str) -> Callable[[], Any]:
        loop = Placed(device).loop(settings)
        return lambda: (loop.iterate(), loop.head)

    assert rehearse(warmup) == {"training.meta: MetaPretraining._head_step": 4}


def test_the_reads_of_the_diagnosis_do_not_depend_on_the_number_of_iterations(rehearse: Rehearse) -> None:
    def run(device: str, iterations: int) -> Callable[[], Params]:
        problem = Placed(device)

        def whole() -> Params:
            loop = problem.loop(MetaSettings(iterations=iterations))
            loop.run()
            return loop.meta

        return whole

    few, many = (
        {place: n for place, n in rehearse(lambda device, i=i: run(device, i)).items() if "diagnosis" in place}
        for i in (8, 16)
    )
    assert few == many != {}


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
