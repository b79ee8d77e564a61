"""The paper's heuristics as a check at the end of a run.

They are in the appendix "Practical Heuristics for Tuning Optimizer Parameters".
"""

from __future__ import annotations

import enum
import math
import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from metapt.hypergrad import Diagnostics, Params, Status

_MOST_ELEMENTS = 1000
_LEAST = 20  # with four losses in a quarter of a run, noise alone would often pass for a rise
_FIT = {
    Status.MAX_STEPS: "FT not fitted to its tolerance: raise its max_steps, its tolerance or l2",
    Status.INDEFINITE: "FT loss with negative curvature in the head: raise l2",
    Status.NON_FINITE: "FT not finite",
}
_TRAJECTORY = ("start", "previous", "middle", "furthest", "length", "count", "mean", "square")


class Verdict(enum.Enum):
    """The state of a run, with the paper's advice."""

    WELL = "all well"
    OSCILLATING = (
        "the meta-parameters are oscillating: decrease the learning rate of the meta-parameters; lower their momentum, "
        "or use an optimiser without (step 1)"
    )
    DIVERGING = f"the inverse fails: {Status.DIVERGED.value}"
    LOST = "the meta-parameters are not finite: decrease their learning rate"
    UNSTABLE = (
        "PT is unstable: make sure that the meta-parameters are stable, then decrease the PT learning rate until PT "
        "converges (step 2)"
    )
    NOT_FINITE = "more than a tenth of the hypergradients were not finite and not applied, for the reasons below"
    ZERO = "hypergradients were exactly 0 or 0 up to rounding, for the reasons below: nothing is learned from them"
    NOT_MOVING = (
        "the meta-parameters are not moving: make sure that PT finds good solutions, begin with 1 Neumann term and add "
        "more while it helps, make sure that FT steps converge where FT is unrolled, then increase the learning rate "
        "of the meta-parameters (step 3)"
    )
    UNSOLVED = "more than a tenth of the hypergradients were not solved as asked; what to do is said below"
    FADED = (
        "the hypergradient has faded: the meta-parameters have arrived, or they have saturated, so that PT no longer "
        "depends on them. Look where they are; if they have saturated, decrease their learning rate"
    )
    SHORT = f"the run is too short to tell: fewer than {_LEAST} iterations or meta-updates"


@dataclass(frozen=True)
class Diagnosis:
    """A verdict on a run, and the figures from which it follows.

    Attributes:
        verdict: the first symptom that was found.
        figures: see `Trace.diagnosis`; NaN where the run was too short to tell.
        statuses: number of times that each status of the inverse, of FT and of steps of the head was seen, and each
            reason why a hypergradient was not finite or 0.
    """

    verdict: Verdict
    figures: dict[str, float]
    statuses: dict[str, int]

    @property
    def alarming(self) -> bool:
        """Return whether the verdict is a symptom."""
        return self.verdict not in (Verdict.WELL, Verdict.FADED, Verdict.SHORT)

    def __str__(self) -> str:
        solved = sum(self.statuses.get(status.value, 0) for status in Status)
        statuses = "; ".join(f"{count} times {status}" for status, count in self.statuses.items())
        figures = ", ".join(map(_in_words, self.figures, self.figures.values()))
        return f"Diagnosis: {self.verdict.value}. Of {solved} hypergradients: {statuses or 'none'}. Figures: {figures}."


class Trace:
    """Records of a run for its diagnosis: PT losses, norms of hypergradients, and statistics of the trajectory of phi.

    The statistics are updated at every meta-update, since occasional snapshots can't show a phi that alternates between
    two values. They have constant size and use at most about 1,000 elements of phi.

    Args:
        meta: the initial meta-parameters.
        updates: number of meta-updates in the whole run.
    """

    swing_limit = 0.5
    straight_limit = 0.5
    rise_limit = 0.5
    move_limit = 1e-3
    fade_limit = 1e-2
    skipped_limit = 0.1  # Adam's usual first moment is a mean over ten: then each step of phi has such a one in it

    def __init__(self, meta: Params, updates: int) -> None:
        self._late = updates // 2
        self._losses: list[Tensor] = []
        self._norms: list[float] = []
        self._statuses: Counter[str] = Counter()
        self._start = self._previous = self._middle = self._mean = _sample(meta)
        self._furthest = self._length = self._square = self._start.new_zeros(())
        self._count = torch.zeros((), dtype=self._start.dtype)  # on the CPU, so that reading it never waits for a GPU

    def record_loss(self, pretrain_loss: Tensor) -> None:
        """Record the loss of the last PT step of an iteration; call it after each iteration."""
        self._losses.append(pretrain_loss)

    def record_hypergradient(self, figures: Diagnostics) -> None:
        """Record the statuses of a hypergradient; call it after each one."""
        self._statuses[figures.solve_status.value] += 1
        if figures.fit_status is not Status.OK:
            self._statuses[_FIT.get(figures.fit_status, f"FT {figures.fit_status.value}")] += 1

    def record_skipped_head_step(self) -> None:
        """Record a step of the FT head that was not taken, since it was not finite."""
        self._statuses["a step of the FT head not finite and not taken"] += 1

    def record_update(self, norm: float, meta: Params, cause: str = "") -> None:
        """Record the norm of a hypergradient, and phi; call it after each meta-update, applied or skipped.

        `cause` says why a norm is not finite, 0, or up to rounding 0, which counts as 0 (see `guard.cause_of`).
        """
        if norm == 0:
            self._statuses[f"exactly 0, {cause}"] += 1
        elif not math.isfinite(norm):
            self._statuses[f"not finite, {cause}"] += 1
        elif cause.startswith("as "):
            self._statuses[f"0 up to rounding, {cause}"] += 1
            norm = 0.0
        now = _sample(meta)
        self._furthest = torch.maximum(self._furthest, torch.linalg.vector_norm(now - self._start))
        if len(self._norms) < self._late:
            self._middle = now
        else:  # running mean and sum of squares (Welford 1962)
            self._length = self._length + torch.linalg.vector_norm(now - self._previous)
            self._count = self._count + 1
            before = now - (self._mean if self._count > 1 else now)
            self._mean = now - before + before / self._count
            self._square = self._square + before @ (now - self._mean)
        self._previous = now
        self._norms.append(norm)

    def diagnosis(self, skipped: dict[str, int]) -> Diagnosis:
        """Return the verdict on the run so far, with the figures from which it follows.

        "Late" means the second half of the meta-updates. Of fewer than 20 meta-updates swing, straight and fade are
        NaN, of fewer than 20 iterations rise: they could not be told from noise.

        moved: largest distance of phi from its start, divided by the norm of the start (by the root of the number of
            elements if that is 0). Below 0.001, after 20 meta-updates, phi is not moving.
            Not finite if phi was not.
        swing: standard deviation of phi late (root mean square distance from its mean), divided by the larger of the
            distance from its start to that mean and a tenth of the norm of the start.
        straight: distance between phi in the middle and at the end of the updates, divided by the length of the
            trajectory between them; 1 for a straight line. phi oscillates if swing is above 0.5 and straight below 0.5.
        rise: rise of the PT loss from the quarter of the run with the smallest median to the last quarter, divided by
            its fall to that smallest median, or by 4 median absolute deviations from the quarters' medians if that is
            more (by more of them if a quarter has fewer than 20 losses). If the loss was never again as low as in the
            first 32nd and has grown tenfold, it is the rise since then, divided by the loss there. Above 0.5 PT is
            unstable. Infinite if a loss was not finite.
        hypergradient: median norm of the hypergradients; NaN if none was finite. It is 0 if most are.
        fade: median norm of the last quarter, divided by the largest median of the quarters and of the first 32nd.
            Below 0.01 the hypergradient has faded.
        skipped: fraction of the meta-updates that were not applied. If more than a tenth exploded, phi is changing
            wildly; more than a tenth that were not finite are a verdict of their own; if more than a tenth did either
            and most series of the inverse diverged, the inverse fails.

        If the inverse or FT was not solved as asked for more than a tenth of the hypergradients, the verdict says so.

        Args:
            skipped: number of skipped meta-updates by symptom (see `HypergradientGuard`).
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
        """Return the first symptom; no comparison with a figure that is NaN is true."""
        failed = share.get("exploding", 0.0) + share.get("not finite", 0.0) > self.skipped_limit
        if failed and 2 * self._statuses[Status.DIVERGED.value] > self._solved():
            return Verdict.DIVERGING
        if not math.isfinite(figures["moved"]):
            return Verdict.LOST
        # The order is the paper's: PT can't be stable while phi oscillates.
        if figures["swing"] > self.swing_limit and figures["straight"] < self.straight_limit:
            return Verdict.OSCILLATING
        if share.get("exploding", 0.0) > self.skipped_limit:
            return Verdict.OSCILLATING
        if figures["rise"] > self.rise_limit:
            return Verdict.UNSTABLE
        if share.get("not finite", 0.0) > self.skipped_limit:
            return Verdict.NOT_FINITE
        if figures["hypergradient"] == 0 and (any(self._norms[-len(self._norms) // 4 :]) or not any(self._norms)):
            return Verdict.ZERO  # and not at the end only
        if len(self._norms) >= _LEAST and figures["moved"] < self.move_limit:
            return Verdict.NOT_MOVING
        if self._unsolved() > self.skipped_limit * self._solved():
            return Verdict.UNSOLVED
        if figures["fade"] < self.fade_limit:
            return Verdict.FADED
        if min(len(self._norms), len(self._losses)) < _LEAST:
            return Verdict.SHORT
        return Verdict.WELL

    def _unsolved(self) -> int:
        """Return the number of times that the inverse or FT, whichever is more, was not solved as asked."""
        inverse = self._solved() - self._statuses[Status.OK.value]
        return max(inverse, sum(count for status, count in self._statuses.items() if status.startswith("FT ")))

    def _solved(self) -> int:
        """Return the number of solves with the inverse so far, without the statuses of the head."""
        return sum(self._statuses[status.value] for status in Status)

    def _size(self) -> float:
        """Return the norm of the initial phi; the root of its number of elements if that is 0."""
        return float(torch.linalg.vector_norm(self._start)) or math.sqrt(self._start.numel())

    def _swing(self) -> tuple[float, float]:
        if len(self._norms) < _LEAST or not self._count:
            return math.nan, math.nan
        deviation = math.sqrt(max(float(self._square / self._count), 0.0))
        progress = float(torch.linalg.vector_norm(self._mean - self._start))
        net, length = float(torch.linalg.vector_norm(self._previous - self._middle)), float(self._length)
        return deviation / max(progress, 0.1 * self._size()), net / length if length > 0 else 1.0

    def _rise(self) -> float:
        losses = torch.stack(self._losses).tolist() if self._losses else []
        if not all(map(math.isfinite, losses)):
            return math.inf
        if len(losses) < _LEAST:
            return math.nan
        parts = _quarters(losses)
        medians = [statistics.median(part) for part in parts]
        start = _beginning(losses)
        first, best, last = statistics.median(start), min(medians), medians[-1]
        if first < min(losses[len(start) :]) and last > 10 * abs(first):  # PT diverged at once
            return (last - first) / max(abs(first), sys.float_info.min)
        noise = statistics.median(
            abs(loss - median) for part, median in zip(parts, medians, strict=True) for loss in part
        )
        # The median of a few losses is less certain: at each length the limit is about 3 of its standard errors.
        noise *= max(1.0, math.sqrt(20 / len(parts[-1])))
        rounding = 4 * torch.finfo(self._losses[0].dtype).eps * abs(best)
        return (last - best) / max(first - best, 4 * noise, rounding, sys.float_info.min)

    def state_dict(self) -> dict[str, Any]:
        """Return the records so far, as tensors and plain values."""
        return {
            "losses": torch.stack(self._losses) if self._losses else torch.zeros(0),
            "norms": list(self._norms),
            "statuses": dict(self._statuses),
            **{name: getattr(self, f"_{name}") for name in _TRAJECTORY},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the records in `state`.

        In a run that has become longer, what was late and is not any more is left out of the statistics, unless some of
        it still is late: then all of it stays in.
        """
        self._losses, self._norms = list(state["losses"]), list(state["norms"])
        self._statuses = Counter(state["statuses"])
        for name in _TRAJECTORY:
            setattr(self, f"_{name}", state[name])
        if len(self._norms) <= self._late:
            self._middle = self._previous
            self._length = self._square = self._start.new_zeros(())
            self._count = torch.zeros_like(self._count)


def _sample(meta: Params) -> Tensor:
    """Return at most 1,000 elements of phi, evenly spaced, in float64."""
    flat = torch.cat([value.detach().reshape(-1) for value in meta.values()])
    stride = -(-flat.numel() // _MOST_ELEMENTS)
    return flat[::stride].to(torch.float64, copy=True)


def _quarters(values: list[float]) -> list[list[float]]:
    """Return the values in four parts whose lengths differ by at most one."""
    bounds = [number * len(values) // 4 for number in range(5)]
    return [values[start:end] for start, end in pairwise(bounds)]


def _beginning(values: list[float]) -> list[float]:
    """Return the first 32nd of the values, or the first one."""
    return values[: max(1, len(values) // 32)]


def _fade(norms: list[float]) -> float:
    if len(norms) < _LEAST:
        return math.nan
    medians = [statistics.median(part) for part in (_beginning(norms), *_quarters(norms))]
    return medians[-1] / max(medians) if max(medians) > 0 else 1.0


def _in_words(name: str, value: float) -> str:
    if math.isfinite(value):
        return f"{name} {value:.3g}"
    return f"{name} not finite" if math.isinf(value) else f"{name} unknown"
