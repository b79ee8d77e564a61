"""A search of the warp's strength or of the temperature with whole PT runs, each judged by FT."""

from __future__ import annotations

import dataclasses
import math
from statistics import fmean

import torch

from metapt.domains.ecg.config import RunSearch
from metapt.domains.ecg.finetune import Labelled, Sets, check, full_transfer, linear_evaluation
from metapt.domains.ecg.policy import Policy
from metapt.domains.ecg.quantities import FACTOR, TEMPERATURE
from metapt.domains.ecg.setting import Setting, policy_of
from metapt.hypergrad import Params, Pretrained
from metapt.training import progress
from metapt.training.pretraining import Pretrainer
from metapt.training.seeds import generator
from metapt.twostage.heads import highest
from metapt.twostage.pretraining import PretrainRun
from metapt.twostage.quantities import FULL_TRANSFER
from metapt.twostage.run_search import Candidates, Place, at_random, by_secants

_SHRINK = 0.5  # of the step in the logarithm, after each round


def run_search(setting: Setting, arm: RunSearch) -> PretrainRun:
    """Pre-train with each candidate of the search, and return the PT run of the candidate that it ends with.

    A candidate's place is the logarithm of a factor on the hyperparameter's start. All candidates start from the same
    weights and have the same minibatches and draws for views, so that they differ in the hyperparameter alone. Raises
    DataError, as `check`, before the first PT step.
    """

    def start(place: Place) -> tuple[Pretrainer, Params]:
        own, policy = candidate(setting, arm, place)
        return Pretrainer(own.problem(policy), own.batches(), own.initial(), own.optimizer), own.initial_meta(policy)

    for name, train, held_out in folds(setting, arm):
        check(train, {f"ECGs of {name}": held_out})
    candidates = Candidates(
        start,
        lambda pretrained: cross_validated_auroc(setting, arm, pretrained),
        lambda place: {FACTOR: math.exp(place[0])},
        setting.steps,
        setting.dataset.device,
        setting.checkpoint,
    )
    step = math.log(arm.factor)
    if arm.propose == "secants":
        chosen = by_secants(candidates, [(1.0,)] * arm.rounds, step, _SHRINK)
    else:
        chosen = at_random(candidates, random_places(arm, setting.seed))
    run = candidates.run(chosen)
    run.numbers[TEMPERATURE] = candidate(setting, arm, chosen)[0].pretrain.temperature
    return run


def random_places(arm: RunSearch, seed: int) -> list[Place]:
    """Return as many places as secants try, drawn uniformly from the interval that they can reach."""
    reach = math.log(arm.factor) * sum(_SHRINK**number for number in range(arm.rounds))
    draws = torch.rand(2 * arm.rounds, generator=generator("ecg run search", seed), dtype=torch.float64)
    return [(float(place),) for place in reach * (2 * draws - 1)]


def candidate(setting: Setting, arm: RunSearch, place: Place) -> tuple[Setting, Policy]:
    """Return the setting and the warp of a candidate."""
    factor, policy = math.exp(place[0]), policy_of(arm.warp)
    if arm.hyperparameter == "temperature":
        pretrain = setting.pretrain.model_copy(update={"temperature": setting.pretrain.temperature * factor})
        return dataclasses.replace(setting, pretrain=pretrain), policy
    # The strength is the square of m, or m is its logarithm and `initial_scale` the strength.
    scale = policy.initial_scale * (math.sqrt(factor) if policy.scale == "square" else factor)
    return setting, dataclasses.replace(policy, initial_scale=scale)


def folds(setting: Setting, arm: RunSearch) -> list[tuple[str, Labelled, Labelled]]:
    """Return for each fold of the labelled ECGs its name, the ECGs of the other folds, and its own."""
    labelled, fold = setting.labelled(), setting.folds(arm.folds)
    parts = []
    for out in range(arm.folds):
        train, held_out = (Labelled(labelled.signals[own], labelled.labels[own]) for own in (fold != out, fold == out))
        parts.append((f"fold {out + 1} of {arm.folds}", train, held_out))
    return parts


def cross_validated_auroc(setting: Setting, arm: RunSearch, pretrained: Pretrained) -> float:
    """Return the mean AUROC (%) of FT runs that each validate on one fold of the labelled ECGs and train on the others.

    As in FT, the AUROC is that of the best epoch. Each run has a head and minibatches of its own, which are the same
    for all candidates.
    """
    finetune = setting.finetune_settings
    assert finetune is not None
    start = setting.encoder, pretrained.encoder, pretrained.buffers, setting.width
    aurocs = []
    parts = folds(setting, arm)
    for out in progress.steps(0, arm.folds):
        name, train, held_out = parts[out]
        sets, draws = Sets(train, held_out, held_out), generator("ecg run search FT", setting.seed, out)
        if arm.evaluation == FULL_TRANSFER:
            transfer = full_transfer(*start, sets, finetune, draws, f"FT without {name}")
            transfer.train(finetune.epochs)
            aurocs.append(transfer.curve[highest(transfer.curve)])
        else:
            aurocs.append(linear_evaluation(*start, sets, finetune, [draws])[0].validation_auroc)
    return fmean(aurocs)
