"""Requests are repeated within their limits."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from metapt.fetching import Absent, Cut, Failure, NoAnswer, web
from metapt.fetching.source import Place

URL = "http://somewhere/data"


def failing(*failures: Failure) -> Callable[[Place], None]:
    """Return a function that raises the failures in turn, and then succeeds."""
    left = list(failures)

    def get(_: Place) -> None:
        if left:
            raise left.pop(0)

    return get


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr(time, "sleep", taken.append)
    monkeypatch.setattr(web, "PATIENCE", web.Patience(attempts=4, pause=0.5))
    return taken


def test_each_pause_is_twice_as_long_and_the_last_attempt_has_none(pauses: list[float]) -> None:
    with web.Web() as opened, pytest.raises(Cut):
        opened.patiently(failing(*[Cut("cut")] * 4), URL)
    assert pauses == [0.5, 1.0, 2.0]
    with web.Web() as opened:
        opened.patiently(failing(*[NoAnswer("silent")] * 3), URL)


def test_only_a_host_that_does_not_answer_is_not_asked_again(pauses: list[float]) -> None:
    with web.Web() as opened:
        with pytest.raises(Cut):
            opened.patiently(failing(*[Cut("cut")] * 4), URL)
        with pytest.raises(Absent):
            opened.patiently(failing(Absent("not there")), URL)
        opened.patiently(failing(), URL)
        with pytest.raises(NoAnswer):
            opened.patiently(failing(*[NoAnswer("silent")] * 4), URL)
        with pytest.raises(NoAnswer, match="silent"):
            opened.patiently(failing(), "http://somewhere/else")
        opened.patiently(failing(), "http://elsewhere/data")
