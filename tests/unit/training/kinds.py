"""Decorators of tests that say what metapt makes of what a user brings.

Each stands for a row of the tables of `docs/what-you-bring.md`, which it names by its first column or the beginning of
it. `test_modules.py` fails if a row has no test; a test without its row can't be imported.
"""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

PAGE = Path(__file__).parents[3] / "docs/what-you-bring.md"
ROWS = {
    (what, outcome)
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ")
    for what, outcome, _ in [[part.strip() for part in line.strip("|").split(" | ")]]
    if outcome in ("right", "refused", "warns")
}
TESTED: set[tuple[str, str]] = set()


def right(row: str, tolerance: float = 1e-9) -> Callable[..., Any]:
    """Check that the two results that a test returns agree: metapt's, and what is right.

    `tolerance` is their largest distance, relative to what is right.
    """

    def check(test: Callable[[], tuple[Any, Any]]) -> None:
        ours, truth = map(_flat, test())
        assert ours.shape == truth.shape
        distance = float((ours - truth).norm() / (truth.norm() or 1))
        assert distance <= tolerance, f"metapt {ours[:4]}, right {truth[:4]}, {distance:.1e} apart"

    return _checked(row, "right", check)


def refused(row: str, *words: str, error: type[Exception] = Exception) -> Callable[..., Any]:
    """Check that metapt itself raises an `error` in a test, and that it has all of `words`."""

    def check(test: Callable[[], object]) -> None:
        with pytest.raises(error) as found:
            test()
        raised = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(found.value.__traceback__)][-1]
        assert raised.startswith("metapt"), f"the error comes from {raised}: {found.value!r}"
        _has(str(found.value), words)

    return _checked(row, "refused", check)


def warned(row: str, *words: str) -> Callable[..., Any]:
    """Check that metapt logs a warning in a test that has all of `words`."""

    def check(test: Callable[[], object]) -> None:
        with heard() as messages:
            test()
        assert messages, "metapt logged no warning"
        _has(max(messages, key=lambda text: sum(word.lower() in text.lower() for word in words)), words)

    return _checked(row, "warns", check)


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collect the warnings that metapt logs inside the context."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("metapt").addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger("metapt").removeHandler(handler)


def _checked(row: str, outcome: str, check: Callable[..., None]) -> Callable[..., Any]:
    found = {each for each in ROWS if each == (row, outcome)} or {
        (what, kind) for what, kind in ROWS if what.startswith(row) and kind == outcome
    }
    assert len(found) == 1, f"{PAGE} has {len(found)} rows {row!r} that are {outcome}"
    TESTED.update(found)

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(test)
        def checked(*arguments: Any, **named: Any) -> None:
            check(lambda: test(*arguments, **named))

        return checked

    return decorate


def _has(text: str, words: tuple[str, ...]) -> None:
    missing = [word for word in words if word.lower() not in text.lower()]
    assert not missing, f"{missing} not in: {text}"


def _flat(value: Any) -> Tensor:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return torch.cat([torch.zeros(0, dtype=torch.float64), *map(_flat, value)])
    return torch.as_tensor(value, dtype=torch.float64).detach().flatten()
