"""The hypergradient of the warp's strength, drawn at encoders that were pre-trained with that strength.

Also, the FT loss of an old and of a refitted head after further PT steps with other strengths.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metapt.domains.ecg.arms import meta_labelled, meta_settings, typical_displacement
from metapt.domains.ecg.config import EcgMeta, Warp
from metapt.domains.ecg.policy import SCALE, Policy
from metapt.domains.ecg.probe import cross_validated_loss, fold_heads, held_out_loss
from metapt.domains.ecg.problem import LabelledBatch, classification_loss
from metapt.domains.ecg.quantities import (
    DISPLACEMENT,
    HORIZON,
    HYPERGRADIENT,
    MEAN,
    NOT_FINITE,
    OLD_HEAD,
    POSITIVE,
    REFITTED_HEAD,
    STANDARD_DEVIATION,
)
from metapt.domains.ecg.resnet1d import load_pretrained
from metapt.domains.ecg.setting import Setting, policy_of, study_setting
from metapt.evaluation import metrics
from metapt.hypergrad import Params, Pretrained, hypergradient
from metapt.hypergrad.optimizers import OptimizerState
from metapt.hypergrad.params import leaves, like, vjp
from metapt.machine import Machine
from metapt.training.pretraining import Pretrainer
from metapt.training.progress import steps as progress
from metapt.training.seeds import generator
from metapt.training.settings import MetaSettings
from metapt.training.streams import ShuffledStream

_FOLDS = 5  # folds of the horizon's cross-validation, where the arm has none of its own


class Lookahead(NamedTuple):
    """Cross-validated FT losses after `steps` further PT steps at a strength."""

    initial: float
    steps: int
    old_head: float
    refitted_head: float


def warp_at(setting: Setting, warp: Warp, initial: float) -> tuple[Policy, Params]:
    """Return the warp as if it started at `initial`, and its meta-parameters."""
    policy = policy_of(warp.model_copy(update={"initial": initial}))
    return policy, setting.initial_meta(policy)


def hypergradients(
    setting: Setting, arm: EcgMeta, pretrained: Pretrained, head: Params, initial: float, draws: int
) -> Tensor:
    """Return `draws` of d(FT loss) / dm, m the warp's global scale, each with minibatches and views of its own.

    Encoder, meta-parameters and head are the same in all draws; a head that the arm unrolls is trained first, see
    `online_head`. `initial` is the strength of the warp in the arm's own parametrisation (see `config.Warp`).
    Averaging, clipping and normalising of hypergradients, which an arm may do, are left out. Returns [draws], float64,
    with NaN and inf.
    """
    policy, meta = warp_at(setting, arm.warp, initial)
    settings = meta_settings(arm, setting)
    batches = setting.batches(meta_labelled(arm, setting))
    problem = setting.meta_problem(policy, arm.recompute)
    head, state = online_head(setting, arm, settings, pretrained, head)
    drawn = []
    for _ in progress(0, draws, f"hypergradients at {initial:g}"):
        result = hypergradient(
            problem,
            pretrained,
            meta,
            head,
            pretrain_batch=batches.hypergradient(),
            train_batches=[batches.train() for _ in range(settings.finetuning.minibatches)],
            validation_batch=batches.validation(),
            inverse=settings.inverse,
            finetuning=settings.finetuning,
            head_state=state,
            curvature=settings.curvature,
        )
        drawn.append(result.gradient[SCALE].double())
    return torch.stack(drawn).cpu()


def online_head(
    setting: Setting, arm: EcgMeta, settings: MetaSettings, pretrained: Pretrained, head: Params
) -> tuple[Params, OptimizerState]:
    """Return head and optimiser state after as many FT steps on the frozen encoder as the arm's PT run takes.

    The head stays as it is if the solver takes no steps or the arm never trains it (K = 0).
    """
    optimizer = settings.finetuning.optimizer
    if optimizer is None:
        return head, {}
    updates = settings.iterations - settings.warmup
    others = settings.iterations * settings.pretrain_steps - updates
    train, size = meta_labelled(arm, setting)["train"]
    labelled = LabelledBatch(setting.dataset.signals(train), setting.dataset.labels(train))
    features, labels = setting.features(pretrained, labelled)
    stream = ShuffledStream(len(train), size, [generator("ecg warp study head", setting.seed)])
    state = optimizer.init(head)
    taken = updates * settings.accumulate * settings.finetuning.minibatches + others * arm.head_steps_between_updates
    for _ in progress(0, taken):
        chosen = stream.next()[0].to(features.device)
        current = leaves(head)
        gradient = vjp([classification_loss(current, features[chosen], labels[chosen])], list(current.values()))
        with torch.no_grad():
            head, state = optimizer.step(current, like(current, gradient), state)
    return head, state


def horizon(
    setting: Setting,
    pretrained: Pretrained,
    warp: Warp,
    strengths: list[float],
    steps: list[int],
    l2: float,
    folds: int,
) -> list[Lookahead]:
    """Continue PT from `pretrained` at each strength, on the same minibatches with the same noise; Adam starts anew.

    After each number of PT `steps`, heads are tested on all labelled ECGs by cross-validation. Old heads are fitted to
    the features of `pretrained`, refitted heads to the features that they are tested on.
    """
    labelled = setting.labelled()
    fold = setting.folds(folds)
    old = fold_heads(*setting.features(pretrained, labelled), fold, l2)
    found = []
    for index in progress(0, len(strengths)):
        initial = strengths[index]
        policy, meta = warp_at(setting, warp, initial)
        trainer = Pretrainer(setting.problem(policy), setting.batches(), pretrained, setting.optimizer)
        done = 0
        for count in sorted(set(steps)):
            for _ in progress(done, count):
                trainer.step(meta)
            done = count
            features, labels = setting.features(trainer.pretrained, labelled)
            losses = (math.nan, math.nan)
            if features.isfinite().all():
                losses = held_out_loss(old, features, labels, fold), cross_validated_loss(features, labels, fold, l2)
            found.append(Lookahead(initial, count, *losses))
    return found


def summary(draws: Tensor) -> dict[str, float]:
    """Return statistics of draws [n] by metric: the share that is not finite, and numbers of the finite ones."""
    finite = draws[draws.isfinite()]
    return {
        MEAN: float(finite.mean()),
        STANDARD_DEVIATION: float(finite.std()) if len(finite) > 1 else math.nan,
        POSITIVE: float((finite > 0).double().mean()),
        NOT_FINITE: 1 - len(finite) / len(draws),
    }


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Draw hypergradients of an arm and PT seed at each strength, and take the horizon from the middle one's encoder.

    The config holds `arm`, `arm_settings`, `seed`, `meta_size`, `split`, `width`, `samples`, `pretrain` as of its PT
    runs, and `study`: `draws`, `horizon` (PT steps), `strengths` (values of `initial`). The inputs are `signals`,
    `records`, and `fixed/{initial:g}`: pretrained.pt of PT with that strength. The output `metrics` has the evaluations
    "hypergradient" and "horizon", `series` has every draw.
    """
    study = config["study"]
    arm = EcgMeta.model_validate(config["arm_settings"])
    setting = study_setting(config, inputs, config["seed"], machine.device)
    strengths = sorted(map(float, study["strengths"]))
    rows: list[dict[str, Any]] = []
    series: list[dict[str, Any]] = []

    def encoder(initial: float) -> Pretrained:
        return load_pretrained(inputs[f"fixed/{initial:g}"], setting.width, machine.device).pretrained

    def add(evaluation: str, initial: float, words: str, numbers: dict[str, float]) -> None:
        policy, meta = warp_at(setting, arm.warp, initial)
        displacement = typical_displacement(policy, policy.global_strength(meta), setting.dataset.samples)
        numbers = {DISPLACEMENT: float(displacement), **numbers}
        place: dict[str, Any] = {"replicate": setting.seed, "setting": words, "evaluation": evaluation}
        rows.extend(metrics.rows_of(config["domain"], config["arm"], numbers, **place))

    for index in progress(0, len(strengths)):
        initial = strengths[index]
        drawn = hypergradients(setting, arm, encoder(initial), setting.initial_head(), initial, study["draws"])
        add(HYPERGRADIENT, initial, f"initial={initial:g}", summary(drawn))
        series += metrics.series(f"hypergradient at {initial:g}", drawn.tolist())
    middle = encoder(strengths[len(strengths) // 2])
    for ahead in horizon(setting, middle, arm.warp, strengths, study["horizon"], arm.l2, arm.folds or _FOLDS):
        words = f"initial={ahead.initial:g} steps={ahead.steps}"
        add(HORIZON, ahead.initial, words, {OLD_HEAD: ahead.old_head, REFITTED_HEAD: ahead.refitted_head})
    metrics.write_series(series, outputs["series"])
    metrics.write(rows, outputs["metrics"])
