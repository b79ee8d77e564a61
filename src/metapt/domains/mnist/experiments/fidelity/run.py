"""Experiment `fidelity`: the paper's hypergradient of one weight per PT example against the exact one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metapt.domains.mnist import arms
from metapt.domains.mnist.arms import Outcome, Run
from metapt.domains.mnist.batches import sample
from metapt.domains.mnist.config import ArmSettings, Fidelity
from metapt.domains.mnist.data import CLASSES
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.problem import ExampleWeightsProblem, Images, initial_weights
from metapt.domains.mnist.quantities import COSINE, NORM_RATIO
from metapt.hypergrad import SGD, Neumann, Unroll, exact_hypergradient, hypergradient
from metapt.machine import Machine
from metapt.sections import seed_numbers
from metapt.training.progress import steps

_BATCH = 64  # images of an FT training minibatch


def run(settings: ArmSettings[Fidelity], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Compare the hypergradients of an arm; see `arms.run_arm`."""
    arms.run_arm(settings, train, __name__, inputs, outputs, machine)


def train(study: Fidelity, run: Run, data: MnistData) -> Outcome:
    """Measure cosine and norm ratio for each number of PT steps, K, and Neumann terms, over seeds.

    Raises ConfigError if there are fewer images than the study asks for.
    """
    seeds = seed_numbers(study.replicates)
    rows: list[dict[str, Any]] = []
    for place in steps(0, len(seeds), "replicates"):
        for pretrain_steps, unroll_steps in product(study.pretrain_steps, study.unroll_steps):
            rows += _compare(study, run, data, seeds[place], pretrain_steps, unroll_steps)
    return Outcome(rows, [], [])


def _compare(
    study: Fidelity, run: Run, data: MnistData, seed: int, pretrain_steps: int, unroll_steps: int
) -> list[dict[str, Any]]:
    """Return rows with cosine and norm ratio to the exact hypergradient, for each number of Neumann terms."""
    pretrain, train_batches, validation = _data(study, run, data, seed, unroll_steps)
    pretrained, head = initial_weights("separate", CLASSES, CLASSES, run.generator("weights", seed), run.device)
    meta = {"weights": torch.ones(study.examples, device=run.device)}
    network = study.arms[run.arm].unroll == "network"
    problem = ExampleWeightsProblem()
    exact = exact_hypergradient(
        problem,
        pretrained,
        meta,
        head,
        pretrain_batches=[pretrain] * pretrain_steps,
        train_batches=train_batches,
        validation_batches=[validation],
        pretrain_optimizer=SGD(study.pretrain_lr),
        finetune_optimizer=SGD(study.finetune_lr),
        network=network,
    )
    rows: list[dict[str, Any]] = []
    truth = exact.gradient["weights"]
    for terms in study.neumann_terms:
        ours = hypergradient(
            problem,
            exact.pretrained,
            meta,
            head,
            pretrain_batch=pretrain,
            train_batches=train_batches,
            validation_batch=validation,
            inverse=Neumann(terms, study.pretrain_lr),
            finetuning=Unroll(unroll_steps, SGD(study.finetune_lr), network=network),
        ).gradient["weights"]
        cosine = float(torch.nn.functional.cosine_similarity(ours, truth, dim=0))
        numbers = {COSINE: cosine, NORM_RATIO: float(ours.norm() / truth.norm())}
        rows += run.rows(numbers, replicate=seed, setting=study.setting(pretrain_steps, unroll_steps, terms))
    return rows


def _data(
    study: Fidelity, run: Run, data: MnistData, seed: int, unroll_steps: int
) -> tuple[Images, Sequence[Images], Images]:
    """Return all PT images (some with random labels), an FT minibatch per unrolled step, all validation images."""
    count = study.examples + study.finetune_examples
    chosen = sample(len(data.train_labels), count, "PT and FT images", run.generator("images", seed))
    generator = run.generator("label noise", seed)
    labels = data.train_labels.cpu()[chosen]
    noisy = torch.rand(study.examples, generator=generator) < study.noisy_fraction
    random_labels = torch.randint(CLASSES, (study.examples,), generator=generator)
    labels[: study.examples] = torch.where(noisy, random_labels, labels[: study.examples])
    half = study.finetune_examples // 2

    def images(indices: Tensor) -> Images:
        return Images(data.train_images[chosen[indices].to(run.device)], labels[indices].to(run.device))

    finetune = study.examples + torch.arange(study.finetune_examples)
    drawn = torch.randint(half, (unroll_steps, min(_BATCH, half)), generator=run.generator("train", seed))
    train = [images(finetune[:half][indices]) for indices in drawn]
    return images(torch.arange(study.examples)), train, images(finetune[half:])
