"""A search with whole PT runs that share all random numbers, judged as the paper judges encoders: by FT."""

from __future__ import annotations

import dataclasses
import math
from statistics import fmean

import torch

from metapt.domains.ecg.config import RunSearch
from metapt.domains.ecg.finetune import Labelled, Sets, full_transfer, linear_evaluation
from metapt.domains.ecg.policy import Policy
from metapt.domains.ecg.quantities import CROSS_VALIDATED_AUROC, FACTOR, TEMPERATURE
from metapt.domains.ecg.setting import Setting, policy_of
from metapt.evaluation import metrics
from metapt.hypergrad import Pretrained
from metapt.training import progress
from metapt.training.measure import Measured
from metapt.training.pretraining import Pretrainer
from metapt.training.seeds import generator
from metapt.twostage.heads import highest
from metapt.twostage.pretraining import PretrainRun, time_per_step
from metapt.twostage.quantities import FULL_TRANSFER


def run_search(setting: Setting, arm: RunSearch) -> PretrainRun:
    """Pre-train with each candidate of the search, and return the run of the one that it ends with.

    A candidate is the logarithm of a factor on the hyperparameter's start. All candidates start from the same weights
    and have the same minibatches and draws for views, so that they differ in the hyperparameter alone.
    """
    candidates = _Candidates(setting, arm)
    chosen = _by_secants(candidates, arm) if arm.propose == "secants" else _at_random(candidates, arm)
    return candidates.run(chosen)


def _by_secants(candidates: _Candidates, arm: RunSearch) -> float:
    """Compare a candidate on each side of the present place, go to the better one, halve the step, and repeat."""
    place, step = 0.0, math.log(arm.factor)
    for _ in progress.steps(0, arm.rounds, "secants"):
        above, below = place + step, place - step
        place = above if candidates.auroc(above) > candidates.auroc(below) else below
        step /= 2
    return place


def _at_random(candidates: _Candidates, arm: RunSearch) -> float:
    """Compare as many candidates as secants do, drawn uniformly from the interval that secants can reach."""
    reach = math.log(arm.factor) * (2 - 2 ** (1 - arm.rounds))
    draws = torch.rand(2 * arm.rounds, generator=generator("ecg run search", candidates.seed), dtype=torch.float64)
    places: list[float] = (reach * (2 * draws - 1)).tolist()
    best = 0
    for index in progress.steps(0, len(places), "random candidates"):
        best = max(best, index, key=lambda each: candidates.auroc(places[each]))
    return places[best]


class _Candidates:
    """The PT runs of a search and their results, which are kept in checkpoints until the search ends."""

    def __init__(self, setting: Setting, arm: RunSearch) -> None:
        self.seed = setting.seed
        self._setting, self._arm = setting, arm
        self._results = setting.checkpoint("-search")
        self._aurocs: dict[float, float] = dict((self._results.load() or {"aurocs": {}})["aurocs"])
        self._numbers: dict[str, float] = {}

    def auroc(self, place: float) -> float:
        """Return the cross-validated AUROC (%) of the candidate at `place`, after its PT and FT unless it has them."""
        known = self._aurocs.get(place)
        if known is not None:
            return known
        pretrained = self._pretrained(place, len(self._aurocs))
        found = cross_validated_auroc(self._setting, self._arm, pretrained)
        self._aurocs[place] = found
        self._results.save({"aurocs": self._aurocs})
        return found

    def run(self, place: float) -> PretrainRun:
        """Return the PT run of a candidate that was evaluated."""
        pretrained = self._pretrained(place, list(self._aurocs).index(place))
        setting, policy = self._at(place)
        columns = {FACTOR: [math.exp(each) for each in self._aurocs], CROSS_VALIDATED_AUROC: self._aurocs.values()}
        checkpoints = [self._setting.checkpoint(f"-candidate{number}") for number in range(len(self._aurocs))]
        return PretrainRun(
            pretrained,
            setting.initial_meta(policy),
            self._numbers | {TEMPERATURE: setting.pretrain.temperature},
            [row for name, values in columns.items() for row in metrics.series(name, values)],
            [*checkpoints, self._results],
        )

    def _pretrained(self, place: float, number: int) -> Pretrained:
        """Return the result of the PT run of candidate `number`; a finished run is read from its checkpoint."""
        setting, policy = self._at(place)
        trainer = Pretrainer(setting.problem(policy), setting.batches(), setting.initial(), setting.optimizer)
        label = f"PT with {self._arm.hyperparameter} times {math.exp(place):.3g}"
        with Measured(setting.dataset.device) as measured:
            taken = trainer.run(
                setting.initial_meta(policy), setting.steps, label, setting.checkpoint(f"-candidate{number}")
            )
        if taken or not self._numbers:
            self._numbers = time_per_step(measured, taken)
        return trainer.pretrained

    def _at(self, place: float) -> tuple[Setting, Policy]:
        """Return the setting and the warp of a candidate."""
        factor, policy = math.exp(place), policy_of(self._arm.warp)
        if self._arm.hyperparameter == "temperature":
            own = {"temperature": self._setting.pretrain.temperature * factor}
            pretrain = self._setting.pretrain.model_copy(update=own)
            return dataclasses.replace(self._setting, pretrain=pretrain), policy
        # The strength is the square of m, or m is its logarithm and `initial_scale` the strength.
        scale = policy.initial_scale * (math.sqrt(factor) if policy.scale == "square" else factor)
        return self._setting, dataclasses.replace(policy, initial_scale=scale)


def cross_validated_auroc(setting: Setting, arm: RunSearch, pretrained: Pretrained) -> float:
    """Return the mean AUROC (%) of FT runs that each validate on one fold of the labelled ECGs and train on the others.

    As in FT, the AUROC is that of the best epoch. Each run has a head and minibatches of its own, which are the same
    for all candidates.
    """
    finetune = setting.finetune_settings
    assert finetune is not None
    labelled, fold = setting.labelled(), setting.folds(arm.folds)
    start = setting.encoder, pretrained.encoder, pretrained.buffers, setting.width
    aurocs = []
    for out in progress.steps(0, arm.folds):
        train, held_out = (Labelled(labelled.signals[own], labelled.labels[own]) for own in (fold != out, fold == out))
        sets, draws = Sets(train, held_out, held_out), generator("ecg run search FT", setting.seed, out)
        if arm.evaluation == FULL_TRANSFER:
            transfer = full_transfer(*start, sets, finetune, draws, f"FT without fold {out + 1} of {arm.folds}")
            transfer.train(finetune.epochs)
            aurocs.append(transfer.curve[highest(transfer.curve)])
        else:
            aurocs.append(linear_evaluation(*start, sets, finetune, [draws])[0].validation_auroc)
    return fmean(aurocs)
