"""A search of the warp's strength, the temperature or the random seed with whole PT runs, each judged by FT."""

from __future__ import annotations

import dataclasses
import math
from statistics import fmean

import torch

from metapt.domains.ecg.config import RunSearch
from metapt.domains.ecg.cross_validation import check_folds, validation_curves
from metapt.domains.ecg.policy import Policy
from metapt.domains.ecg.quantities import FACTOR, TEMPERATURE
from metapt.domains.ecg.setting import Setting, policy_of
from metapt.hypergrad import Params, Pretrained
from metapt.training.pretraining import Pretrainer
from metapt.training.seeds import generator, seed_of
from metapt.twostage.heads import highest
from metapt.twostage.pretraining import PretrainRun
from metapt.twostage.run_search import Candidates, Place, at_random, by_secants

_SHRINK = 0.5  # of the step in the logarithm, after each round


def run_search(setting: Setting, arm: RunSearch) -> PretrainRun:
    """Pre-train with each candidate of the search, and return the PT run of the candidate that it ends with.

    A candidate's place is the logarithm of a factor on the hyperparameter's start, or the number of a seed. All
    candidates start from the same weights and have the same minibatches and draws for views, so that they differ in
    the hyperparameter alone; seeds differ in these alone. Raises DataError, as `check_folds`, before the first PT step.
    """

    def start(place: Place) -> tuple[Pretrainer, Params]:
        own, policy = candidate(setting, arm, place)
        return Pretrainer(own.problem(policy), own.batches(), own.initial(), own.optimizer), own.initial_meta(policy)

    check_folds(setting, arm.folds)
    candidates = Candidates(
        start,
        lambda pretrained: cross_validated_auroc(setting, arm, pretrained),
        lambda place: {FACTOR: 1.0 if arm.hyperparameter == "seed" else math.exp(place[0])},
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
    """Return as many places as secants try, drawn uniformly from the interval that they can reach; or seeds."""
    if arm.hyperparameter == "seed":
        return [(float(number),) for number in range(2 * arm.rounds)]
    reach = math.log(arm.factor) * sum(_SHRINK**number for number in range(arm.rounds))
    draws = torch.rand(2 * arm.rounds, generator=generator("ecg run search", seed), dtype=torch.float64)
    return [(float(place),) for place in reach * (2 * draws - 1)]


def candidate(setting: Setting, arm: RunSearch, place: Place) -> tuple[Setting, Policy]:
    """Return the setting and the warp of a candidate."""
    policy = policy_of(arm.warp)
    if arm.hyperparameter == "seed":
        return dataclasses.replace(setting, seed=seed_of("ecg candidate", setting.seed, int(place[0]))), policy
    factor = math.exp(place[0])
    if arm.hyperparameter == "temperature":
        pretrain = setting.pretrain.model_copy(update={"temperature": setting.pretrain.temperature * factor})
        return dataclasses.replace(setting, pretrain=pretrain), policy
    # The strength is the square of m, or m is its logarithm and `initial_scale` the strength.
    scale = policy.initial_scale * (math.sqrt(factor) if policy.scale == "square" else factor)
    return setting, dataclasses.replace(policy, initial_scale=scale)


def cross_validated_auroc(setting: Setting, arm: RunSearch, pretrained: Pretrained) -> float:
    """Return the mean over folds of the AUROC (%) of the best epoch, as FT chooses it; see `validation_curves`."""
    curves = validation_curves(setting, arm.folds, arm.evaluation, pretrained)
    return fmean(curve[highest(curve)] for curve in curves)
