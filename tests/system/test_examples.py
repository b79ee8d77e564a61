"""The examples are short, and they learn."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def learned(name: str) -> Any:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_has_at_most_100_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 100


def test_classes_that_are_wrong_labels_get_less_weight(capsys: pytest.CaptureFixture[str]) -> None:
    weights = learned("class_weights")
    assert weights[:5].mean() > weights[5:].mean()
    assert "Weights of the classes: [" in capsys.readouterr().out


def test_the_weights_of_graph_tasks_are_learned(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch_geometric")
    weights = learned("graph_task_weights")
    assert weights.sum().item() == pytest.approx(len(weights), rel=1e-4)
    assert weights.std() > 0.1, "which ones get more depends on the random seed"
    assert "Weights of the tasks: [" in capsys.readouterr().out


@pytest.mark.slow
def test_the_augmentation_that_destroys_the_class_gets_weaker(capsys: pytest.CaptureFixture[str]) -> None:
    strengths, (fixed, with_learned) = learned("augmentation_policy")
    assert strengths["warp"] < 0.25
    assert strengths["scale"] > 0.75, "amplitudes say nothing about the class"
    assert with_learned > fixed
    assert "Diagnosis: all well" in capsys.readouterr().out
