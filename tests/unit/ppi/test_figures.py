"""Figures of the PPI experiments have no empty panel, also with few arms or diverged runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from metapt.errors import DataError
from metapt.evaluation.experiment import SUMMARY

from .synthetic_results import CONFIG, MAKERS, Runs, runs_of, written


def drawn(runs: Runs) -> Figure:
    runs.write()
    return runs.experiment.figure(runs.results())


@pytest.mark.parametrize("key", MAKERS)
@pytest.mark.parametrize("seeds", [1, 3])
def test_no_panel_is_empty_and_no_label_is_cut(key: str, seeds: int, tmp_path: Path) -> None:
    default = CONFIG.model_validate({key: {}})
    many = {key: {"arms": ["no_pt", "graph_supervised", "cotrain_learned_weights", "meta"]}}
    figure = drawn(
        runs_of(key, tmp_path, pretrain_seeds=seeds, **(many if len(getattr(default, key).arms) > 5 else {}))
    )
    figure.draw_without_rendering()
    whole = figure.bbox.padded(2)
    for axis in figure.axes:
        assert axis.has_data() or axis.images, "an empty panel"
        box = axis.get_tightbbox()
        assert box is not None
        assert whole.x0 < box.x0 <= box.x1 < whole.x1, axis.get_title()
        assert whole.y0 < box.y0 <= box.y1 < whole.y1, axis.get_title()


@pytest.mark.parametrize("key", ["cost", "learned_weights"])
def test_an_experiment_leaves_its_files(key: str, tmp_path: Path) -> None:
    assert set(written(key, tmp_path).summarise()) == set(SUMMARY)


def test_each_arm_has_a_panel_of_ft_tasks(tmp_path: Path) -> None:
    figure = drawn(runs_of("negative_transfer", tmp_path, negative_transfer={"arms": ["graph_supervised", "meta"]}))
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["graph supervised", "meta"]
    assert "29 % lose" in [text.get_text() for text in figure.axes[0].texts]


def test_no_auroc_of_single_tasks(tmp_path: Path) -> None:
    runs = runs_of("negative_transfer", tmp_path, negative_transfer={"arms": ["meta"]})
    runs.task_auroc = lambda arm, evaluation, seed: np.array([])
    with pytest.raises(DataError, match="no FT run with the AUROC of single tasks"):
        drawn(runs)


def test_ft_heads_of_all_arms_are_drawn_over_pt_steps(tmp_path: Path) -> None:
    """Two arms count iterations of ten PT steps."""
    figure = drawn(runs_of("during_pretraining", tmp_path))
    for axis in figure.axes:
        ends = [max(line.get_xdata()) for line in axis.lines if len(line.get_xdata()) > 1]
        assert len(ends) >= 4
        assert set(ends) == {1000}


def test_ft_heads_that_were_tested_at_the_end_only(tmp_path: Path) -> None:
    runs = runs_of("during_pretraining", tmp_path)
    runs.write()
    runs.inputs = {name: path for name, path in runs.inputs.items() if not name.endswith("/series")}
    assert len(runs.experiment.figure(runs.results()).axes) == 2


@pytest.mark.parametrize("key", ["full_access", "learned_weights"])
def test_what_diverged_is_drawn_without_it(key: str, tmp_path: Path) -> None:
    runs = runs_of(key, tmp_path)
    weight: Any = runs.weight
    runs.gap = lambda arm, setting, seed: math.nan if seed == 1 and arm.startswith("meta") else 0.0
    runs.weight = lambda arm, setting, seed: (
        weight(arm, setting, seed) * np.where((np.arange(60) == 3) & (seed == 1), math.nan, 1)
    )
    drawn(runs).draw_without_rendering()
