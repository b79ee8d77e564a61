"""A PT job: one arm, one PT seed."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from metapt.domains.noise.config import Fixed, Meta, NoisePretrainSettings
from metapt.domains.noise.problem import BATCH, CODE, FEATURES, USEFUL, Minibatches, NoisyInputs, initial

from metapt.files import reading
from metapt.hypergrad import SGD
from metapt.machine import Machine
from metapt.method import meta_settings
from metapt.training.checkpoint import Checkpoint
from metapt.training.meta import MetaPretraining
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.recorder import Measured
from metapt.twostage.pretraining import PretrainRun, checkpoints, finished, write


def run(settings: NoisePretrainSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Pre-train an arm; `inputs`: `examples`."""
    arm, seed = settings.arm_settings, settings.seed
    with reading(inputs["examples"], "prepare them") as file:
        batches = Minibatches(torch.load(file, map_location=machine.device), seed)
    checkpoint = checkpoints(settings, inputs, __name__, machine.device)("")
    per_epoch = len(batches.examples["x"]) // BATCH
    steps = settings.epochs * per_epoch
    with Measured(machine.device) as measured:
        result = (
            _fixed(arm, batches, steps, seed, checkpoint)
            if isinstance(arm, Fixed)
            else _meta(arm, batches, steps, per_epoch, seed, checkpoint)
        )
    write(finished(result, measured), settings, "", outputs)


def _fixed(arm: Fixed, batches: Minibatches, steps: int, seed: int, checkpoint: Checkpoint) -> PretrainRun:
    trainer = Pretrainer(NoisyInputs(), batches, initial(seed), OptimizerSpec("Adam", {"lr": 0.01}))
    meta = {"noise": torch.full([FEATURES], math.log(arm.share / (1 - arm.share)))}
    trainer.run(meta, steps, "PT", checkpoint)
    return PretrainRun(trainer.pretrained, meta, checkpoints=[checkpoint])


def _meta(
    arm: Meta, batches: Minibatches, steps: int, per_epoch: int, seed: int, checkpoint: Checkpoint
) -> PretrainRun:
    settings = meta_settings(
        arm,
        iterations=steps // arm.pretrain_steps,
        warmup=arm.warmup(per_epoch),
        pretrain_lr=arm.pretrain_lr,
        pretrain_optimizer=OptimizerSpec("Adam", {"lr": arm.pretrain_lr}),
        finetune_optimizer=SGD(arm.finetune_lr),
    )
    start, head = {"noise": torch.zeros(FEATURES)}, {"weight": torch.zeros(CODE)}
    loop = MetaPretraining(NoisyInputs(), batches, initial(seed), start, head, settings)
    loop.run("meta-PT", checkpoint)
    share = torch.sigmoid(loop.averaged_meta["noise"])
    numbers = {
        "noise, useful features": float(share[:USEFUL].mean()),
        "noise, useless features": float(share[USEFUL:].mean()),
    }
    return PretrainRun(loop.pretrained, loop.averaged_meta, numbers, checkpoints=[checkpoint])
