"""PT, meta-updates and FT of digits on a rehearsed device: the CPU's numbers, and where they wait for the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from metapt.domains.mnist import arms, networks
from metapt.domains.mnist.arms import Run
from metapt.domains.mnist.batches import CLEAN_CLASSES, RotationBatches, WeightingBatches
from metapt.domains.mnist.config import BpttStudy, ExampleWeighting, MnistMeta, RotationMean
from metapt.domains.mnist.data import CLASSES
from metapt.domains.mnist.data.prepare import load
from metapt.domains.mnist.experiments.bptt.run import Stages
from metapt.domains.mnist.problem import RotationProblem, WeightingProblem
from metapt.hypergrad import Stacked
from metapt.hypergrad.stacked import stack, stack_pretrained
from metapt.method import ConjugateGradients
from metapt.training.meta import MetaPretraining
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer

Rehearse = Callable[..., dict[str, int]]
Prepare = Callable[[str], Callable[[], Any]]
ROTATION = RotationMean(pretrain_examples=120, finetune_examples=80, batch_size=20)
WEIGHTING = ExampleWeighting(pretrain_examples=300, classes=50, batch_size=30)
SEEDS = [0, 1]
UPDATE = {
    "hypergrad.finetune: finished": 1,
    "hypergrad.hybrid: hypergradient": 1,
    "training.meta: MetaPretraining._meta_update": 1,
}


def rotation(arm: MnistMeta, digits_file: Path, run: Run, device: str) -> MetaPretraining:
    """Return a loop that learns the mean rotation of two stacked replicates."""
    run = replace(run, device=device)
    batches = RotationBatches(load(digits_file, device), ROTATION, (90.0, 1.0), run, SEEDS)
    made = [networks.initial(arm.heads, CLASSES, CLASSES, run.generator("weights", seed), device) for seed in SEEDS]
    pretrained, head = stack_pretrained([each for each, _ in made]), stack([each for _, each in made])
    meta = {"mean": torch.tensor([30.0, 60.0], device=device)}
    return MetaPretraining(Stacked(RotationProblem()), batches, pretrained, meta, head, arms.settings(arm, 9, 6))


def weighted(arm: MnistMeta, digits_file: Path, run: Run, device: str) -> MetaPretraining:
    """Return a loop that learns a CNN which weights PT images."""
    run = replace(run, device=device)
    batches = WeightingBatches(load(digits_file, device), WEIGHTING, run, 0)
    pretrained, head = networks.initial(arm.heads, WEIGHTING.classes, CLEAN_CLASSES, run.generator("weights"), device)
    meta = {name: value.to(device) for name, value in networks.weighting(run.generator("network")).items()}
    return MetaPretraining(WeightingProblem(), batches, pretrained, meta, head, arms.settings(arm, 9, 6))


LOOPS = [rotation, weighted]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_pt_step_waits_nowhere(loop: Any, digits_file: Path, run_as: Callable[..., Run], rehearse: Rehearse) -> None:
    def plain(device: str) -> Callable[[], Any]:
        start = loop(MnistMeta(), digits_file, run_as("rotation_mean"), device)
        trainer = Pretrainer(start.problem, start.batches, start.pretrained, OptimizerSpec("Adam", {"lr": 0.01}))

        def steps() -> Any:
            for _ in range(3):
                trainer.step(start.meta)
            return trainer.pretrained

        return steps

    assert rehearse(plain) == {}


GAUSS_NEWTON = MnistMeta(
    curvature="gauss_newton",
    inverse=ConjugateGradients(kind="conjugate_gradient", max_steps=3, rtol=1e-6, damping=1e-3),
)
UPDATES = {
    "unrolled": (rotation, MnistMeta(), {"hypergrad.inverse: Neumann.__call__": 1}),
    "gauss_newton": (rotation, GAUSS_NEWTON, {"hypergrad.inverse: ConjugateGradient.__call__": 7}),
    # the hypergradient is 0 there, and its cause is read
    "weights": (
        weighted,
        MnistMeta(),
        {"hypergrad.inverse: Neumann.__call__": 1, "training.guard: _why_zero.<locals>.<genexpr>": 1},
    ),
}


@pytest.mark.parametrize("name", UPDATES)
def test_where_a_meta_update_waits(
    name: str, digits_file: Path, run_as: Callable[..., Run], rehearse: Rehearse
) -> None:
    loop, arm, waits = UPDATES[name]

    def updates(device: str) -> Callable[[], Any]:
        made = loop(arm, digits_file, run_as("rotation_mean"), device)

        def update() -> Any:
            made.iterate()
            return made.pretrained, made.meta, made.head, made.averaged_meta

        return update

    assert rehearse(updates) == UPDATE | waits


def test_an_ft_step_waits_nowhere(digits_file: Path, run_as: Callable[..., Run], rehearse: Rehearse) -> None:
    study = BpttStudy(**ROTATION.model_dump(include={"pretrain_examples", "finetune_examples", "batch_size"}))
    study = study.model_copy(update={"pretrain_steps": 3, "finetune_steps": 3})

    def stages(device: str) -> Callable[[], Any]:
        run = replace(run_as("bptt", next(iter(study.arms))), device=device)
        made = Stages(study, run, load(digits_file, device), 0)
        return lambda: made.finetune(made.pretrained.encoder)

    assert rehearse(stages) == {}
