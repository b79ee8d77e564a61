"""How each arm pre-trains: from random weights to an encoder and a fixed, learned or searched warp."""

from __future__ import annotations

import dataclasses
import logging
import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from metapt import method
from metapt.domains.ecg import config
from metapt.domains.ecg.augment import SCALE, Policy, displacement
from metapt.domains.ecg.batches import JointBatches, LabelledSets, SupervisedBatches
from metapt.domains.ecg.bissl import HEAD_EPOCHS, PLAIN, AnchoredProblem, AnchorPretraining, bissl_settings
from metapt.domains.ecg.cross_validation import check_folds, cross_validated_auroc, cross_validated_loss
from metapt.domains.ecg.problem import JointProblem, SupervisedProblem
from metapt.domains.ecg.resnet1d import Encoder
from metapt.domains.ecg.setting import Setting, policy_of
from metapt.domains.ecg.stages import CANDIDATE_LOSS, CANDIDATE_STRENGTH, DISPLACEMENT, WARP_SCALE, WARP_STRENGTH
from metapt.errors import TrainingError
from metapt.evaluation import metrics
from metapt.hypergrad import Adam, Neumann, Params, Pretrained, Unroll
from metapt.hypergrad.params import Vector, detached, scaled
from metapt.training import progress
from metapt.training.meta import MetaPretraining
from metapt.training.meta_settings import MetaSettings
from metapt.training.optimizers import OptimizerSpec
from metapt.training.recorder import Measured, Recorder
from metapt.training.seeds import generator, seed_of
from metapt.twostage.heads import encoder_of, highest, whole
from metapt.twostage.pretraining import PretrainRun, finished, time_per_step
from metapt.twostage.quantities import CROSS_VALIDATED_AUROC

log = logging.getLogger(__name__)

_VIEWS_FOR_DISPLACEMENT = 64
_FOLDS, _L2 = 5, 1e-2
"""Folds and ridge of the cross-validation by which random search evaluates its candidates."""


def pretrain(arm: config.Arm, setting: Setting) -> PretrainRun:
    """Pre-train an arm."""
    with Measured(setting.dataset.device) as measured:
        match arm:
            case config.NoPretraining():
                run = PretrainRun(setting.initial())
            case config.Simclr():
                policy = policy_of(arm.warp)
                run = _fixed(setting, policy, setting.learned or setting.initial_meta(policy))
            case config.EcgMeta():
                run = _meta(setting, arm)
            case config.OptSla():
                run = _optsla(setting, arm)
            case config.RandomSearch():
                run = _random_search(setting, arm)
            case config.BestOf():
                run = _best_of(setting, arm)
            case config.Joint():
                run = _joint(setting, arm)
            case config.BiSsl():
                run = _bissl(setting, arm)
    run = finished(run, measured)
    if not isinstance(arm, config.NoPretraining):
        numbers = warp_numbers(policy_of(arm.warp), run.meta, setting.dataset.samples)
        run.numbers |= {name: float(value) for name, value in numbers.items()}
    return run


@torch.no_grad()
def warp_numbers(policy: Policy, meta: Params, samples: int) -> Params:
    """Return the scale m, the strength for a network output of 1, and the typical displacement at that strength.

    All parametrisations of the warp can be compared in the unit of the latter, a root mean square in samples.
    """
    strength = policy.global_strength(meta)
    noise = _typical_noise(samples, strength.device)
    field = displacement(strength.expand(len(noise)), noise, policy.smoothing)
    return {WARP_SCALE: meta[SCALE], WARP_STRENGTH: strength, DISPLACEMENT: field.square().mean().sqrt()}


@cache
def _typical_noise(samples: int, device: torch.device) -> Tensor:
    """Return the noise of the typical displacement, always the same."""
    draws = generator("ecg typical displacement")
    return torch.randn(_VIEWS_FOR_DISPLACEMENT, samples, generator=draws).to(device)


def _fixed(setting: Setting, policy: Policy, meta: Params) -> PretrainRun:
    """Pre-train with given meta-parameters."""
    trainer = setting.trainer(setting.problem(policy), setting.batches(), setting.initial())
    return setting.plain_run(trainer, meta)


def meta_settings(arm: config.EcgMeta, setting: Setting) -> MetaSettings:
    """Return the settings of Algorithm 2 that an arm describes."""
    iterations, remainder = method.whole_iterations(setting.steps, arm.pretrain_steps)
    return method.meta_settings(
        arm,
        iterations=iterations,
        warmup=arm.warmup(setting.steps_per_epoch),
        remainder=remainder,
        pretrain_lr=setting.job.pretrain.lr,
        pretrain_optimizer=setting.optimizer,
        finetune_optimizer=Adam(arm.finetune_lr),
        groups=_network_group(arm),
    )


def _network_group(arm: config.EcgMeta | config.OptSla) -> dict[str, dict[str, float]]:
    """Return the settings of the meta-optimiser for the warp network."""
    return {"network.*": {"lr": arm.network_lr}} if arm.warp.network_width else {}


def meta_labelled(arm: config.EcgMeta, setting: Setting) -> LabelledSets:
    """Return the FT sets of an arm and the sizes of their minibatches, as `SimclrBatches` takes them.

    A fitted head takes all ECGs of a set. A cross-fitted head takes all ECGs of both sets, one fold at a time.
    """
    train, validation = setting.finetune
    if arm.folds is not None:
        return {"folds": (np.concatenate([train, validation]), arm.folds)}
    if arm.unroll == "fitted":
        return {"train": (train, len(train)), "validation": (validation, len(validation))}
    return {"train": (train, arm.batch_size), "validation": (validation, arm.batch_size)}


class _RandomSigns(MetaPretraining):
    """Algorithm 2 with a random sign of each meta-update, which an iteration of a PT seed always has."""

    seed = 0

    def _apply(self, gradient: Vector) -> None:
        draws = generator("ecg random sign", self.seed, self.iteration)
        sign = 2 * int(torch.randint(2, (), generator=draws)) - 1
        super()._apply(scaled(gradient, sign))


def meta_loop(setting: Setting, arm: config.EcgMeta) -> tuple[MetaPretraining, Policy]:
    """Return the loop of a meta arm at its start, and its warp."""
    policy = policy_of(arm.warp)
    batches = setting.batches(meta_labelled(arm, setting), permuted_labels=arm.placebo == "permuted_labels")
    loop = (_RandomSigns if arm.placebo == "random_sign" else MetaPretraining)(
        setting.meta_problem(policy, arm.recompute),
        batches,
        setting.initial(),
        setting.initial_meta(policy),
        setting.initial_head(),
        meta_settings(arm, setting),
        step_problem=setting.problem(policy),
        capture=setting.job.capture,
    )
    if isinstance(loop, _RandomSigns):
        loop.seed = setting.job.seed
    return loop, policy


def _meta(setting: Setting, arm: config.EcgMeta) -> PretrainRun:
    loop, policy = meta_loop(setting, arm)
    recorder = Recorder(lambda: warp_numbers(policy, loop.averaged_meta, setting.dataset.samples))
    return setting.meta_run(loop, recorder, from_start=True)


def _optsla(setting: Setting, arm: config.OptSla) -> PretrainRun:
    """Learn the warp in supervised training of the whole network on the FT training set, then pre-train with it."""
    policy = policy_of(arm.warp)
    train, validation = setting.finetune
    problem = SupervisedProblem(Encoder(setting.job.width), policy)
    start = setting.initial()
    network = Pretrained(whole(start.encoder, head=setting.initial_head()), {}, start.buffers)
    labelled = {"train": (train, arm.batch_size), "validation": (validation, len(validation))}
    batches = SupervisedBatches(setting.dataset, setting.job.pretrain, labelled, setting.job.seed)
    steps = arm.epochs * max(1, len(train) // arm.batch_size)
    iterations, remainder = method.whole_iterations(steps, arm.pretrain_steps)
    settings = MetaSettings(
        iterations=iterations,
        pretrain_steps=arm.pretrain_steps,
        remainder=remainder,
        inverse=Neumann(arm.neumann_terms, arm.lr),
        finetuning=Unroll(0),
        pretrain_optimizer=OptimizerSpec("Adam", {"lr": arm.lr}),
        meta_optimizer=OptimizerSpec("Adam", {"lr": arm.meta_lr}, _network_group(arm)),
    )
    loop = MetaPretraining(problem, batches, network, setting.initial_meta(policy), {}, settings)
    recorder = Recorder(lambda: warp_numbers(policy, loop.averaged_meta, setting.dataset.samples))
    recorder(0)
    checkpoint = setting.checkpoint("-supervised")
    loop.run("OptSLA, supervised", checkpoint, recorder=recorder)
    run = _fixed(setting, policy, detached(loop.averaged_meta))
    return dataclasses.replace(run, series=recorder.rows(), checkpoints=[*run.checkpoints, checkpoint])


def _random_search(setting: Setting, arm: config.RandomSearch) -> PretrainRun:
    """Pre-train briefly with each of several random strengths, then fully with the best one.

    A candidate that diverges loses against any other. Raises TrainingError if all diverge.
    """
    policy = policy_of(arm.warp)
    low, high = (math.log(bound) for bound in arm.range)
    draws = torch.rand(arm.candidates, generator=generator("ecg random search", setting.job.seed), dtype=torch.float64)
    candidates = (low + (high - low) * draws).exp().tolist()
    steps = max(1, round((arm.budget - 1) * setting.steps / arm.candidates))
    labelled, fold = setting.labelled(), setting.folds(_FOLDS)
    losses, checkpoints = [], []
    for index, strength in enumerate(candidates):
        tried = dataclasses.replace(policy, initial_scale=strength)
        trainer = setting.trainer(setting.problem(tried), setting.batches(), setting.initial())
        checkpoints.append(setting.checkpoint(f"-candidate{index}"))
        label = f"candidate {index + 1}, strength {strength:.3g}"
        try:
            trainer.run(setting.initial_meta(tried), steps, label, checkpoints[-1])
            losses.append(cross_validated_loss(*setting.features(trainer.pretrained, labelled), fold, _L2))
        except TrainingError as error:
            log.warning("%s has no result: %s", label, error)
            losses.append(math.nan)
    if np.isnan(losses).all():
        raise TrainingError(f"all {len(candidates)} candidates have diverged; lower `pretrain.lr` or change `range`.")
    best = dataclasses.replace(policy, initial_scale=candidates[int(np.nanargmin(losses))])
    run = _fixed(setting, best, setting.initial_meta(best))
    series = metrics.series(CANDIDATE_STRENGTH, candidates) + metrics.series(CANDIDATE_LOSS, losses)
    return dataclasses.replace(run, series=series, checkpoints=[*run.checkpoints, *checkpoints])


def _best_of(setting: Setting, arm: config.BestOf) -> PretrainRun:
    """Pre-train with several random seeds, judge each run by cross-validated FT, and return the best one.

    A run that diverges loses against any other. Raises TrainingError if all diverge, and DataError, as `check_folds`,
    before the first PT step.
    """
    check_folds(setting, arm.folds)
    results, runs = setting.checkpoint("-aurocs"), dict[int, PretrainRun]()
    aurocs: list[float] = (results.load() or {"aurocs": []})["aurocs"]
    for number in progress.steps(len(aurocs), arm.runs, "best of"):
        try:
            runs[number] = _candidate(setting, arm, number)
            aurocs.append(cross_validated_auroc(setting, arm.folds, arm.evaluation, runs[number].pretrained))
        except TrainingError as error:
            log.warning("run %d has no result: %s", number + 1, error)
            aurocs.append(math.nan)
        results.save({"aurocs": aurocs})
    best = highest(aurocs)
    run = runs.get(best) or _candidate(setting, arm, best)
    parts = [setting.checkpoint(f"-run{number}") for number in range(arm.runs)]
    return dataclasses.replace(run, series=metrics.series(CROSS_VALIDATED_AUROC, aurocs), checkpoints=[*parts, results])


def _candidate(setting: Setting, arm: config.BestOf, number: int) -> PretrainRun:
    """Pre-train with weights, minibatches and views of a seed of its own."""
    own = dataclasses.replace(
        setting,
        job=setting.job.model_copy(update={"seed": seed_of("ecg candidate", setting.job.seed, number)}),
        checkpoint=lambda part: setting.checkpoint(f"-run{number}{part}"),
    )
    policy = policy_of(arm.warp)
    return _fixed(own, policy, own.initial_meta(policy))


def _joint(setting: Setting, arm: config.Joint) -> PretrainRun:
    """Pre-train on unlabelled and on FT training ECGs at once. FT begins with a new head, as after any PT."""
    policy, start = policy_of(arm.warp), setting.initial()
    batches = setting.batches({"train": (setting.finetune[0], arm.batch_size)}, kind=JointBatches)
    network = start._replace(encoder=whole(start.encoder, head=setting.initial_head()))
    trainer = setting.trainer(setting.problem(policy, JointProblem), batches, network)
    run = setting.plain_run(trainer, setting.initial_meta(policy))
    return dataclasses.replace(run, pretrained=run.pretrained._replace(encoder=encoder_of(run.pretrained.encoder)))


def _bissl(setting: Setting, arm: config.BiSsl) -> PretrainRun:
    """Pre-train plainly, then near an anchor, which begins as the encoder that plain PT leaves."""
    policy, learned = policy_of(arm.warp), arm.anchor == "learned"
    warp, plain = setting.initial_meta(policy), round(PLAIN * setting.steps)
    labelled = dict.fromkeys(("train", "validation"), (setting.finetune[0], arm.batch_size)) if learned else {}
    batches, checkpoints = setting.batches(labelled), [setting.checkpoint(part) for part in ("", "-plain")]
    first = setting.trainer(setting.problem(policy), batches, setting.initial())
    near, left = AnchoredProblem(setting.problem(policy), warp, arm.anchor_weight), setting.steps - plain
    settings = bissl_settings(arm, left, setting.optimizer) if learned else None  # refuses too short a run here
    with Measured(setting.dataset.device) as measured:
        taken = first.run(warp, plain, "PT before the anchor", checkpoints[1])
        if settings is not None:
            exact = dataclasses.replace(near, simclr=setting.meta_problem(policy, recompute=False))
            warm = HEAD_EPOCHS * max(1, len(setting.finetune[0]) // arm.batch_size)
            loop = AnchorPretraining(exact, batches, first.pretrained, setting.initial_head(), settings, near, warm)
            figures = loop.run("BiSSL", checkpoints[0]).figures
            pretrained, taken = loop.pretrained, taken + loop.steps_taken
        else:
            second = setting.trainer(near, batches, first.pretrained)
            taken += second.run(detached(first.pretrained.encoder), left, "PT near the anchor", checkpoints[0])
            pretrained, figures = second.pretrained, {}
    return PretrainRun(pretrained, warp, time_per_step(measured, taken) | figures, checkpoints=checkpoints)
