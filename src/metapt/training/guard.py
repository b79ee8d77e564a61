"""A guard against hypergradients that are not finite or far larger than those before: they are not applied."""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from typing import Any

from metapt.errors import TrainingError

log = logging.getLogger(__name__)

ADVICE = {
    "not finite": "the unrolled FT steps or the PT loss diverge: lower the FT learning rate first, then the PT "
    "learning rate",
    "exploding": "the meta-parameters are changing wildly: lower the learning rate of the meta-parameters, or use an "
    "optimiser without momentum for them; once they are stable, lower the PT learning rate",
}
"""The paper's advice for each symptom (appendix "Practical Heuristics for Tuning Optimizer Parameters")."""


class HypergradientGuard:
    """A running criterion for whether a hypergradient is applied.

    A hypergradient is skipped if its norm is not finite, or exceeds `explosion_factor` times the median of the last
    `window` norms that were applied and not 0, of which there must be `least_history`. After `max_skipped` skipped ones
    in a row the run stops.

    Args:
        explosion_factor: the largest accepted ratio of a norm to the running median.
        max_skipped: skipped hypergradients in a row at which the run stops.

    Attributes:
        skipped: number of skipped hypergradients by symptom.
    """

    window = 100
    least_history = 10

    def __init__(self, explosion_factor: float, max_skipped: int) -> None:
        self.explosion_factor = explosion_factor
        self.max_skipped = max_skipped
        self.skipped = {"not finite": 0, "exploding": 0}
        self._in_a_row = 0
        self._norms: deque[float] = deque(maxlen=self.window)

    def accepts(self, norm: float, iteration: int, cause: str = "", advice: str | None = None) -> bool:
        """Return whether to apply a hypergradient; count and log one that is skipped.

        Args:
            norm: norm of the hypergradient.
            iteration: number of the meta-iteration, for the log.
            cause: what is known about the cause, for the log.
            advice: replaces the paper's advice for the symptom, if the cause is known.

        Raises:
            TrainingError: `max_skipped` hypergradients in a row were skipped.
        """
        symptom = self._symptom(norm)
        if symptom is None:
            if norm > 0:
                self._norms.append(norm)
            self._in_a_row = 0
            return True
        self.skipped[symptom] += 1
        self._in_a_row += 1
        log.warning(
            "the hypergradient at iteration %d is not applied: it is %s (norm %.3g)%s", iteration, symptom, norm, cause
        )
        if self._in_a_row >= self.max_skipped:
            advice = advice or ADVICE[symptom]
            raise TrainingError(
                f"{self._in_a_row} hypergradients in a row could not be applied, the last one, at iteration "
                f"{iteration}, was {symptom} (norm {norm:.3g}). {advice[0].upper()}{advice[1:]}."
            )
        return False

    def _symptom(self, norm: float) -> str | None:
        """Return why a hypergradient of this norm is skipped, or None."""
        if not math.isfinite(norm):
            return "not finite"
        if len(self._norms) >= self.least_history and norm > self.explosion_factor * statistics.median(self._norms):
            return "exploding"
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the counts and norms so far, as plain values."""
        return {"skipped": dict(self.skipped), "in_a_row": self._in_a_row, "norms": list(self._norms)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.skipped = dict(state["skipped"])
        self._in_a_row = state["in_a_row"]
        self._norms = deque(state["norms"], maxlen=self.window)
