"""The examples are short, and they learn."""

from __future__ import annotations

import base64
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


NOTEBOOK = [
    ("".join(cell["source"]), cell["outputs"])
    for cell in json.loads((EXAMPLES / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]
    if cell["cell_type"] == "code"
]
"""Code and outputs of each cell."""
NUMBER = r"\d+(?:\.\d+)?"


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


def test_the_anchor_of_bissl_has_the_dense_hypergradient_and_pays(capsys: pytest.CaptureFixture[str]) -> None:
    distance, (plain, fixed, learned_anchor) = learned("bissl")
    assert distance < 1e-9
    assert learned_anchor > max(plain, fixed) + 5
    assert "of its norm away from that of dense matrices" in capsys.readouterr().out


def test_the_augmentation_that_destroys_the_class_gets_weaker(capsys: pytest.CaptureFixture[str]) -> None:
    strengths, (fixed, with_learned) = learned("augmentation_policy")
    assert strengths["warp"] < 0.25
    assert strengths["scale"] > 0.75, "amplitudes say nothing about the class"
    assert with_learned > fixed
    assert "Diagnosis: all well" in capsys.readouterr().out


def test_the_notebook_keeps_what_it_prints_and_draws(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    drawn: list[int] = []
    monkeypatch.setattr(pyplot, "show", lambda: drawn.extend(pyplot.get_fignums()))
    names: dict[str, Any] = {"__name__": "notebook"}
    for code, outputs in NOTEBOOK:
        drawn.clear()
        exec(code, names)
        pictures = [base64.b64decode(each["data"]["image/png"]) for each in outputs if "data" in each]
        assert len(pictures) == len(drawn)
        assert all(picture.startswith(b"\x89PNG") and len(picture) < 60_000 for picture in pictures)
        pyplot.close("all")
        printed = capsys.readouterr().out
        kept = "".join(line for each in outputs if each.get("name") == "stdout" for line in each["text"])
        assert re.sub(NUMBER, "", printed) == re.sub(NUMBER, "", kept)
        close = pytest.approx([float(number) for number in re.findall(NUMBER, kept)], abs=0.05, rel=0.05)
        assert [float(number) for number in re.findall(NUMBER, printed)] == close
    assert names["found"]["learned noise"] > names["found"]["half noise"] + 10
