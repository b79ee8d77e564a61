"""A guard against hypergradients that are not finite or far larger than those before: they are not applied."""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from metapt.errors import TrainingError
from metapt.hypergrad import Diagnostics, FineTuning, Status

log = logging.getLogger(__name__)

NO_VALUE = "a logarithm, a root or a division without a value"
ADVICE = {
    "not finite": f"look for NaN in the minibatches, and for {NO_VALUE} in the losses; then lower the learning rates",
    "exploding": "the meta-parameters are changing wildly: lower the learning rate of the meta-parameters, or use an "
    "optimiser without momentum for them; once they are stable, lower the PT learning rate",
}
"""Advice for each symptom; the second is the paper's ("Practical Heuristics for Tuning Optimizer Parameters")."""
_CONSTANT = "it is piecewise constant or cut off there (round, sign, argmax, a comparison, clamp, detach"
_TINY = 1e-12
"""A norm below which a hypergradient may be rounding; 1e-7 is usual on protein graphs."""
_FLAT_PT = f"the gradient of the PT loss has derivative 0 w.r.t. the meta-parameters: {_CONSTANT})"
_FLAT_FT = (
    f"the FT validation loss has derivative 0 w.r.t. the encoder: {_CONSTANT}, an FT head of 0: lower l2, or take "
    "another FT head; units that are off or saturated for all examples, as after PT that diverged)"
)


class HypergradientGuard:
    """A running criterion for whether a hypergradient is applied.

    A hypergradient is skipped if its norm is not finite, or exceeds `explosion_factor` times the median of the last
    `window` norms that were applied and not 0, of which there must be `least_history`. After `max_skipped` skipped ones
    in a row the run stops.

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

    def accepts(self, norm: float, iteration: int, cause: str = "", advice: str = "") -> bool:
        """Return whether to apply a hypergradient; count and log one that is skipped.

        Args:
            norm: norm of the hypergradient.
            iteration: number of the meta-iteration, for the log.
            cause: what is known about the cause, as a clause: "as the PT loss was not finite".
            advice: replaces that for the symptom, if the cause is known.

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
        found = f"{symptom} (norm {norm:.3g}){cause and f', {cause}'}."
        advice = advice or ADVICE[symptom]
        advice = f"{advice[0].upper()}{advice[1:]}."
        said = f" {advice}" if self._in_a_row == 1 else ""
        log.warning("the hypergradient at iteration %d is not applied: it is %s%s", iteration, found, said)
        if self._in_a_row >= self.max_skipped:
            raise TrainingError(
                f"{self._in_a_row} hypergradients in a row could not be applied; the last one, at iteration "
                f"{iteration}, was {found} {advice}"
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


def cause_of(seen: Sequence[Diagnostics], norm: float, finetuning: FineTuning) -> tuple[str, str]:
    """Return why the mean of the hypergradients `seen` is not finite, 0 or skipped, and advice; both empty if unknown.

    `norm` is that of the mean. A cause of 0, exact or up to rounding, or of what is not finite begins with "as".
    Tensors are read only if the mean is not finite or almost 0, since reading waits for a GPU.
    """
    if norm < _TINY:
        sloped = any(map(_is_sloped, seen))
        if norm == 0 or not sloped:
            return f"as {_FLAT_PT if sloped else _FLAT_FT}", ""
    if not math.isfinite(norm):
        first = next((figures for figures in seen if figures.not_finite()), None)
        if first is None:
            return "as its norm overflows" if math.isinf(norm) else "as it has NaN", ""
        cause, advice = _first_not_finite(first, finetuning)
        return f"as {cause}", advice
    failed = dict.fromkeys(figures.solve_status for figures in seen if figures.solve_status is not Status.OK)
    grown = [status.value for status in failed if status in (Status.DIVERGED, Status.SINGULAR)]
    return "and " + "; ".join(status.value for status in failed) if failed else "", "; ".join(grown)


def _first_not_finite(figures: Diagnostics, finetuning: FineTuning) -> tuple[str, str]:
    """Return which quantity of a hypergradient was not finite first, in words, and what to do about it.

    The order is that in which one spoils the next: a PT loss that is not finite comes before anything else.
    """
    names = figures.not_finite()
    steps = finetuning.minibatches if finetuning.optimizer is not None else 0
    slower = "; then lower the FT learning rate" if steps else ""
    moved = "; if it was finite at first, lower the learning rate of the meta-parameters"
    look = f"look for NaN in the {{}} minibatches, and for {NO_VALUE} in {{}}"
    no_slope = "look for infinity in the minibatches, and for the root of 0 or the like in {}, which has no derivative"
    losses = "encode and the FT loss"
    if "pretrain_loss" in names:
        value = _value(figures.pretrain_loss)
        advice = look.format("PT", "the PT loss") + "; then lower the PT learning rate"
        return f"the PT loss on the PT minibatch was {value}", advice
    if "finetune_losses" in names:
        each = figures.finetune_losses.flatten()
        taken = len(list(takewhile(bool, each.square().isfinite().tolist())))
        value = _value(each[min(taken, len(each) - 1)])
        if not steps:
            return f"the FT training loss was {value}", look.format("FT", losses)
        advice = look.format("FT training", losses) + (slower if taken else "")
        return f"the FT training loss after {taken} of {steps} FT steps was {value}", advice
    if "validation_loss" in names:
        value = _value(figures.validation_loss)
        return f"the FT validation loss was {value}", look.format("FT validation", losses) + slower
    for name, part in {"head_gradient_norm": "FT head", "encoder_gradient_norm": "encoder"}.items():
        if name in names:
            cause = f"the derivative of the FT loss w.r.t. the {part} was not finite"
            return cause, no_slope.format(losses) + slower
    if figures.fit_status is Status.NON_FINITE:
        return "the FT head was not finite after FT", no_slope.format("the FT loss") + slower
    if figures.solve_status in (Status.DIVERGED, Status.SINGULAR):
        return "the product with the inverse Hessian was not finite", figures.solve_status.value
    return "a derivative of the PT loss was not finite", no_slope.format("the PT loss") + moved


def _value(number: Tensor) -> str:
    """Return a number whose square is not finite in words."""
    return "too large" if math.isfinite(value := float(number)) else str(value)


def _is_sloped(figures: Diagnostics) -> bool:
    """Return whether the FT validation loss has a derivative w.r.t. the encoder that is more than rounding."""
    slope = figures.encoder_gradient_norm
    return bool(slope > torch.finfo(slope.dtype).eps * figures.validation_loss.abs())
