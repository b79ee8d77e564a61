"""The code of the guide is that of the example, and the example finds the planted answer."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "noise_levels.py"


def code_blocks() -> list[str]:
    guide = (ROOT / "docs" / "your-own-problem.md").read_text(encoding="utf-8")
    return [block.split("```")[0] for block in guide.split("```python\n")[1:]]


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("noise_levels", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_guide_shows_the_example() -> None:
    assert code_blocks()[0] == EXAMPLE.read_text(encoding="utf-8")


def test_the_example_is_short() -> None:
    lines = [line.strip() for line in EXAMPLE.read_text(encoding="utf-8").splitlines()]
    assert len([line for line in lines if line and not line.startswith(("#", '"""'))]) <= 75


def test_the_guides_single_call_gives_a_gradient_per_feature(example: ModuleType) -> None:
    exec(code_blocks()[1], vars(example))
    gradient = example.result.gradient["noise"]
    assert gradient.shape == (example.FEATURES,)
    assert torch.isfinite(gradient).all()


def test_the_guides_headroom_says_what_can_be_gained(example: ModuleType) -> None:
    exec(code_blocks()[2].replace("steps=1000", "steps=30, settings=3, seeds=2"), vars(example))
    assert str(example.found).startswith("settings explain ")
    assert len(example.found.rows) == 4 * 2


def test_the_example_puts_the_noise_on_the_useless_features_and_compares_arms_trained_alike(
    example: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Recorded(example.Data):  # type: ignore[name-defined, misc]
        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            seen.append([])

        def pretrain(self) -> Any:
            batch = super().pretrain()
            seen[-1].append(batch)
            return batch

    monkeypatch.setattr(example, "Data", Recorded)
    noise, accuracy = example.main(seed=0)
    assert noise[: example.USEFUL].max() < 0.25
    assert noise[example.USEFUL :].min() > 0.75
    assert accuracy["learned noise"] > accuracy["half noise"] + 10
    assert "Diagnosis: all well" in capsys.readouterr().out
    assert [len(batches) for batches in seen] == [1000] * len(accuracy) == [1000] * 3
    for batches in zip(*seen, strict=True):
        assert all(
            torch.equal(part, first) for batch in batches[1:] for part, first in zip(batch, batches[0], strict=True)
        )


def test_the_examples_data_go_on_from_their_state(example: ModuleType) -> None:
    data = example.Data(seed=0)
    for _ in range(3):
        data.pretrain(), data.hypergradient(), data.hypergradient()
    again = example.Data(seed=0)
    again.load_state_dict(data.state_dict())
    for name in ("pretrain", "hypergradient"):
        first, second = getattr(data, name)(), getattr(again, name)()
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
