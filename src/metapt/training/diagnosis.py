"""The paper's heuristics (appendix "Practical Heuristics for Tuning Optimizer Parameters") as a check at the end of a run."""

from __future__ import annotations

import enum
import itertools
import math
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from metapt.hypergrad import Diagnostics, Params, Status

_SNAPSHOTS = 32
_MOST_ELEMENTS = 1000


class Verdict(enum.Enum):
    """What the run looks like, with the paper's advice."""

    WELL = "all well"
    OSCILLATING = "phi is oscillating: decrease the learning rate of the meta-parameters; lower their momentum, or use an optimiser without (step 1)"
    UNSTABLE = "PT is unstable: make sure that phi is stable, then decrease the PT learning rate until PT converges (step 2)"
    NOT_MOVING = (
        "phi is not moving: make sure that PT finds good solutions, begin with 1 Neumann term and add more while it helps, make sure that the "
        "unrolled FT steps converge, then increase the learning rate of the meta-parameters (step 3)"
    )


@dataclass(frozen=True)
class Diagnosis:
    """A verdict and the figures that it rests on.

    Attributes:
        verdict: the first of the symptoms that is there.
        figures: see `Trace.diagnosis`.
        statuses: how often each outcome of the inverse and of the head's fit was seen.
    """

    verdict: Verdict
    figures: dict[str, float]
    statuses: dict[str, int]

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {value:.3g}" for name, value in self.figures.items())
        statuses = "; ".join(f"{count} times {status}" for status, count in self.statuses.items())
        return f"Diagnosis: {self.verdict.value}. Figures: {figures}. Meta-updates: {statuses or 'none'}."


class Trace:
    """What is kept of a run for its diagnosis: PT losses, norms, and some 30 snapshots of (at most 1,000 elements of) phi."""

    turn_limit = -0.3
    rise_limit = 2.0
    move_limit = 1e-3

    def __init__(self, meta: Params, iterations: int) -> None:
        self._every = max(1, iterations // _SNAPSHOTS)
        self._snapshots = [_sample(meta)]
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []
        self._statuses: Counter[str] = Counter()

    def record(self, iteration: int, pretrain_loss: Tensor, meta: Params) -> None:
        self._losses.append(pretrain_loss)
        if iteration % self._every == 0:
            self._snapshots.append(_sample(meta))

    def record_update(self, figures: Diagnostics) -> None:
        self._norms.append(figures.gradient_norm)
        self._statuses[figures.solve_status.value] += 1
        if figures.fit_status is not Status.OK:
            self._statuses[f"head: {figures.fit_status.value}"] += 1

    def diagnosis(self, skipped: dict[str, int]) -> Diagnosis:
        """The verdict on the run so far, from these figures.

        turn: mean cosine between successive moves of phi in the second half of the run; 1 straight, 0 a random walk, below -0.3 oscillating.
        moved: length of phi's way over the size of phi; below 0.001 not moving.
        rise: median PT loss of the last quarter over that of the best quarter; above 2, or a loss that is not finite, unstable.
        hypergradient: median norm. skipped: share of the meta-updates that were not applied.
        """
        turn, moved = self._turn(), self._moved()
        rise, finite = self._rise()
        updates = max(len(self._norms), 1)
        norms = [value for value in map(float, self._norms) if math.isfinite(value)]
        figures = {
            "turn": turn,
            "moved": moved,
            "rise": rise,
            "hypergradient": statistics.median(norms) if norms else math.nan,
            "skipped": sum(skipped.values()) / updates,
        }
        if not finite or rise > self.rise_limit:
            verdict = Verdict.UNSTABLE
        elif turn < self.turn_limit:
            verdict = Verdict.OSCILLATING
        elif self._norms and moved < self.move_limit:
            verdict = Verdict.NOT_MOVING
        else:
            verdict = Verdict.WELL
        # Step 1 comes before step 2 in the paper: while phi swings, PT can't settle.
        if verdict is Verdict.UNSTABLE and turn < self.turn_limit:
            verdict = Verdict.OSCILLATING
        return Diagnosis(verdict, figures, dict(self._statuses))

    def _moves(self) -> list[Tensor]:
        return [after - before for before, after in itertools.pairwise(self._snapshots)]

    def _turn(self) -> float:
        moves = self._moves()
        late = moves[len(moves) // 2 :]
        cosines = [float(torch.nn.functional.cosine_similarity(a, b, dim=0)) for a, b in itertools.pairwise(late)]
        return statistics.fmean(cosines) if cosines else 0.0

    def _moved(self) -> float:
        way = sum(float(torch.linalg.vector_norm(move)) for move in self._moves())
        size = max(float(torch.linalg.vector_norm(self._snapshots[0])), float(torch.linalg.vector_norm(self._snapshots[-1])))
        return way / size if size > 0 else 0.0

    def _rise(self) -> tuple[float, bool]:
        losses = [float(loss) for loss in self._losses]
        if not all(map(math.isfinite, losses)):
            return math.nan, False
        quarter = max(1, len(losses) // 4)
        medians = [statistics.median(losses[start : start + quarter]) for start in range(0, len(losses) - quarter + 1, quarter)]
        best = min(medians) if medians else 0.0
        return (medians[-1] / best if best > 0 else 1.0), True

    def state_dict(self) -> dict[str, Any]:
        return {
            "snapshots": self._snapshots,
            "losses": torch.stack(self._losses) if self._losses else torch.zeros(0),
            "norms": torch.stack(self._norms) if self._norms else torch.zeros(0),
            "statuses": dict(self._statuses),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._snapshots = list(state["snapshots"])
        self._losses, self._norms = list(state["losses"]), list(state["norms"])
        self._statuses = Counter(state["statuses"])


def _sample(meta: Params) -> Tensor:
    flat = torch.cat([value.detach().reshape(-1) for value in meta.values()])
    stride = max(1, flat.numel() // _MOST_ELEMENTS)
    return flat[::stride].clone()
