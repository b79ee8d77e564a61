"""The paper's heuristics (appendix "Practical Heuristics for Tuning Optimizer Parameters") as a check at the end of a run."""

from __future__ import annotations

import enum
import math
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from metapt.hypergrad import Diagnostics, Params, Status

_MOST_ELEMENTS = 1000
_POSITION = ("start", "previous", "middle", "furthest", "way", "count", "mean", "square")


class Verdict(enum.Enum):
    """What the run looks like, with the paper's advice."""

    WELL = "all well"
    OSCILLATING = (
        "phi is oscillating: decrease the learning rate of the meta-parameters; lower their momentum, or use an optimiser "
        "without (step 1)"
    )
    DIVERGING = f"the inverse fails: {Status.DIVERGED.value}"
    UNSTABLE = "PT is unstable: make sure that phi is stable, then decrease the PT learning rate until PT converges (step 2)"
    NOT_MOVING = (
        "phi is not moving: make sure that PT finds good solutions, begin with 1 Neumann term and add more while it helps, make "
        "sure that the unrolled FT steps converge, then increase the learning rate of the meta-parameters (step 3)"
    )
    FADED = (
        "the hypergradient has faded: phi has arrived, or it has saturated, so that PT no longer depends on it. Look where it "
        "is; if it has saturated, decrease the learning rate of the meta-parameters"
    )


@dataclass(frozen=True)
class Diagnosis:
    """A verdict and the figures that it rests on.

    Attributes:
        verdict: the first of the symptoms that is there.
        figures: see `Trace.diagnosis`.
        statuses: how often each outcome of the inverse, of FT and of the head's plain steps was seen.
    """

    verdict: Verdict
    figures: dict[str, float]
    statuses: dict[str, int]

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {value:.3g}" for name, value in self.figures.items())
        statuses = "; ".join(f"{count} times {status}" for status, count in self.statuses.items())
        return f"Diagnosis: {self.verdict.value}. Figures: {figures}. Hypergradients: {statuses or 'none'}."


class Trace:
    """What is kept of a run for its diagnosis: PT losses, hypergradient norms, and a summary of phi's way, of constant size.

    The way is followed at every meta-update (snapshots now and then can't see a phi that flips to and fro), over at most
    some 1,000 elements of phi.

    Args:
        meta: the initial meta-parameters.
        updates: meta-updates in the whole run.
    """

    swing_limit = 0.5
    straight_limit = 0.5
    rise_limit = 0.5
    move_limit = 1e-3
    fade_limit = 1e-2
    skipped_limit = 0.1

    def __init__(self, meta: Params, updates: int) -> None:
        self._late = updates // 2
        self._losses: list[Tensor] = []
        self._norms: list[float] = []
        self._statuses: Counter[str] = Counter()
        self._start = self._previous = self._middle = self._mean = _sample(meta)
        self._furthest = self._way = self._square = self._start.new_zeros(())
        self._count = self._start.new_zeros(())

    def record_loss(self, pretrain_loss: Tensor) -> None:
        """After each iteration: the loss of its last PT step."""
        self._losses.append(pretrain_loss)

    def record_hypergradient(self, figures: Diagnostics) -> None:
        """After each hypergradient."""
        self._statuses[figures.solve_status.value] += 1
        if figures.fit_status is not Status.OK:
            self._statuses[f"head: {figures.fit_status.value}"] += 1

    def record_skipped_head_step(self) -> None:
        """After each plain step of the FT head that was not finite, and so not taken."""
        self._statuses[f"step of the head: {Status.NON_FINITE.value}"] += 1

    def record_update(self, norm: float, meta: Params) -> None:
        """After each meta-update, applied or skipped: the norm of its hypergradient, and phi."""
        now = _sample(meta)
        self._furthest = torch.maximum(self._furthest, torch.linalg.vector_norm(now - self._start))
        if len(self._norms) < self._late:
            self._middle = now
        else:  # Welford's running mean and sum of squares
            self._way = self._way + torch.linalg.vector_norm(now - self._previous)
            self._count = self._count + 1
            before = now - (self._mean if self._count > 1 else now)
            self._mean = now - before + before / self._count
            self._square = self._square + before @ (now - self._mean)
        self._previous = now
        self._norms.append(norm)

    def diagnosis(self, skipped: dict[str, int]) -> Diagnosis:
        """The verdict on the run so far, from these figures; "late" is the second half of the meta-updates.

        moved: how far phi came from where it began, over its size there (over 1 per element if that is 0); under 0.001 it
            is not moving, nor when the median hypergradient is 0.
        swing: spread of phi late (root mean square about its mean), over the distance from its start to that mean, or over a
            tenth of its size where that is more. straight: how far it got late over the length of its way; 1 is a straight line.
            A swing over 0.5 that is not straight (under 0.5) is an oscillation.
        rise: how much of the fall of the PT loss was lost again by the last quarter of the run; over 0.5 it is unstable. A fall
            within the noise (4 median deviations) counts as the noise. Infinite if a loss was not finite.
        hypergradient: median norm. fade: median norm of the last quarter over that of the largest quarter, or of
            the beginning (a 32nd) if that is larger; under 0.01 it has faded.
        skipped: share of the meta-updates that were not applied. Over a tenth of exploding ones means that phi is changing
            wildly, of not finite ones that PT is unstable, and both that the inverse fails where most of its series diverged.
        """
        norms = [norm for norm in self._norms if math.isfinite(norm)]
        swing, straight = self._swing()
        share = {symptom: count / max(len(self._norms), 1) for symptom, count in skipped.items()}
        figures = {
            "moved": float(self._furthest) / self._size(),
            "swing": swing,
            "straight": straight,
            "rise": self._rise(),
            "hypergradient": statistics.median(norms) if norms else math.nan,
            "fade": _fade(norms),
            "skipped": sum(share.values()),
        }
        return Diagnosis(self._verdict(figures, share), figures, dict(self._statuses))

    def _verdict(self, figures: dict[str, float], share: dict[str, float]) -> Verdict:
        failed = share.get("exploding", 0.0) + share.get("not finite", 0.0) > self.skipped_limit
        if failed and self._statuses[Status.DIVERGED.value] > self._statuses.total() / 2:
            return Verdict.DIVERGING
        # The paper's order: while phi swings, PT can't settle.
        if figures["swing"] > self.swing_limit and figures["straight"] < self.straight_limit:
            return Verdict.OSCILLATING
        if share.get("exploding", 0.0) > self.skipped_limit:
            return Verdict.OSCILLATING
        if figures["rise"] > self.rise_limit or share.get("not finite", 0.0) > self.skipped_limit:
            return Verdict.UNSTABLE
        if self._norms and (figures["moved"] < self.move_limit or not figures["hypergradient"] > 0):
            return Verdict.NOT_MOVING
        if figures["fade"] < self.fade_limit:
            return Verdict.FADED
        return Verdict.WELL

    def _size(self) -> float:
        return float(torch.linalg.vector_norm(self._start)) or math.sqrt(self._start.numel())

    def _swing(self) -> tuple[float, float]:
        if not self._count:
            return 0.0, 1.0
        spread = math.sqrt(max(float(self._square / self._count), 0.0))
        progress = float(torch.linalg.vector_norm(self._mean - self._start))
        net, way = float(torch.linalg.vector_norm(self._previous - self._middle)), float(self._way)
        return spread / max(progress, 0.1 * self._size()), net / way if way > 0 else 1.0

    def _rise(self) -> float:
        losses = [float(loss) for loss in self._losses]
        if not all(map(math.isfinite, losses)):
            return math.inf
        if not losses:
            return 0.0
        first = statistics.median(_beginning(losses))
        parts = _quarters(losses)
        calmest = min(parts, key=statistics.median)
        best, last = statistics.median(calmest), statistics.median(parts[-1])
        noise = statistics.median(abs(loss - best) for loss in calmest)
        scale = max(first - best, 4 * noise)
        return (last - best) / scale if scale > 0 else (math.inf if last > best else 0.0)

    def state_dict(self) -> dict[str, Any]:
        return {
            "losses": torch.stack(self._losses) if self._losses else torch.zeros(0),
            "norms": list(self._norms),
            "statuses": dict(self._statuses),
            **{name: getattr(self, f"_{name}") for name in _POSITION},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._losses, self._norms = list(state["losses"]), list(state["norms"])
        self._statuses = Counter(state["statuses"])
        for name in _POSITION:
            setattr(self, f"_{name}", state[name])


def _sample(meta: Params) -> Tensor:
    flat = torch.cat([value.detach().reshape(-1) for value in meta.values()])
    stride = -(-flat.numel() // _MOST_ELEMENTS)
    return flat[::stride].to(torch.float64, copy=True)


def _quarters(values: list[float]) -> list[list[float]]:
    size = -(-len(values) // 4)
    return [values[start : start + size] for start in range(0, len(values), size)]


def _beginning(values: list[float]) -> list[float]:
    return values[: max(1, len(values) // 32)]


def _fade(norms: list[float]) -> float:
    medians = [statistics.median(part) for part in (_beginning(norms), *_quarters(norms))] if norms else [0.0]
    return medians[-1] / max(medians) if max(medians) > 0 else 1.0
