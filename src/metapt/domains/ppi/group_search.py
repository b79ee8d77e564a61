"""A search of weights of groups of PT tasks with whole PT runs, each judged by cross-fitted linear evaluation."""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import torch

from metapt.domains.ppi.batches import PpiBatches
from metapt.domains.ppi.config import GroupSearch
from metapt.domains.ppi.features import features_of
from metapt.domains.ppi.gin import initial_head
from metapt.domains.ppi.pretraining_setting import PpiSetting
from metapt.domains.ppi.problem import WEIGHTS, MultitaskProblem
from metapt.domains.ppi.settings import group
from metapt.hypergrad import Params, Pretrained
from metapt.training import progress
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.seeds import generator
from metapt.twostage.heads import Examples, linear_heads
from metapt.twostage.pretraining import PretrainRun
from metapt.twostage.run_search import Candidates, Place, at_random, by_secants


def group_search(setting: PpiSetting, arm: GroupSearch) -> PretrainRun:
    """Pre-train with each candidate of the search, and return the run of the one that it ends with.

    A candidate's place is phi of each group. All candidates start from the same weights and have the same minibatches
    and dropout masks, so that they differ in the weights of the groups alone.
    """
    groups = torch.from_numpy(setting.groups(arm.groups))

    def start(place: Place) -> tuple[Pretrainer, Params]:
        optimizer = OptimizerSpec("Adam", {"lr": arm.pretrain_lr, "fused": True})
        problem = MultitaskProblem(setting.trained())
        trainer = Pretrainer(problem, setting.batches(PpiBatches), setting.initial(), optimizer)
        return trainer, {WEIGHTS: torch.tensor(place)[groups].to(setting.dataset.device)}

    candidates = Candidates(
        start,
        lambda pretrained: cross_validated_auroc(setting, arm, pretrained),
        lambda place: {group(number): 2 / (1 + math.exp(-phi)) for number, phi in enumerate(place)},
        setting.steps,
        setting.dataset.device,
        setting.checkpoint,
    )
    if arm.propose == "secants":
        chosen = by_secants(candidates, random_directions(arm, setting.seed), arm.step, arm.shrink)
    else:
        chosen = at_random(candidates, random_places(arm, setting.seed))
    return candidates.run(chosen)


def random_directions(arm: GroupSearch, seed: int) -> list[Place]:
    """Return a random sign for each group, in each round."""
    shape = arm.rounds, arm.groups
    signs = 2 * torch.randint(2, shape, generator=generator("ppi group search directions", seed)) - 1
    return [tuple(map(float, row)) for row in signs.tolist()]


def random_places(arm: GroupSearch, seed: int) -> list[Place]:
    """Return as many places as secants try, with log-uniform weights of the groups."""
    low, high = (math.log(end) for end in arm.weight)
    draws = torch.rand((2 * arm.rounds, arm.groups), generator=generator("ppi group search", seed), dtype=torch.float64)
    return [tuple(map(logit, row)) for row in (low + (high - low) * draws).exp().tolist()]


def logit(weight: float) -> float:
    """Return phi of a weight between 0 and 2, which is 2 sigmoid(phi)."""
    return math.log(weight / (2 - weight))


def cross_validated_auroc(setting: PpiSetting, arm: GroupSearch, pretrained: Pretrained) -> float:
    """Return the mean AUROC (%) of linear heads, each validated on a fold of the FT graphs and trained on the others.

    As in linear evaluation, the AUROC is that of the best epoch and learning rate. Each head has initial weights and
    minibatches of its own, which are the same for all candidates.
    """
    finetune, encoder = setting.finetune_settings, setting.encoder
    assert finetune is not None
    known = torch.from_numpy(np.concatenate(setting.finetune))
    tasks = torch.arange(setting.dataset.fine_tasks) if setting.tasks is None else setting.tasks
    labels = setting.dataset.fine(known)[:, tasks.to(setting.dataset.device)]
    features = features_of(encoder, {**pretrained.encoder, **pretrained.buffers}, setting.dataset, known)
    fold = torch.from_numpy(np.random.default_rng([setting.seed, 5]).permutation(len(known))) % arm.folds
    aurocs = []
    for out in progress.steps(0, arm.folds):
        train, held_out = (
            Examples(features[own], labels[own])
            for own in ((fold != out).to(features.device), (fold == out).to(features.device))
        )
        draws = generator("ppi group search FT", setting.seed, out)
        (score,) = linear_heads(
            train,
            held_out,
            held_out,
            [initial_head(encoder.width, len(tasks), draws)],
            lrs=finetune.linear_lrs,
            epochs=finetune.linear_epochs,
            batch_size=finetune.batch_size,
            generators=[draws],
        )
        aurocs.append(score.validation_auroc)
    return fmean(aurocs)
