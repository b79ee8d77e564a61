"""The examples are short, run, and find what was planted in their data."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def learned(name: str) -> Any:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_has_at_most_100_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 100


def test_classes_that_are_wrong_labels_get_less_weight(capsys: pytest.CaptureFixture[str]) -> None:
    weights = learned("class_weights")
    assert weights[:5].mean() > 2 * weights[5:].mean()
    assert "Weights of the classes: [" in capsys.readouterr().out


def test_the_channel_that_does_not_matter_later_gets_the_stronger_augmentation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = learned("signal_views")
    assert second > first + 0.2
    assert "Share of noise: first channel " in capsys.readouterr().out


def test_tasks_of_noise_get_less_weight(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch_geometric")
    weights = learned("graph_task_weights")
    assert weights[:3].mean() > 1.5 * weights[3:].mean()
    assert "Weights of the tasks: [" in capsys.readouterr().out
