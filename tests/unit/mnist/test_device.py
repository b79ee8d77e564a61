"""PT, meta-updates and FT of digits on a rehearsed device: the CPU's numbers, and where they wait for the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from metapt.domains.mnist import arms
from metapt.domains.mnist.arms import Run
from metapt.domains.mnist.batches import CLEAN_CLASSES, RotationBatches, WeightingBatches
from metapt.domains.mnist.config import BpttStudy, ExampleWeighting, MnistMeta, RotationMean
from metapt.domains.mnist.data import CLASSES
from metapt.domains.mnist.data.prepare import MnistData, load
from metapt.domains.mnist.experiments.bptt.run import Stages
from metapt.domains.mnist.problem import RotationProblem, WeightingProblem, initial_weights, weighting_network
from metapt.hypergrad import Stacked
from metapt.hypergrad.stacked import stack, stack_pretrained
from metapt.method import ConjugateGradients
from metapt.training.meta import MetaPretraining
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer

SIZES: Any = {"pretrain_examples": 120, "finetune_examples": 80, "batch_size": 20}
WEIGHTING = ExampleWeighting(pretrain_examples=300, classes=50, batch_size=30)
SEEDS = [0, 1]
On = Callable[[str], tuple[MnistData, Run]]
Rehearse = Callable[..., dict[str, int]]


@pytest.fixture
def on(digits_file: Path, run_as: Callable[..., Run]) -> On:
    """Return the function that returns the digits and a run on a device."""
    return lambda device: (load(digits_file, device), replace(run_as("bptt", "meta"), device=device))


def rotation(arm: MnistMeta, on: On, device: str) -> MetaPretraining:
    """Return a loop that learns the mean rotation of two stacked replicates."""
    data, run = on(device)
    batches = RotationBatches(data, RotationMean(**SIZES), (90.0, 1.0), run, SEEDS)
    made = [initial_weights(arm.heads, CLASSES, CLASSES, run.generator("weights", seed), device) for seed in SEEDS]
    pretrained, head = stack_pretrained([each for each, _ in made]), stack([each for _, each in made])
    meta = {"mean": torch.tensor([30.0, 60.0], device=device)}
    return MetaPretraining(Stacked(RotationProblem()), batches, pretrained, meta, head, arms.settings(arm, 9, 6))


def weighted(arm: MnistMeta, on: On, device: str) -> MetaPretraining:
    """Return a loop that learns a CNN which weights PT images."""
    data, run = on(device)
    batches = WeightingBatches(data, WEIGHTING, run, 0)
    pretrained, head = initial_weights(arm.heads, WEIGHTING.classes, CLEAN_CLASSES, run.generator("weights"), device)
    meta = {name: value.to(device) for name, value in weighting_network(run.generator("network")).items()}
    return MetaPretraining(WeightingProblem(), batches, pretrained, meta, head, arms.settings(arm, 9, 6))


@pytest.mark.parametrize("loop", [rotation, weighted])
def test_a_pt_step_waits_nowhere(loop: Any, on: On, rehearse: Rehearse) -> None:
    def plain(device: str) -> Callable[[], Any]:
        start = loop(MnistMeta(), on, device)
        trainer = Pretrainer(start.problem, start.batches, start.pretrained, OptimizerSpec("Adam", {"lr": 0.01}))

        def steps() -> Any:
            for _ in range(3):
                trainer.step(start.meta)
            return trainer.pretrained

        return steps

    assert rehearse(plain) == {}


CONJUGATE = ConjugateGradients(kind="conjugate_gradient", max_steps=3, rtol=1e-6, damping=1e-3)
GAUSS_NEWTON = MnistMeta(curvature="gauss_newton", inverse=CONJUGATE)
NEUMANN = {"hypergrad.inverse: Neumann.__call__": 1}


@pytest.mark.parametrize(
    ("loop", "arm", "waits"),
    [
        (rotation, MnistMeta(), NEUMANN),
        (rotation, GAUSS_NEWTON, {"hypergrad.inverse: ConjugateGradient.__call__": 7}),
        # the hypergradient is 0 there, and its cause is read
        (weighted, MnistMeta(), NEUMANN | {"training.guard: _is_sloped": 1}),
    ],
    ids=["unrolled", "gauss_newton", "weights"],
)
def test_where_a_meta_update_waits(loop: Any, arm: MnistMeta, waits: Any, on: On, rehearse: Rehearse) -> None:
    def updates(device: str) -> Callable[[], Any]:
        made = loop(arm, on, device)

        def update() -> Any:
            made.iterate()
            return made.pretrained, made.meta, made.head, made.averaged_meta

        return update

    places = "hypergrad.finetune: finished", "hypergrad.hybrid: hypergradient"
    assert rehearse(updates) == waits | dict.fromkeys((*places, "training.meta: MetaPretraining._meta_update"), 1)


def test_an_ft_step_waits_nowhere(on: On, rehearse: Rehearse) -> None:
    study = BpttStudy(**SIZES, pretrain_steps=3, finetune_steps=3)

    def stages(device: str) -> Callable[[], Any]:
        data, run = on(device)
        made = Stages(study, run, data, 0)
        return lambda: made.finetune(made.pretrained.encoder)

    assert rehearse(stages) == {}
