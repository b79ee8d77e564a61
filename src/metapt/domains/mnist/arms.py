"""What the studies of this domain have in common: one arm's settings for the loop, its random streams, its results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metapt.domains.mnist import config
from metapt.errors import ConfigError
from metapt.evaluation import metrics
from metapt.hypergrad import SGD, FittedHead, Unroll
from metapt.hypergrad.finetune import FineTuning
from metapt.training.checkpoint import Checkpoint
from metapt.training.configured import inverse
from metapt.training.diagnosis import Diagnosis
from metapt.training.meta import MetaSettings
from metapt.training.optimizers import OptimizerSpec
from metapt.training.seeds import generator


@dataclass(frozen=True)
class Run:
    """Where and as what an arm runs.

    Attributes:
        experiment: as in the metrics table, "mnist_bptt" for example.
        arm: its name.
        device: of torch.
        threads: CPU threads.
        checkpoint: where the state of the unfinished run is kept; a part's name goes into it, see `resumable`.
        fingerprint: see `Checkpoint`.
        budget_seconds: wall time of the arm that `budget_of` names; None for arms without one.
    """

    experiment: str
    arm: str
    device: str
    threads: int
    checkpoint: Path
    fingerprint: str
    budget_seconds: float | None = None

    def generator(self, *name: str | int) -> torch.Generator:
        """A stream of this experiment. Arms share their streams, so that they differ in what they do only."""
        return generator(self.experiment, *name)

    def resumable(self, part: str = "") -> Checkpoint:
        """The checkpoint of the run, or of a part of it that goes on by itself."""
        path = self.checkpoint.with_name(f"{self.checkpoint.stem}{part}{self.checkpoint.suffix}")
        return Checkpoint(path, self.fingerprint)


@dataclass(frozen=True)
class Results:
    """What an arm leaves: rows of the metrics and of the series table, and checkpoints to remove once these are written."""

    metrics: list[dict[str, Any]]
    series: list[dict[str, Any]]
    checkpoints: list[Checkpoint]


def settings(arm: config.MetaArm, iterations: int) -> MetaSettings:
    """An arm's config as the loop's settings."""
    return MetaSettings(
        iterations=iterations,
        pretrain_steps=arm.pretrain_steps,
        warmup=arm.warmup,
        inverse=inverse(arm.inverse, arm.pretrain_lr),
        finetuning=_finetuning(arm),
        curvature=arm.curvature,
        pretrain_optimizer=OptimizerSpec("Adam", {"lr": arm.pretrain_lr}),
        meta_optimizer=OptimizerSpec(arm.meta_optimizer, {"lr": arm.meta_lr, **arm.meta_settings}, arm.meta_groups),
        head_steps_between_updates=arm.head_steps_between_updates,
        accumulate=arm.accumulate,
        clip_norm=arm.clip_norm,
        normalise=arm.normalise,
        average_decay=arm.average_decay,
        explosion_factor=arm.explosion_factor,
        max_skipped=arm.max_skipped,
    )


def _finetuning(arm: config.MetaArm) -> FineTuning:
    if arm.unroll == "fitted":
        return FittedHead(l2=arm.l2, cross_fit=arm.cross_fit)
    return Unroll(arm.unroll_steps, SGD(arm.finetune_lr), network=arm.unroll == "network")


def sample(size: int, count: int, what: str, generator: torch.Generator) -> Tensor:
    """`count` of `size` examples without replacement, in random order.

    Args:
        what: names the examples in the error.

    Returns:
        indices [count].

    Raises:
        ConfigError: there are fewer.
    """
    if count > size:
        raise ConfigError(f"{count} {what} are asked for, but the data have {size}; lower the sizes, or take source: mnist.")
    return torch.randperm(size, generator=generator)[:count]


def diagnosis_rows(run: Run, diagnosis: Diagnosis, setting: str = "", replicate: int | None = None) -> list[dict[str, Any]]:
    """The figures of a diagnosis as rows of the metrics table, under the evaluation "diagnosis"."""
    return [
        metrics.row(run.experiment, run.arm, name, value, replicate=replicate, setting=setting, evaluation="diagnosis")
        for name, value in diagnosis.figures.items()
    ]
