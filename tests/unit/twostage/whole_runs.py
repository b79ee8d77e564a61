"""What tests of whole PT runs share: comparison to the bit, initial weights, and runs that are interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from metapt.hypergrad import Params, Pretrained
from metapt.training.checkpoint import Checkpoint
from metapt.training.interruption import Every
from metapt.training.pretraining import Pretrainer
from metapt.twostage.pretraining import PretrainRun


def equal(first: Params, second: Params) -> bool:
    """Return whether both have the same names and the same bits."""
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def the_same(first: PretrainRun, second: PretrainRun) -> bool:
    """Return whether two runs end with the same bits, on the same way."""
    parts = [equal(a, b) for a, b in zip(first.pretrained, second.pretrained, strict=True)]
    return all(parts) and equal(first.meta, second.meta) and first.series == second.series


@contextmanager
def initial_weights() -> Iterator[list[Pretrained]]:
    """Fill the list with the initial weights of each trainer that is made."""
    starts: list[Pretrained] = []
    init = Pretrainer.__init__

    def spy(self: Pretrainer, problem: Any, batches: Any, pretrained: Pretrained, optimizer: Any) -> None:
        starts.append(Pretrained(*({k: v.clone() for k, v in part.items()} for part in pretrained)))
        init(self, problem, batches, pretrained, optimizer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pretrainer, "__init__", spy)
        yield starts


class Stopped(Exception):
    """The end of a process."""


class Fragile(Checkpoint):
    """A checkpoint that ends the process at every second save, in turn before and after it has saved."""

    saves = 0

    def save(self, state: dict[str, Any]) -> None:
        Fragile.saves += 1
        if Fragile.saves % 4 == 2:
            raise Stopped
        super().save(state)
        if Fragile.saves % 4 == 0:
            raise Stopped


def interrupted(attempt: Callable[[type[Checkpoint]], PretrainRun]) -> PretrainRun:
    """Return a run that is stopped at least twice, and attempted again until it ends; it saves whenever it can."""
    Fragile.saves, stops = 0, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Every, "__call__", lambda self: True)
        while True:
            try:
                done = attempt(Fragile)
            except Stopped:
                stops += 1
            else:
                assert stops >= 2
                return done
