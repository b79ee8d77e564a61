"""The controls of an arm that learns a hyperparameter of PT."""

from __future__ import annotations

from collections.abc import Mapping

from metapt.domains.ecg.config import (
    Arm,
    EcgMeta,
    NoPretraining,
    RandomSearch,
    Simclr,
    WarpOf,
    learns_warp,
    resolved,
)
from metapt.twostage.arms import counterpart, equal_to


def controls(name: str, arms: Mapping[str, Arm]) -> list[str]:
    """Return the controls of an arm that learns a hyperparameter; each differs from it in one thing.

    They are SimCLR with the hyperparameter as it was at the start, and SimCLR with the learned warp throughout. A meta
    arm has its placebos and, of equal budget, a random search of the strength of a warp with the same smoothing.
    """
    arm = arms[name]
    if isinstance(arm, NoPretraining) or not learns(arm):
        return []
    wanted: list[Arm] = [counterpart(Simclr, arm)]
    if learns_warp(arm):
        wanted += [counterpart(Simclr, arm, warp_of=WarpOf(of=name))]
    if isinstance(arm, EcgMeta):
        wanted += [arm.model_copy(update={"placebo": placebo}) for placebo in ("permuted_labels", "random_sign")]
    found = equal_to(wanted, {other: resolved(each, arms) for other, each in arms.items()})
    if isinstance(arm, EcgMeta):
        searches = {other: each for other, each in arms.items() if isinstance(each, RandomSearch)}
        found += [
            other
            for other, each in searches.items()
            if each.warp.smoothing == arm.warp.smoothing
            and (each.pretrain, each.finetune) == (arm.pretrain, arm.finetune)
        ]
    return found


def learns(arm: Arm) -> bool:
    """Return whether the arm learns a hyperparameter of PT, and is no control of one that does."""
    if isinstance(arm, EcgMeta):
        return arm.placebo is None
    return learns_warp(arm)
