"""How each arm pre-trains: from random weights to an encoder, and to the warp that it has learned or was given."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metapt.domains.ecg import config
from metapt.domains.ecg.batches import SimclrBatches, SupervisedBatches, Views
from metapt.domains.ecg.data.dataset import Dataset, Split, finetune_indices, patient_folds, pretrain_indices
from metapt.domains.ecg.policy import SCALE, Policy
from metapt.domains.ecg.probe import cross_validated_loss
from metapt.domains.ecg.problem import LabelledBatch, SimclrProblem, SupervisedProblem
from metapt.domains.ecg.resnet1d import Encoder, initial_head, initial_pretrained
from metapt.hypergrad import Adam, FittedHead, Neumann, Params, Pretrained, Unroll
from metapt.hypergrad.finetune import FineTuning
from metapt.hypergrad.params import detached
from metapt.training.checkpoint import Checkpoint
from metapt.training.configured import inverse
from metapt.training.measure import Measured
from metapt.training.meta import MetaPretraining, MetaSettings
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer, check_finite
from metapt.training.recorder import Recorder
from metapt.training.seeds import generator

_VIEWS_FOR_DISPLACEMENT = 64
_FOLDS, _L2 = 5, 1e-2
"""By which random search prices its candidates."""


@dataclass(frozen=True)
class Setting:
    """What the PT runs of a config have in common.

    Args:
        dataset: all ECGs.
        width: of the encoder.
        pretrain: SimCLR's settings.
        seed: the PT seed.
        meta_size: labelled ECGs at meta-PT time; None where the arm uses none.
        split: of them, into training and validation.
        checkpoint: makes the checkpoint of a part of the run.
    """

    dataset: Dataset
    width: int
    pretrain: config.PretrainSettings
    seed: int
    meta_size: int | None
    split: Split
    checkpoint: Callable[[str], Checkpoint]

    @property
    def encoder(self) -> Encoder:
        return Encoder(self.width)

    @property
    def indices(self) -> np.ndarray:
        return pretrain_indices(self.dataset.records, self.pretrain.signals)

    @property
    def steps_per_epoch(self) -> int:
        return config.steps_per_epoch(self.pretrain, len(self.indices))

    @property
    def steps(self) -> int:
        """PT steps of a run."""
        return self.pretrain.epochs * self.steps_per_epoch

    @property
    def optimizer(self) -> OptimizerSpec:
        return OptimizerSpec("Adam", {"lr": self.pretrain.lr})

    @property
    def finetune(self) -> tuple[np.ndarray, np.ndarray]:
        """Labelled ECGs at meta-PT time: training, validation."""
        assert self.meta_size is not None
        return finetune_indices(self.dataset.records, self.meta_size, self.seed, self.split)

    def problem(self, policy: Policy) -> SimclrProblem:
        return SimclrProblem(self.encoder, policy, self.pretrain.temperature)

    def views(self, name: str) -> Views:
        leads = self.dataset.records.signals.shape[1]
        return Views(name, self.seed, self.dataset.samples, leads, self.pretrain.jitter, self.dataset.device)

    def batches(self, labelled: dict[str, tuple[np.ndarray, int]] | None = None) -> SimclrBatches:
        return SimclrBatches(self.dataset, self.indices, self.pretrain.batch_size, self.views, labelled or {}, self.seed)

    def initial(self) -> Pretrained:
        """Random weights of the PT seed, the same in all arms."""
        return initial_pretrained(self.width, generator("ecg weights", self.seed)).to(self.dataset.device)

    def initial_meta(self, policy: Policy) -> Params:
        return {k: v.to(self.dataset.device) for k, v in policy.initial(generator("ecg warp network", self.seed)).items()}

    def initial_head(self) -> Params:
        return {k: v.to(self.dataset.device) for k, v in initial_head(self.width, generator("ecg head", self.seed)).items()}

    def labelled(self) -> LabelledBatch:
        """All labelled ECGs at meta-PT time."""
        indices = np.concatenate(self.finetune)
        return LabelledBatch(self.dataset.signals(indices), self.dataset.labels(indices))

    def folds(self, count: int) -> Tensor:
        """The fold of each ECG of `labelled`, all ECGs of a patient in one."""
        patients = self.dataset.records.patients[np.concatenate(self.finetune)]
        return torch.from_numpy(patient_folds(patients, count)).to(self.dataset.device)


@dataclass
class PretrainRun:
    """What a PT run leaves.

    Attributes:
        pretrained: encoder, projection head and buffers at the end.
        policy: the warp; None where there was no PT.
        meta: its parameters at the end (averaged where the arm says so).
        figures: further numbers, by metric.
        series: rows of the series table.
        checkpoints: to remove when all is written.
    """

    pretrained: Pretrained
    policy: Policy | None
    meta: Params
    figures: dict[str, float] = field(default_factory=dict)
    series: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)


def policy_of(warp: config.Warp) -> Policy:
    return Policy(warp.smoothing, warp.scale, warp.initial, warp.network_width)


def pretrain(arm: config.Arm, setting: Setting) -> PretrainRun:
    """Pre-trains an arm, with the time and the memory that it took among its figures."""
    with Measured(setting.dataset.device) as measured:
        match arm:
            case config.NoPretraining():
                run = PretrainRun(setting.initial(), None, {})
            case config.Simclr():
                policy = policy_of(arm.warp)
                run = _fixed(setting, policy, setting.initial_meta(policy))
            case config.Meta():
                run = _meta(setting, arm)
            case config.OptSla():
                run = _optsla(setting, arm)
            case config.RandomSearch():
                run = _random_search(setting, arm)
            case config.BranchSearch():
                run = _branch_search(setting, arm)
    run.figures |= {"PT wall time (s)": measured.seconds, "PT peak memory (GB)": measured.peak_bytes / 1e9}
    if run.policy is not None:
        run.figures |= warp_figures(run.policy, run.meta, setting.dataset.samples)
    run.pretrained = Pretrained(*({name: value.detach() for name, value in part.items()} for part in run.pretrained))
    return run


def warp_figures(policy: Policy, meta: Params, samples: int) -> dict[str, float]:
    """The warp in numbers: m, the strength where the network says 1, and the typical displacement at that strength."""
    return {
        "warp scale m": float(meta[SCALE]),
        "warp strength": float(policy.global_strength(meta)),
        "warp displacement (samples)": float(typical_displacement(policy, policy.global_strength(meta), samples)),
    }


@torch.no_grad()
def typical_displacement(policy: Policy, strength: Tensor, samples: int) -> Tensor:
    """Root mean square of the displacement at a strength (a scalar), samples: the unit in which all warps can be compared."""
    noise = torch.randn(_VIEWS_FOR_DISPLACEMENT, samples, generator=generator("ecg typical displacement")).to(strength.device)
    return policy.displacement(strength.detach().expand(len(noise)), noise).square().mean().sqrt()


def _fixed(setting: Setting, policy: Policy, meta: Params, part: str = "") -> PretrainRun:
    """SimCLR with given meta-parameters."""
    trainer = Pretrainer(setting.problem(policy), setting.batches(), setting.initial(), setting.optimizer)
    checkpoint = setting.checkpoint(part)
    with Measured(setting.dataset.device) as measured:
        taken = trainer.run(meta, setting.steps, "PT", checkpoint)
    figures = {"PT time per step (s)": _per(measured.seconds, taken)}
    return PretrainRun(trainer.pretrained, policy, meta, figures, checkpoints=[checkpoint])


def _per(seconds: float, steps: int) -> float:
    """Time per step of the steps that this process took; NaN where it found them all taken."""
    return seconds / steps if steps else math.nan


def meta_settings(arm: config.Meta, setting: Setting) -> MetaSettings:
    """An arm's config as the loop's settings."""
    groups = {"network.*": {"lr": arm.network_lr}} if arm.warp.network_width else {}
    iterations, warmup = config.meta_iterations(arm, setting.pretrain.epochs, setting.steps_per_epoch)
    return MetaSettings(
        iterations=iterations,
        pretrain_steps=arm.pretrain_steps,
        warmup=warmup,
        inverse=inverse(arm.inverse, setting.pretrain.lr),
        finetuning=finetuning(arm),
        curvature=arm.curvature,
        pretrain_optimizer=setting.optimizer,
        meta_optimizer=OptimizerSpec(arm.meta_optimizer, {"lr": arm.scale_lr, **arm.meta_settings}, groups),
        head_steps_between_updates=arm.head_steps_between_updates,
        accumulate=arm.accumulate,
        clip_norm=arm.clip_norm,
        normalise=arm.normalise,
        average_decay=arm.average_decay,
        explosion_factor=arm.explosion_factor,
        reuse_gradient=arm.reuse_gradient,
    )


def finetuning(arm: config.Meta) -> FineTuning:
    """Return the FT solver of an arm."""
    if arm.unroll == "fitted":
        return FittedHead(arm.l2, cross_fit=arm.folds is not None, minibatches=(arm.folds or 2) - 1)
    return Unroll(arm.unroll_steps, Adam(arm.finetune_lr))


def meta_labelled(arm: config.Meta, setting: Setting) -> dict[str, tuple[np.ndarray, int]]:
    """The FT sets of an arm, and the sizes of their minibatches; a cross-fitted head takes all ECGs, one fold at a time.

    See `SimclrBatches`.
    """
    train, validation = setting.finetune
    if arm.folds is None:
        size = arm.batch_size if arm.unroll == "head" else len(train)
        return {"train": (train, size), "validation": (validation, arm.batch_size if arm.unroll == "head" else len(validation))}
    return {"folds": (np.concatenate([train, validation]), arm.folds)}


def meta_loop(setting: Setting, arm: config.Meta) -> tuple[MetaPretraining, Policy]:
    """The loop of a meta arm at its start."""
    policy = policy_of(arm.warp)
    batches = setting.batches(meta_labelled(arm, setting))
    loop = MetaPretraining(
        setting.problem(policy),
        batches,
        setting.initial(),
        setting.initial_meta(policy),
        setting.initial_head(),
        meta_settings(arm, setting),
    )
    return loop, policy


def _meta(setting: Setting, arm: config.Meta) -> PretrainRun:
    loop, policy = meta_loop(setting, arm)
    samples = setting.dataset.samples
    recorder = Recorder(lambda: _warp_now(policy, loop.averaged_meta, samples))
    checkpoint = setting.checkpoint("")
    with Measured(setting.dataset.device) as measured:
        diagnosis = loop.run("meta-PT", checkpoint, recorder=recorder)
    taken = (loop.settings.iterations - loop.first_iteration) * loop.settings.pretrain_steps
    figures = {"PT time per step (s)": _per(measured.seconds, taken)} | diagnosis.figures
    return PretrainRun(loop.pretrained, policy, loop.averaged_meta, figures, recorder.rows(), [checkpoint])


def _warp_now(policy: Policy, meta: Params, samples: int) -> dict[str, Tensor]:
    return {name: torch.tensor([value]) for name, value in warp_figures(policy, detached(meta), samples).items()}


def _optsla(setting: Setting, arm: config.OptSla) -> PretrainRun:
    """The warp is learned in supervised training of the whole network on the FT training set, then frozen for SimCLR."""
    policy = policy_of(arm.warp)
    train, validation = setting.finetune
    problem = SupervisedProblem(setting.encoder, policy)
    start = setting.initial()
    network = Pretrained(problem.whole(start.encoder, setting.initial_head()), {}, start.buffers)
    labelled = {"train": (train, arm.batch_size), "validation": (validation, len(validation))}
    batches = SupervisedBatches(setting.dataset, setting.views, labelled, setting.seed)
    steps = arm.epochs * max(1, len(train) // arm.batch_size)
    settings = MetaSettings(
        iterations=max(1, steps // arm.steps),
        pretrain_steps=arm.steps,
        inverse=Neumann(arm.neumann_terms, arm.lr),
        finetuning=Unroll(0),
        pretrain_optimizer=OptimizerSpec("Adam", {"lr": arm.lr}),
        meta_optimizer=OptimizerSpec(
            "Adam", {"lr": arm.scale_lr}, {"network.*": {"lr": arm.network_lr}} if arm.warp.network_width else {}
        ),
    )
    loop = MetaPretraining(problem, batches, network, setting.initial_meta(policy), {}, settings)
    recorder = Recorder(lambda: _warp_now(policy, loop.averaged_meta, setting.dataset.samples))
    checkpoint = setting.checkpoint("-supervised")
    loop.run("OptSLA, supervised", checkpoint, recorder=recorder)
    run = _fixed(setting, policy, detached(loop.averaged_meta))
    return dataclasses.replace(run, series=recorder.rows(), checkpoints=[*run.checkpoints, checkpoint])


def price(setting: Setting, pretrained: Pretrained, labelled: LabelledBatch, folds: int, l2: float) -> float:
    """Cross-validated FT loss of a refitted head on an encoder."""
    with torch.no_grad():
        encoder = {**pretrained.encoder, **pretrained.buffers}
        features = setting.problem(Policy("velocity", "log", 1.0, 0)).encode(encoder, labelled)
    return cross_validated_loss(features, labelled.labels, setting.folds(folds), l2)


def _random_search(setting: Setting, arm: config.RandomSearch) -> PretrainRun:
    """Short runs with random strengths, then a whole one with the best."""
    policy = policy_of(arm.warp)
    low, high = (math.log(bound) for bound in arm.range)
    draws = torch.rand(arm.candidates, generator=generator("ecg random search", setting.seed), dtype=torch.float64)
    candidates = (low + (high - low) * draws).exp().tolist()
    steps = max(1, round((arm.budget - 1) * setting.steps / arm.candidates))
    labelled = setting.labelled()
    losses, checkpoints, series = [], [], []
    for index, strength in enumerate(candidates):
        tried = dataclasses.replace(policy, initial_scale=strength)
        trainer = Pretrainer(setting.problem(tried), setting.batches(), setting.initial(), setting.optimizer)
        checkpoints.append(setting.checkpoint(f"-candidate{index}"))
        trainer.run(setting.initial_meta(tried), steps, f"strength {strength:.3g}", checkpoints[-1])
        losses.append(price(setting, trainer.pretrained, labelled, _FOLDS, _L2))
        series += [
            {"replicate": 0, "step": index, "name": "candidate strength", "value": strength},
            {"replicate": 0, "step": index, "name": "cross-validated FT loss", "value": losses[-1]},
        ]
    best = dataclasses.replace(policy, initial_scale=candidates[int(np.argmin(losses))])
    run = _fixed(setting, best, setting.initial_meta(best))
    return dataclasses.replace(run, series=series, checkpoints=[*run.checkpoints, *checkpoints])


def _branch_search(setting: Setting, arm: config.BranchSearch) -> PretrainRun:
    """Two branches from the same weights on the same minibatches, again and again; each time the better one goes on."""
    policy = policy_of(arm.warp)
    trainer = Pretrainer(setting.problem(policy), setting.batches(), setting.initial(), setting.optimizer)
    meta = setting.initial_meta(policy)
    labelled = setting.labelled()
    coin = generator("ecg branch search", setting.seed)
    checkpoint = setting.checkpoint("")
    recorder = Recorder(lambda: _warp_now(policy, meta, setting.dataset.samples))
    saved = checkpoint.load()
    done = 0
    if saved is not None:
        trainer.load_state_dict(saved["trainer"])
        coin.set_state(saved["coin"])
        recorder.load_state_dict(saved["recorder"])
        meta, done = saved["meta"], saved["done"]
    stride = math.log(arm.factor)
    while done < setting.steps:
        count = min(arm.period, setting.steps - done)
        start = copy.deepcopy(trainer.state_dict())
        ends = []
        for direction in _directions(arm, coin):
            trainer.load_state_dict(copy.deepcopy(start))
            branch = meta | {SCALE: meta[SCALE] + direction * stride}
            for _ in range(count):
                pretrain_loss = trainer.step(branch)
            check_finite(pretrain_loss, done + count - 1)
            loss = price(setting, trainer.pretrained, labelled, arm.folds, arm.l2) if arm.select == "validation" else 0.0
            ends.append((loss, branch, copy.deepcopy(trainer.state_dict())))
        _, meta, state = min(ends, key=lambda end: end[0])
        trainer.load_state_dict(state)
        done += count
        recorder(done)
        checkpoint.save(
            {
                "trainer": trainer.state_dict(),
                "coin": coin.get_state(),
                "recorder": recorder.state_dict(),
                "meta": meta,
                "done": done,
            }
        )
    return PretrainRun(trainer.pretrained, policy, meta, {}, recorder.rows(), [checkpoint])


def _directions(arm: config.BranchSearch, coin: torch.Generator) -> tuple[int, ...]:
    """Which branches are taken: both where they are to be compared, else the one that the control goes."""
    match arm.select:
        case "validation":
            return (-1, 1)
        case "random":
            return (2 * int(torch.randint(2, (), generator=coin)) - 1,)
        case "lower":
            return (-1,)
