"""A search of hyperparameters with whole PT runs that share all random numbers, each judged by FT.

A candidate is a place: the coordinates of the hyperparameters, relative to their start at 0. A candidate whose AUROC is
not a number, since its PT or FT has diverged, loses against any other.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from metapt.errors import TrainingError
from metapt.evaluation import metrics
from metapt.hypergrad import Params, Pretrained
from metapt.training import progress
from metapt.training.checkpoint import Checkpoint
from metapt.training.measure import Measured
from metapt.training.pretraining import Pretrainer
from metapt.twostage.heads import highest
from metapt.twostage.pretraining import PretrainRun, time_per_step
from metapt.twostage.quantities import CROSS_VALIDATED_AUROC

log = logging.getLogger(__name__)

Place = tuple[float, ...]


class Judged(Protocol):
    """Candidates whose AUROC can be asked for."""

    def auroc(self, place: Place) -> float: ...


def by_secants(candidates: Judged, directions: Sequence[Place], step: float, shrink: float) -> Place:
    """Compare two candidates on opposite sides of the present place, go to the better one, and repeat.

    Where both diverge it stays, and the next round is nearer.

    Args:
        candidates: give the AUROC at a place.
        directions: of each round, from the present place to its first candidate when the step is 1.
        step: of the first round.
        shrink: factor on the step after each round.

    Returns:
        The last place that was gone to, which is that of a candidate; if all diverge, that of one of the last round.
    """
    place: Place = (0.0,) * len(directions[0])
    ends: list[Place] = []
    moved = False
    for number in progress.steps(0, len(directions), "secants"):
        ends = [
            tuple(at + sign * step * along for at, along in zip(place, directions[number], strict=True))
            for sign in (1, -1)
        ]
        aurocs = [candidates.auroc(end) for end in ends]
        if not all(map(math.isnan, aurocs)):
            place, moved = ends[highest(aurocs)], True
        step *= shrink
    return place if moved else ends[0]


def at_random(candidates: Judged, places: Sequence[Place]) -> Place:
    """Return the place with the highest AUROC."""
    aurocs = {index: candidates.auroc(places[index]) for index in progress.steps(0, len(places), "random candidates")}
    return places[list(aurocs)[highest(list(aurocs.values()))]]


@dataclass
class Candidates:
    """The PT runs of a search and their results, which are kept in checkpoints until the search ends.

    Attributes:
        start: returns the trainer of a place at its start, and its meta-parameters.
        judge: returns the AUROC (%) of an encoder.
        described: returns the values of a place by name, for the table of series.
        steps: PT steps of a run.
        device: kind of the device.
        checkpoint: returns the checkpoint of a part of the search.
    """

    start: Callable[[Place], tuple[Pretrainer, Params]]
    judge: Callable[[Pretrained], float]
    described: Callable[[Place], Mapping[str, float]]
    steps: int
    device: str
    checkpoint: Callable[[str], Checkpoint]
    _results: Checkpoint = field(init=False)
    _aurocs: dict[Place, float] = field(init=False)
    _numbers: dict[str, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._results = self.checkpoint("-search")
        self._aurocs = dict((self._results.load() or {"aurocs": {}})["aurocs"])

    def auroc(self, place: Place) -> float:
        """Return the AUROC (%) of the candidate at `place`, after its PT and FT if it is a new one.

        It is NaN if they diverge.
        """
        known = self._aurocs.get(place)
        if known is not None:
            return known
        try:
            pretrained, _ = self._pretrained(place, len(self._aurocs))
            found = self.judge(pretrained)
        except TrainingError as error:
            log.warning("candidate %d has no result: %s", len(self._aurocs) + 1, error)
            found = math.nan
        self._aurocs[place] = found
        self._results.save({"aurocs": self._aurocs})
        return found

    def run(self, place: Place) -> PretrainRun:
        """Return the PT run of a candidate whose AUROC was asked for. Raises TrainingError if it diverges."""
        pretrained, meta = self._pretrained(place, list(self._aurocs).index(place))
        described = [self.described(each) for each in self._aurocs]
        columns = {name: [each[name] for each in described] for name in described[0]}
        columns[CROSS_VALIDATED_AUROC] = list(self._aurocs.values())
        series = [row for name, values in columns.items() for row in metrics.series(name, values)]
        parts = [self.checkpoint(f"-candidate{number}") for number in range(len(self._aurocs))]
        return PretrainRun(pretrained, meta, dict(self._numbers), series, [*parts, self._results])

    def _pretrained(self, place: Place, number: int) -> tuple[Pretrained, Params]:
        """Return the result of the PT run of candidate `number`; a finished run is read from its checkpoint."""
        trainer, meta = self.start(place)
        with Measured(self.device) as measured:
            checkpoint = self.checkpoint(f"-candidate{number}")
            taken = trainer.run(meta, self.steps, f"PT of candidate {number + 1}", checkpoint)
        if taken or not self._numbers:
            self._numbers = time_per_step(measured, taken)
        return trainer.pretrained, meta
