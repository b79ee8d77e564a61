"""The run of an arm of any study: its settings, random streams, checkpoints and outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from metapt.domains.mnist.config import ArmSettings, MnistMeta, S
from metapt.domains.mnist.data.prepare import MnistData, load
from metapt.domains.mnist.quantities import WALL_TIME
from metapt.evaluation import metrics
from metapt.hypergrad import SGD
from metapt.machine import Machine
from metapt.method import meta_settings
from metapt.training.checkpoint import Checkpoint
from metapt.training.meta_settings import MetaSettings
from metapt.training.optimizers import OptimizerSpec
from metapt.training.seeds import generator
from metapt.twostage.pretraining import checkpoints


@dataclass(frozen=True)
class Run:
    experiment: str  # as in the metrics table, "mnist_bptt" for example
    arm: str  # its name
    device: str  # of torch
    threads: int  # CPU threads
    resumable: Callable[[str], Checkpoint]  # the name of a part that resumes on its own -> its checkpoint
    budget_seconds: float | None = None  # mean wall time of the arm that `budget_of` names; None for arms without one

    def generator(self, *name: str | int) -> torch.Generator:
        """Return a random stream of this experiment. All arms share its streams."""
        return generator(self.experiment, *name)

    def rows(self, numbers: dict[str, float], **where: Any) -> list[dict[str, Any]]:
        """Return a row of the metrics table for each number by metric; `where`: see `metrics.row`."""
        return metrics.rows_of(self.experiment, self.arm, numbers, **where)


class Outcome(NamedTuple):
    """Rows of the metrics and of the series table, and the checkpoints to remove once these are written."""

    metrics: list[dict[str, Any]]
    series: list[dict[str, Any]]
    checkpoints: list[Checkpoint]


def together(parts: Iterable[Outcome]) -> Outcome:
    """Return the outcome of a run from those of its parts."""
    return Outcome(*(list(chain.from_iterable(lists)) for lists in zip(*parts, strict=True)))


def run_arm(
    settings: ArmSettings[S],
    train: Callable[[S, Run, MnistData], Outcome],
    module: str,
    inputs: dict[str, Path],
    outputs: dict[str, Path],
    machine: Machine,
) -> None:
    """Train an arm of an experiment by `train`, and write its tables; `module` is the `__name__` of the job's module.

    The inputs are `data`, the prepared images, and for an arm with the budget of another `budget`, that arm's metrics.
    The outputs are `metrics` and `series`.
    """
    budget = metrics.read_rows(inputs["budget"]) if "budget" in inputs else None
    run = Run(
        experiment=f"mnist_{settings.experiment}",
        arm=settings.arm,
        device=machine.device,
        threads=machine.threads,
        resumable=checkpoints(settings, inputs, module, machine.device),
        budget_seconds=None if budget is None else fmean(row["value"] for row in budget if row["metric"] == WALL_TIME),
    )
    outcome = train(settings.settings, run, load(inputs["data"], machine.device))
    metrics.write(outcome.metrics, outputs["metrics"])
    metrics.write_series(outcome.series, outputs["series"])
    for checkpoint in outcome.checkpoints:
        checkpoint.remove()


def settings(arm: MnistMeta, iterations: int, steps_per_epoch: int) -> MetaSettings:
    """Return the settings of an arm's meta-PT loop, for a number of meta-iterations and of PT steps per epoch."""
    return meta_settings(
        arm,
        iterations=iterations,
        warmup=arm.warmup(steps_per_epoch),
        pretrain_lr=arm.pretrain_lr,
        pretrain_optimizer=OptimizerSpec("Adam", {"lr": arm.pretrain_lr}),
        finetune_optimizer=SGD(arm.finetune_lr),
        groups=arm.meta_groups,
    )
