"""Pre-training of each arm: from random weights to an encoder and, for some arms, learned task weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from metapt.domains.ppi import config
from metapt.domains.ppi.cotraining import CoTrainBatches, CoTrainer, CoTrainProblem
from metapt.domains.ppi.pretraining_setting import PpiSetting
from metapt.domains.ppi.problem import WEIGHTS, MultitaskProblem, PpiBatches, task_weights
from metapt.domains.ppi.stages import QUANTILES
from metapt.errors import ConfigError
from metapt.hypergrad import Adam, Neumann, Params, Pretrained, Unroll
from metapt.hypergrad.params import detached
from metapt.method import meta_settings, warmup_iterations, whole_iterations
from metapt.training.meta import MetaPretraining
from metapt.training.meta_settings import MetaSettings
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.recorder import Measured, Recorder
from metapt.training.seeds import generator
from metapt.twostage.heads import encoder_of, head_of, whole
from metapt.twostage.pretraining import PretrainRun, finished


def pretrain(arm: config.Arm, setting: PpiSetting) -> PretrainRun:
    """Pre-train an arm."""
    with Measured(setting.dataset.device) as measured:
        match arm:
            case config.WithoutPretraining():
                run = PretrainRun(setting.initial())
            case config.Supervised():
                run = _supervised(setting, arm)
            case config.CoTrain():
                run = _cotrain(setting, arm)
            case config.LearnedWeights():
                run = _learned_weights(setting, arm)
            case config.PpiMeta():
                run = _meta(setting, arm)
    return finished(run, measured)


def fixed_weights(setting: PpiSetting, arm: config.Supervised) -> Params:
    """Return the logits [PT tasks] of the task weights that an arm keeps throughout PT."""
    tasks = setting.dataset.coarse_tasks
    phi = torch.zeros(tasks)
    if arm.weights is not None:
        assert setting.learned is not None
        phi = setting.learned.cpu()
        if arm.weights.use == "permuted":
            phi = phi[torch.randperm(tasks, generator=generator("ppi permuted weights", setting.job.seed))]
    if arm.group_weights is not None:
        groups = torch.from_numpy(setting.groups(len(arm.group_weights)))
        phi = torch.tensor([math.log(weight / (2 - weight)) for weight in arm.group_weights])[groups]  # 2 sigmoid(phi)
    return {WEIGHTS: phi.to(setting.dataset.device)}


def _supervised(setting: PpiSetting, arm: config.Supervised) -> PretrainRun:
    problem = MultitaskProblem(setting.trained())
    trainer = Pretrainer(problem, setting.batches(PpiBatches), setting.initial(), _adam(arm.pretrain_lr))
    run = setting.plain_run(trainer, fixed_weights(setting, arm))
    run.meta = {}
    return run


def _cotrain(setting: PpiSetting, arm: config.CoTrain) -> PretrainRun:
    problem, batches = CoTrainProblem(setting.trained()), setting.batches(CoTrainBatches)
    trainer = CoTrainer(problem, batches, _two_heads(setting), _adam(arm.pretrain_lr), arm.gradients)
    recorder = None
    if setting.job.pretrain.online_evaluations:
        every = -(-setting.steps // setting.job.pretrain.online_evaluations)
        recorder = Recorder(lambda: _online_of(setting, trainer.pretrained), every)
    run = setting.plain_run(trainer, {}, recorder)
    run.numbers |= {name: float(value) for name, value in _online_of(setting, run.pretrained).items()}
    run.pretrained = _parts(run.pretrained)
    return run


def _learned_weights(setting: PpiSetting, arm: config.LearnedWeights) -> PretrainRun:
    meta = setting.initial_meta(setting.dataset.coarse_tasks + len(setting.tasks))
    iterations, remainder, warmup = _iterations(setting, arm)
    settings = MetaSettings(
        iterations=iterations,
        pretrain_steps=arm.pretrain_steps,
        remainder=remainder,
        warmup=warmup,
        inverse=Neumann(arm.neumann_terms, arm.pretrain_lr),
        finetuning=Unroll(0),
        pretrain_optimizer=_adam(arm.pretrain_lr),
        meta_optimizer=OptimizerSpec("Adam", {"lr": arm.meta_lr}),
    )
    problem, batches = CoTrainProblem(setting.trained()), setting.batches(CoTrainBatches)
    loop = MetaPretraining(problem, batches, _two_heads(setting), meta, {}, settings)
    run = _learn(setting, loop, lambda: _online_of(setting, loop.pretrained))
    run.meta = {WEIGHTS: run.meta[WEIGHTS][: setting.dataset.coarse_tasks]}
    run.pretrained = _parts(run.pretrained)
    return run


def _meta(setting: PpiSetting, arm: config.PpiMeta) -> PretrainRun:
    loop = meta_loop(setting, arm)

    def online() -> dict[str, Tensor]:
        return setting.online({**loop.pretrained.encoder, **loop.pretrained.buffers}, loop.head)

    return _learn(setting, loop, online if arm.trains_head else dict)


def meta_loop(setting: PpiSetting, arm: config.PpiMeta) -> MetaPretraining:
    """Return the loop of a meta arm before its first step."""
    iterations, remainder, warmup = _iterations(setting, arm)
    return MetaPretraining(
        MultitaskProblem(setting.trained(arm.recompute)),
        setting.batches(PpiBatches, arm),
        setting.initial(),
        setting.initial_meta(setting.dataset.coarse_tasks),
        setting.initial_head(),
        meta_settings(
            arm,
            iterations=iterations,
            remainder=remainder,
            warmup=warmup,
            pretrain_lr=arm.pretrain_lr,
            pretrain_optimizer=_adam(arm.pretrain_lr),
            finetune_optimizer=Adam(arm.finetune_lr),
        ),
        step_problem=MultitaskProblem(setting.trained()),
    )


def _iterations(setting: PpiSetting, arm: config.PpiMeta | config.LearnedWeights) -> tuple[int, int, int]:
    """Return the meta-iterations of a run, the PT steps that are left over, and the meta-iterations before phi moves.

    Raises ConfigError if phi would never move.
    """
    iterations, remainder = whole_iterations(setting.steps, arm.pretrain_steps)
    warmup = warmup_iterations(arm.warmup_epochs, setting.steps_per_epoch, arm.pretrain_steps)
    if warmup >= iterations:
        raise ConfigError(
            f"warmup_epochs: {arm.warmup_epochs:g} leaves none of the {setting.steps} PT steps for meta-updates, so "
            "that the task weights would never be learned; legal: fewer warmup_epochs, more pretrain.epochs, or fewer "
            "pretrain_steps."
        )
    return iterations, remainder, warmup


def _learn(setting: PpiSetting, loop: MetaPretraining, online: Callable[[], dict[str, Tensor]]) -> PretrainRun:
    """Run a loop that learns task weights, and record their quantiles and the online AUROC."""
    evaluations = setting.job.pretrain.online_evaluations
    every = -(-loop.settings.iterations // max(1, evaluations))

    def observe() -> dict[str, Tensor]:
        weights = task_weights(detached(loop.averaged_meta))[: setting.dataset.coarse_tasks]
        seen = {name: weights.quantile(share).reshape(1) for name, share in QUANTILES.items()}
        return seen | (online() if evaluations else {})

    run = setting.meta_run(loop, Recorder(observe, every))
    run.numbers |= {name: float(value) for name, value in online().items()}
    return run


def _two_heads(setting: PpiSetting) -> Pretrained:
    """Return the initial network of co-training; its `encoder` holds all parameters (see `CoTrainProblem`)."""
    start = setting.initial()
    network = whole(start.encoder, pretrain_head=start.head, finetune_head=setting.initial_head())
    return Pretrained(network, {}, start.buffers)


def _online_of(setting: PpiSetting, network: Pretrained) -> dict[str, Tensor]:
    """Return the online AUROC of a co-trained network's FT head."""
    values = detached({**network.encoder, **network.buffers})
    return setting.online(encoder_of(values), head_of(values, "finetune_head"))


def _parts(network: Pretrained) -> Pretrained:
    """Return a co-trained network as an encoder and a PT head."""
    return Pretrained(encoder_of(network.encoder), head_of(network.encoder, "pretrain_head"), network.buffers)


def _adam(lr: float) -> OptimizerSpec:
    return OptimizerSpec("Adam", {"lr": lr, "fused": True})
