"""How patiently a server is asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metapt.fetching import web
from metapt.fetching.failures import Absent, Cut, Failure, NoAnswer

URL = "http://somewhere/data"


def failing(*failures: Failure) -> Callable[[], str]:
    """Fails in turn, then answers."""
    left = list(failures)

    def get() -> str:
        if left:
            raise left.pop(0)
        return "the file"

    return get


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr(web.time, "sleep", taken.append)
    monkeypatch.setattr(web, "PATIENCE", web.Patience(attempts=4, pause=0.5))
    return taken


def test_each_pause_is_twice_as_long_and_the_last_attempt_has_none(pauses: list[float]) -> None:
    with pytest.raises(Cut):
        web.patiently(URL, {}, failing(*[Cut("cut")] * 4))
    assert pauses == [0.5, 1.0, 2.0]
    assert web.patiently(URL, {}, failing(*[NoAnswer("silent")] * 3)) == "the file"


def test_only_a_host_that_does_not_answer_is_not_asked_again(pauses: list[float]) -> None:
    unreachable: dict[str, str] = {}
    with pytest.raises(Cut):
        web.patiently(URL, unreachable, failing(*[Cut("cut")] * 4))
    with pytest.raises(Absent):
        web.patiently(URL, unreachable, failing(Absent("not there")))
    assert unreachable == {}
    with pytest.raises(NoAnswer):
        web.patiently(URL, unreachable, failing(*[NoAnswer("silent")] * 4))
    with pytest.raises(NoAnswer, match="silent"):
        web.patiently("http://somewhere/else", unreachable, failing())
    assert web.patiently("http://elsewhere/data", unreachable, failing()) == "the file"
