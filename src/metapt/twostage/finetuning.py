"""An FT job: the FT runs of an arm from the encoder of a PT seed, for all FT seeds and evaluations."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.hypergrad import Params, Pretrained
from metapt.hypergrad.params import copied, leaves
from metapt.training.capture import Captured, recorded_on
from metapt.training.checkpoint import Checkpoint
from metapt.training.optimizers import gradients_of, without_compiler
from metapt.training.progress import steps
from metapt.training.seeds import generator
from metapt.twostage.auroc import defined_classes, mean_auroc, undefined_classes
from metapt.twostage.heads import FinetuneProblem, Score, Split, highest, linear_evaluation, logits, score
from metapt.twostage.jobs import FinetuneSettings
from metapt.twostage.quantities import FT_TIME, FULL_TRANSFER, LINEAR_EVALUATION, VALIDATION_AUROC, pair

log = logging.getLogger(__name__)

Part = tuple[str, int]
"""An FT run: evaluation, FT seed."""


class Scores(dict[Part, Score]):
    """Scores of the finished parts, kept in a checkpoint.

    A killed job repeats at most one FT run, all linear evaluations, or the trials of the learning rate.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        saved = checkpoint.load() or {"scores": []}
        super().__init__({tuple(part): Score(*score) for part, score in saved["scores"]})
        if self:
            log.info("FT goes on: %d runs are done", len(self))

    def add(self, scores: dict[Part, Score]) -> None:
        """Add scores and save all of them."""
        self.update(scores)
        self.checkpoint.save({"scores": [(part, tuple(score)) for part, score in self.items()]})


class Transfer:
    """An FT run of a whole network, encoder and head, with Adam; the epoch with the best validation AUROC is tested.

    Encoder and buffers of `start` don't change. The generator, on the CPU, draws all that is random. `label` names the
    progress (None: none is shown). `curve` is the validation AUROC (%) after each epoch so far; `minibatches` yields
    those of an epoch.
    """

    def __init__(
        self,
        problem: FinetuneProblem,
        start: Pretrained,
        lr: float,
        generator: torch.Generator,
        label: str | None = None,
    ) -> None:
        self._problem, self._lr, self._label, self.curve = problem, lr, label, list[float]()
        self.minibatches = problem.sampler(generator)
        device = next(iter(start.encoder.values())).device
        trained = leaves(copied(start.encoder))
        self._head = leaves({k: value.to(device, copy=True) for k, value in problem.initial_head(generator).items()})
        self._trained = [*trained.values(), *self._head.values()]
        # One kernel for all parameters: a third of the time of the default.
        self._optimizer = without_compiler(torch.optim.Adam)(self._trained, lr=lr, fused=True)
        self._network = trained | copied(start.buffers)
        self._gradient: Callable[[Any], tuple[Tensor, list[Tensor | None]]] = self._differentiated
        if problem.capture and recorded_on(self._trained):
            self._gradient = Captured(self._differentiated, self._tensors, self._unchanging, "the FT loss")
        self._defined: Tensor | None = None  # the classes with both labels in validation

    def train(self, epochs: int) -> None:
        """Train until `epochs` epochs are done, counted from the start of the run."""
        seen: dict[str, Tensor] = {}
        for _ in steps(len(self.curve), epochs, self._label, status=seen):
            for batch in self.minibatches():
                seen["loss"] = self.step(batch)
            outputs, labels = self._outputs(self._network, self._head, "validation")
            self._defined = defined_classes(labels) if self._defined is None else self._defined
            self.curve.append(100 * float(mean_auroc(outputs, labels, self._defined)))
            if highest(self.curve) == len(self.curve) - 1:
                self._best = copied(self._network), copied(self._head)

    def step(self, batch: Any) -> Tensor:
        """Take a step on a minibatch, and return the loss before it, which the next step may overwrite."""
        loss, gradients = self._gradient(batch)
        for value, gradient in zip(self._trained, gradients, strict=True):
            value.grad = gradient
        self._optimizer.step()
        return loss

    def _loss(self, network: Params, batch: Any) -> Tensor:
        features, labels = self._problem.trained(network, batch)
        return F.binary_cross_entropy_with_logits(logits(self._head, features), labels)

    def _differentiated(self, batch: Any) -> tuple[Tensor, list[Tensor | None]]:
        """Return the FT loss, and its gradient w.r.t. each parameter of encoder and head."""
        loss = self._loss(self._network, batch)
        return loss.detach(), gradients_of(loss, self._trained)

    def _unchanging(self, batch: Any) -> Tensor:
        """Return the FT loss; buffers stay as they are."""
        with torch.no_grad():
            return self._loss(copied(self._network), batch)

    def _tensors(self) -> list[Tensor]:
        return [*self._network.values(), *self._head.values()]

    def _outputs(self, network: Params, head: Params, part: Split) -> tuple[Tensor, Tensor]:
        """Return logits and labels [n, classes] of all examples of a part."""
        features, labels = self._problem.examples(network, part)
        return logits(head, features), labels

    def score(self) -> Score:
        """Train to the end, and test."""
        self.train(self._problem.epochs)
        return score(self.curve, *self._outputs(*self._best, "test"), self._lr)


def check_examples(train: int, evaluated: Mapping[str, Tensor], classes: Sequence[str], unit: str) -> None:
    """Raise DataError for fewer than 2 examples to train on, or none evaluated on which the AUROC is defined.

    Warn of classes that the AUROC leaves out. `evaluated` has labels [n, classes] by names such as "validation ECGs",
    `unit` is the plural of an example.
    """
    if train < 2:
        raise DataError(f"FT trains on 2 or more {unit}, and here on {train}; take a larger FT set.")
    for name, labels in evaluated.items():
        undefined = undefined_classes(labels)
        if len(undefined) == len(classes):
            raise DataError(
                f"no class has both labels among the {len(labels)} {name}, so that no AUROC is defined; take more."
            )
        if undefined:
            names = ", ".join(classes[index] for index in undefined)
            log.warning("the AUROC on the %s leaves out %s: all %d have the same label", name, names, len(labels))


@dataclass(frozen=True)
class Start:
    """An encoder, and the FT runs that start from it."""

    parts: list[Part]
    problem: FinetuneProblem
    pretrained: Pretrained


def parts(settings: FinetuneSettings) -> list[Part]:
    """Return the parts of a job, in an order that does not depend on what a resumed job did first."""
    return [(name, number) for name in settings.evaluations for number in range(settings.finetune_seeds)]


def finetune(
    settings: FinetuneSettings,
    checkpoint: Checkpoint,
    starts: Callable[[list[Part]], Iterable[Start]],
    lrs: Sequence[float],
    trial_epochs: int | None = None,
) -> Scores:
    """Fine-tune and test all runs of a job, and keep their scores in the checkpoint.

    `starts` returns the encoders from which the remaining runs start. Of the learning rates `lrs` of FT of the whole
    network, the validation AUROC of the first FT seed chooses the one for all FT seeds; after `trial_epochs` only the
    best one goes on (None: all are trained to the end).
    """
    scores = Scores(checkpoint)
    todo = [part for part in parts(settings) if part not in scores]
    for start in list(starts(todo)) if todo else []:
        _linear(settings, start, scores)
        _transfer(settings, start, lrs, trial_epochs, scores)
    return scores


def _stream(settings: FinetuneSettings, part: Part) -> torch.Generator:
    evaluation, number = part
    return generator(f"{settings.domain} finetune", evaluation, settings.seed, number)


def _linear(settings: FinetuneSettings, start: Start, scores: Scores) -> None:
    linear = [part for part in start.parts if part[0] == LINEAR_EVALUATION]
    if linear:
        begin = time.monotonic()
        found = linear_evaluation(start.problem, start.pretrained, [_stream(settings, part) for part in linear])
        seconds = (time.monotonic() - begin) / len(linear)
        scores.add({part: each._replace(seconds=seconds) for part, each in zip(linear, found, strict=True)})


def _transfer(
    settings: FinetuneSettings, start: Start, lrs: Sequence[float], trial_epochs: int | None, scores: Scores
) -> None:
    def run(part: Part, lr: float) -> Transfer:
        label = f"FT of {settings.arm}, seeds {settings.seed} and {part[1]}, learning rate {lr:g}"
        return Transfer(start.problem, start.pretrained, lr, _stream(settings, part), label)

    def scored(part: Part, lr: float) -> Score:
        begin = time.monotonic()
        return run(part, lr).score()._replace(seconds=time.monotonic() - begin)

    def best_of_all(part: Part) -> Score:
        trials = {lr: (f"{FULL_TRANSFER} with learning rate {lr!r}", part[1]) for lr in lrs}
        for lr, trial in trials.items():
            if trial not in scores:
                scores.add({trial: scored(part, lr)})
        tried = [scores[trial] for trial in trials.values()]
        best = tried[highest([each.validation_auroc for each in tried])]
        return best._replace(seconds=sum(each.seconds for each in tried))

    def best_of_trials(part: Part, epochs: int) -> Score:
        begin = time.monotonic()
        trials = [run(part, lr) for lr in lrs]
        for trial in trials:
            trial.train(epochs)
        best = trials[highest([trial.curve[highest(trial.curve)] for trial in trials])]
        return best.score()._replace(seconds=time.monotonic() - begin)

    for part in (each for each in start.parts if each[0] == FULL_TRANSFER):
        first = (FULL_TRANSFER, 0)
        if part != first:
            scores.add({part: scored(part, scores[first].learning_rate)})
        elif trial_epochs is None:
            scores.add({part: best_of_all(part)})
        else:
            scores.add({part: best_of_trials(part, trial_epochs)})


def write(
    scores: Scores,
    settings: FinetuneSettings,
    setting: str,
    numbers: Callable[[Score], dict[str, float]],
    outputs: dict[str, Path],
    series: Callable[[Score], dict[str, dict[int, float]]] = lambda score: {},
) -> None:
    """Write `metrics` and `series` of an FT job from the scores of all its runs, and remove its checkpoint.

    `setting` is for the metrics table. `numbers` returns the numbers of a score by metric, and `series` its series
    (values by step) by name, to which that of the validation AUROC is added.
    """
    rows, points = [], []
    row = partial(metrics.row, settings.domain, settings.arm, setting=setting)
    for part in parts(settings):
        evaluation, replicate, score = part[0], pair(settings.seed, part[1]), scores[part]
        found = numbers(score) | {FT_TIME: score.seconds}
        rows += [row(*number, replicate=replicate, evaluation=evaluation) for number in found.items()]
        curves = series(score) | {VALIDATION_AUROC: dict(enumerate(score.validation_curve, 1))}
        for name, values in curves.items():
            words = {"replicate": replicate, "name": f"{evaluation}, {name}"}
            points += [words | {"step": step, "value": value} for step, value in values.items()]
    metrics.write(rows, outputs["metrics"])
    metrics.write_series(points, outputs["series"])
    scores.checkpoint.remove()
