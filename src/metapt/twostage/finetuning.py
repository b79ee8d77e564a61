"""An FT job: the FT runs of an arm from the encoder of a PT seed, for all FT seeds and evaluations."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from metapt.evaluation import metrics
from metapt.training.checkpoint import Checkpoint
from metapt.training.progress import seconds_left_out, steps
from metapt.training.seeds import generator
from metapt.twostage.heads import Score, highest
from metapt.twostage.quantities import FT_TIME, FULL_TRANSFER, LINEAR_EVALUATION, VALIDATION_AUROC
from metapt.twostage.replicates import pair
from metapt.twostage.transfer import Transfer

log = logging.getLogger(__name__)

Part = tuple[str, int]
"""An FT run: evaluation, FT seed."""


class Scores:
    """Scores of the finished parts, kept in a checkpoint.

    A killed job repeats at most one FT run, all linear evaluations, or the trials of the learning rate.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        saved = checkpoint.load() or {"scores": []}
        self._scores: dict[Part, Score] = {tuple(part): Score(*score) for part, score in saved["scores"]}
        if self._scores:
            log.info("FT goes on: %d runs are done", len(self._scores))

    def __contains__(self, part: Part) -> bool:
        return part in self._scores

    def __getitem__(self, part: Part) -> Score:
        return self._scores[part]

    def add(self, scores: dict[Part, Score]) -> None:
        """Add scores and save all of them."""
        self._scores |= scores
        self._checkpoint.save({"scores": [(part, tuple(score)) for part, score in self._scores.items()]})

    def remove(self) -> None:
        """Remove the checkpoint."""
        self._checkpoint.remove()


def parts(config: dict[str, Any]) -> list[Part]:
    """Return the parts of a job, whose `config` has `evaluations` and the number `finetune_seeds`.

    The order does not depend on what a resumed job did first.
    """
    return [(name, number) for name in config["evaluations"] for number in range(config["finetune_seeds"])]


@dataclass(frozen=True)
class Start:
    """An encoder, and the FT runs that start from it.

    Attributes:
        parts: the runs.
        linear: returns the scores of linear evaluations, given a random stream for each.
        transfer: returns an FT run of the whole network, given learning rate, random stream and label of the progress;
            None if the domain has no such evaluation.
    """

    parts: list[Part]
    linear: Callable[[list[torch.Generator]], list[Score]]
    transfer: Callable[[float, torch.Generator, str], Transfer] | None = None


def finetune(
    config: dict[str, Any],
    checkpoint: Checkpoint,
    starts: Callable[[list[Part]], Iterable[Start]],
    lrs: Sequence[float],
    trial_epochs: int | None = None,
) -> Scores:
    """Fine-tune and test all runs of a job.

    Args:
        config: of the job: `domain`, `arm`, `evaluations`, the PT `seed`, and the number `finetune_seeds`.
        checkpoint: keeps the scores.
        starts: returns the encoders from which runs start, given the remaining runs.
        lrs: learning rates of FT of the whole network. The validation AUROC of the first FT seed chooses the one for
            all FT seeds.
        trial_epochs: epochs after which only the best learning rate goes on; None: all are trained to the end.
    """
    scores = Scores(checkpoint)
    todo = [part for part in parts(config) if part not in scores]
    found = list(starts(todo)) if todo else []
    for index in steps(0, len(found), ends_rehearsal=True):
        _linear(config, found[index], scores)
        _transfer(config, found[index], lrs, trial_epochs, scores)
    return scores


def _stream(config: dict[str, Any], part: Part) -> torch.Generator:
    evaluation, number = part
    return generator(f"{config['domain']} finetune", evaluation, config["seed"], number)


def _now() -> float:
    """Return the wall time, plus the time of steps that a rehearsal leaves out."""
    return time.monotonic() + seconds_left_out()


def _linear(config: dict[str, Any], start: Start, scores: Scores) -> None:
    linear = [part for part in start.parts if part[0] == LINEAR_EVALUATION]
    if linear:
        begin = _now()
        found = start.linear([_stream(config, part) for part in linear])
        seconds = (_now() - begin) / len(linear)
        scores.add({part: each._replace(seconds=seconds) for part, each in zip(linear, found, strict=True)})


def _transfer(
    config: dict[str, Any], start: Start, lrs: Sequence[float], trial_epochs: int | None, scores: Scores
) -> None:
    def run(part: Part, lr: float) -> Transfer:
        label = f"FT of {config['arm']}, seeds {config['seed']} and {part[1]}, learning rate {lr:g}"
        assert start.transfer is not None, "the domain has no FT of the whole network"
        return start.transfer(lr, _stream(config, part), label)

    def scored(part: Part, lr: float) -> Score:
        begin = _now()
        return run(part, lr).score()._replace(seconds=_now() - begin)

    def best_of_all(part: Part) -> Score:
        trials = {lr: (f"{FULL_TRANSFER} with learning rate {lr!r}", part[1]) for lr in lrs}
        for lr, trial in trials.items():
            if trial not in scores:
                scores.add({trial: scored(part, lr)})
        tried = [scores[trial] for trial in trials.values()]
        best = tried[highest([each.validation_auroc for each in tried])]
        return best._replace(seconds=sum(each.seconds for each in tried))

    def best_of_trials(part: Part, epochs: int) -> Score:
        begin = _now()
        trials = [run(part, lr) for lr in lrs]
        for trial in trials:
            trial.train(epochs)
        best = trials[highest([trial.curve[highest(trial.curve)] for trial in trials])]
        return best.score()._replace(seconds=_now() - begin)

    whole = [part for part in start.parts if part[0] == FULL_TRANSFER]
    for index in steps(0, len(whole), kind=lambda index: whole[index][1] == 0, ends_rehearsal=True):
        part = whole[index]
        first = (FULL_TRANSFER, 0)
        if part != first:
            scores.add({part: scored(part, scores[first].learning_rate)})
        elif trial_epochs is None:
            scores.add({part: best_of_all(part)})
        else:
            scores.add({part: best_of_trials(part, trial_epochs)})


def write(
    scores: Scores,
    config: dict[str, Any],
    setting: str,
    numbers: Callable[[Score], dict[str, float]],
    outputs: dict[str, Path],
    series: Callable[[Score], Iterator[tuple[str, Iterable[int], Iterable[float]]]] = lambda score: iter(()),
) -> None:
    """Write the tables of an FT job, and remove its checkpoint.

    Args:
        scores: scores of all its runs.
        config: see `finetune`.
        setting: the setting in the metrics table.
        numbers: returns the numbers of a score by metric.
        outputs: paths of `metrics` and `series`.
        series: returns name, steps and values of the series of a score, apart from the validation AUROC of each epoch.
    """
    rows, steps = [], []
    row = partial(metrics.row, config["domain"], config["arm"], setting=setting)
    for part in parts(config):
        evaluation, replicate, score = part[0], pair(config["seed"], part[1]), scores[part]
        found = numbers(score) | {FT_TIME: score.seconds}
        rows += [row(*number, replicate=replicate, evaluation=evaluation) for number in found.items()]
        curve = score.validation_curve
        for name, numbered, values in (*series(score), (VALIDATION_AUROC, range(1, len(curve) + 1), curve)):
            steps += [
                {"replicate": replicate, "step": step, "name": f"{evaluation}, {name}", "value": value}
                for step, value in zip(numbered, values, strict=True)
            ]
    metrics.write(rows, outputs["metrics"])
    metrics.write_series(steps, outputs["series"])
    scores.remove()
