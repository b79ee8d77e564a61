"""oneDNN multiplies float32 matrices only where it was seen to be as exact and faster, then in all runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from metapt.errors import ConfigError
from metapt.training import products
from metapt.training.products import LARGEST_ERROR, VARIABLE, Products, decide, look

from ...clock import Clock


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VARIABLE, raising=False)
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


EXACT = dict.fromkeys(("highest", "medium"), torch.float64)
BOTH = dict.fromkeys(EXACT, torch.bfloat16)


@pytest.mark.parametrize(
    ("seconds", "types", "setting", "reason"),
    [
        (0.0111, EXACT, "medium", "at least 1.1 times as fast"),
        (0.0109, EXACT, "highest", "not 1.1 times as fast"),
        (0.03, EXACT | {"medium": torch.bfloat16}, "highest", "less exact than 1e-06"),
        (0.03, BOTH, "highest", "less exact than 1e-06"),
    ],
)
def test_medium_is_taken_where_it_is_exact_and_faster(
    seconds: float, types: dict[str, torch.dtype], setting: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, times = Clock(), {"highest": seconds, "medium": 0.01}

    def product(left: Tensor, right: Tensor) -> Tensor:
        setting = torch.get_float32_matmul_precision()
        clock.work(times[setting])
        return (left.to(types[setting]) @ right.to(types[setting])).float()

    for name, value in {"_product": product, "time": clock, "_SHAPE": (8, 8, 8)}.items():
        monkeypatch.setattr(products, name, value)
    found = look()
    assert found.setting == setting
    assert reason in found.reason
    assert reason in str(found)
    assert set(found.errors) == set(found.rates) == {"highest", "medium"}


def test_a_look_is_short_and_leaves_the_setting_and_the_random_numbers() -> None:
    torch.set_float32_matmul_precision("high")
    state = torch.get_rng_state()
    start = time.process_time()
    found = look()
    assert time.process_time() - start < 1
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.equal(torch.get_rng_state(), state)
    assert found.errors["highest"] < LARGEST_ERROR
    found.apply()
    assert torch.get_float32_matmul_precision() == found.setting


CHOICES = [Products(setting, "measured", {"highest": 1e-7}, {"highest": 2.0}) for setting in ("medium", "highest")]


def test_later_runs_take_over_the_first_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looks = iter(CHOICES * 2)
    monkeypatch.setattr(products, "look", lambda: next(looks))
    assert decide("cpu", tmp_path / "made") == (first := CHOICES[0])
    second = decide("cpu", tmp_path / "made")
    assert (second.setting, second.errors, second.rates) == (first.setting, first.errors, first.rates)
    assert "as " in second.reason
    assert decide("cpu", tmp_path / "made") == second
    assert decide("cpu").setting == "highest"
    monkeypatch.setattr(torch, "__version__", "another")
    assert decide("cpu", tmp_path / "made") == first
    assert len([*(tmp_path / "made").iterdir()]) == 2


def test_the_choice_of_a_job_that_was_faster_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = CHOICES

    def slower() -> Products:
        monkeypatch.setattr(products, "look", lambda: theirs)
        decide("cpu", tmp_path)  # another job begins and ends while this one measures
        return ours

    monkeypatch.setattr(products, "look", slower)
    assert [decide("cpu", tmp_path).setting for _ in range(2)] == [theirs.setting] * 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"setting": "low", "reason": "", "errors": {}, "rates": {}}'])
def test_a_kept_choice_that_cannot_be_read_is_made_anew(
    tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "look", lambda: CHOICES[0])
    decide("cpu", tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(content)
    assert decide("cpu", tmp_path) == CHOICES[0]
    assert path.read_text() != content


@pytest.mark.parametrize("setting", ["highest", "medium"])
def test_the_environment_overrules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str) -> None:
    monkeypatch.setenv(VARIABLE, setting)
    assert decide("cpu", tmp_path) == Products(setting, f"{VARIABLE} is set", {}, {})
    assert not list(tmp_path.iterdir())
    assert decide("cuda", tmp_path).setting == "highest", "on a GPU products stay exact"
    monkeypatch.setenv(VARIABLE, "fast")
    with pytest.raises(ConfigError, match="METAPT_FLOAT32_PRODUCTS is 'fast'; legal: highest or medium"):
        decide("cpu")
