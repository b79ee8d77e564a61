"""Decorators of tests that say what a user brings and what metapt makes of it, and the table that is made of them.

`python -m tests.unit.users.kinds` writes the table into the documentation; `test_table.py` fails if it is another one.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

PAGE = Path(__file__).parents[3] / "docs/what-you-bring.md"
HEADER = ("what you bring", "what metapt does", "what to do")


class Kind(NamedTuple):
    """A row of the table."""

    what: str
    outcome: str
    do: str


def right(what: str, do: str = "", tolerance: float = 1e-9) -> Callable[..., Any]:
    """Mark a test that returns what metapt computes and what is right, and check that they agree.

    Args:
        what: what the user brings, for the table.
        do: what the user should know or do.
        tolerance: the largest distance of the two, relative to what is right.
    """

    def decorate(test: Callable[..., tuple[Any, Any]]) -> Callable[..., None]:
        @functools.wraps(test)
        def checked(*arguments: Any, **named: Any) -> None:
            ours, truth = (_flat(value) for value in test(*arguments, **named))
            assert ours.shape == truth.shape
            distance = float((ours - truth).norm() / (truth.norm() or 1))
            assert distance <= tolerance, f"metapt {ours[:4]}, right {truth[:4]}, {distance:.1e} apart"

        return _kept(checked, Kind(what, "right", do))

    return decorate


def refused(what: str, words: tuple[str, ...], do: str) -> Callable[..., Any]:
    """Mark a test of something that metapt refuses, and check that its error has all of `words` and is its own."""

    def decorate(test: Callable[..., object]) -> Callable[..., None]:
        @functools.wraps(test)
        def checked(*arguments: Any, **named: Any) -> None:
            with pytest.raises(Exception) as found:  # noqa: PT011
                test(*arguments, **named)
            raised = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(found.value.__traceback__)][-1]
            assert raised.startswith("metapt"), f"the error comes from {raised}: {found.value!r}"
            _check_words(str(found.value), words)

        return _kept(checked, Kind(what, "refused", do))

    return decorate


def warned(what: str, words: tuple[str, ...], do: str) -> Callable[..., Any]:
    """Mark a test of something of which metapt warns, and check that one of its warnings has all of `words`."""

    def decorate(test: Callable[..., object]) -> Callable[..., None]:
        @functools.wraps(test)
        def checked(*arguments: Any, **named: Any) -> None:
            heard = Heard()
            logger = logging.getLogger("metapt")
            logger.addHandler(heard)
            try:
                test(*arguments, **named)
            finally:
                logger.removeHandler(heard)
            assert heard.messages, "metapt logged no warning"
            best = max(heard.messages, key=lambda text: sum(word.lower() in text.lower() for word in words))
            _check_words(best, words)

        return _kept(checked, Kind(what, "warns", do))

    return decorate


class Heard(logging.Handler):
    """The warnings that a logger has got."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def table() -> str:
    """Return the table as Markdown: a section for each test module, in the order of their names.

    What is right as it is stands below the table. What has the same outcome and advice is one row.
    """
    parts = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"{__package__}.{path.stem}")
        found = dict.fromkeys(value.kind for value in vars(module).values() if hasattr(value, "kind"))
        if found:
            title = (inspect.getdoc(module) or "").splitlines()[0].rstrip(".")
            lines = [f"## {title}", ""]
            groups: dict[tuple[str, str], list[str]] = {}
            for kind in found:
                groups.setdefault((kind.outcome, kind.do), []).append(kind.what)
            fine = [what for what in groups.pop(("right", ""), []) if what not in {kind.do for kind in found}]
            if groups:
                rows = [HEADER, ("---",) * 3, *(("; ".join(what), *key) for key, what in groups.items())]
                lines += [*(f"| {' | '.join(row)} |" for row in rows), ""]
            if fine:
                lines += [f"Right as they are: {'; '.join(fine)}."]
            parts.append("\n".join(lines).rstrip())
    return "\n\n".join(parts) + "\n"


def page() -> str:
    """Return the page of the documentation with the present table: all before its first section stays."""
    return PAGE.read_text().partition("## ")[0].rstrip() + "\n\n" + table()


def _kept(test: Callable[..., None], kind: Kind) -> Callable[..., None]:
    test.kind = kind  # type: ignore[attr-defined]
    return test


def _check_words(text: str, words: tuple[str, ...]) -> None:
    missing = [word for word in words if word.lower() not in text.lower()]
    assert not missing, f"{missing} not in: {text}"


def _flat(value: Any) -> Tensor:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return torch.cat([_flat(each) for each in value])
    return torch.as_tensor(value, dtype=torch.float64).detach().flatten()


if __name__ == "__main__":
    PAGE.write_text(page())
