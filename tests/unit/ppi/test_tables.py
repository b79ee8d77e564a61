"""Tables and figures of the PPI experiments, from metrics whose answers are known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metapt.errors import DataError
from metapt.evaluation.statistics import estimate_mean
from metapt.evaluation.tables import mean_and_error

from .synthetic_results import FEW, MAKERS, SEED_SPREAD, runs_of, weights_of, written


def test_the_experiments_of_the_paper_come_first() -> None:
    assert [
        *("full_access", "half_data", "held_out_tasks", "summary", "during_pretraining"),
        *("representations", "learned_weights", "negative_transfer", "cost"),
    ] == MAKERS


def test_auroc_beside_the_papers_and_differences_paired_by_pt_seed(tmp_path: Path) -> None:
    numbers, markdown = written("full_access", tmp_path, full_access=FEW).tabled()
    cells = numbers[numbers["minus"].isna()].set_index(["evaluation", "arm"])
    cell = cells.loc[("linear_evaluation", "graph_supervised")]
    runs = np.add.outer(SEED_SPREAD, 0.3 * np.arange(-2, 3)) + 73.0
    assert cell["mean"] == pytest.approx(73.0)
    assert cell["standard_error"] == pytest.approx(runs.std(ddof=1) / math.sqrt(25))
    assert cell["seed_standard_error"] == pytest.approx(np.std(SEED_SPREAD, ddof=1) / math.sqrt(5))
    assert (cell["n"], cell["seeds"]) == (25, 5)
    assert (cell["paper_mean"], cell["paper_standard_error"]) == (74.7, 0.1)
    assert math.isnan(cells.loc[("linear_evaluation", "no_pt"), "paper_mean"])
    assert "73.00 ± 0.11 [0.2]" in markdown
    assert "74.7 ± 0.1" in markdown

    differences = numbers[numbers["minus"].notna()].set_index(["arm", "minus", "evaluation"])
    assert set(differences.index.droplevel(2)) == {
        ("graph_supervised", "no_pt"),
        ("meta", "graph_supervised"),
        ("meta", "no_pt"),
        ("meta-stable", "graph_supervised"),
    }
    d, half = differences.loc["meta", "graph_supervised", "full_transfer"], 2.776445 * math.sqrt(0.53 / 5)
    assert (d["mean"], d["low"], d["high"]) == pytest.approx((0.4, 0.4 - half, 0.4 + half))


def test_the_summary_names_the_better_evaluation(tmp_path: Path) -> None:
    runs = runs_of("summary", tmp_path, summary=FEW, half_data=FEW, held_out_tasks=FEW)
    plain = runs.auroc
    runs.gap = lambda arm, setting, seed: math.nan if (arm, seed) == ("meta-stable", 1) else 0.0
    runs.auroc = lambda arm, setting, evaluation: (
        plain(arm, setting, evaluation) + (3 if (arm, evaluation) == ("no_pt", "full_transfer") else 0)
    )
    numbers = runs.write().tabled()[0].set_index(["setting", "arm"])
    assert numbers.loc[("full_access", "no_pt"), "best"] == "full_transfer"
    assert numbers.loc[("half_data", "meta"), "best"] == "linear_evaluation"
    assert numbers.loc[("held_out_tasks", "meta"), "paper_mean"] == 77.0
    assert len(numbers) == 3 * 4
    assert math.isnan(numbers.loc[("full_access", "meta-stable"), "mean"]), "a run that diverged is not averaged away"


@pytest.mark.parametrize(("settings", "best"), [({}, "full_transfer"), ({"choose": "test"}, "linear_evaluation")])
def test_the_better_evaluation_is_chosen_on_validation(settings: dict[str, str], best: str, tmp_path: Path) -> None:
    runs = runs_of("summary", tmp_path, finetune_seeds=1, summary=FEW | settings, half_data=None, held_out_tasks=FEW)
    runs.validation = lambda arm, setting, evaluation: 2.0 if evaluation == "full_transfer" else 0.0
    numbers, markdown = runs.write().tabled()
    assert set(numbers["best"]) == {best}
    assert set(numbers["setting"]) == {"full_access", "held_out_tasks"}
    assert ("on the test set, as in the paper; that flatters" in markdown) == ("choose" in settings)
    assert ("on the validation set (the paper: on the test set)" in markdown) == ("choose" not in settings)


def test_the_ft_head_during_pt(tmp_path: Path) -> None:
    """Two arms count iterations of ten PT steps. Without series, the figure shows the ends."""
    runs = written("during_pretraining", tmp_path)
    numbers = runs.tabled()[0]
    ends = numbers[numbers["minus"].isna()].set_index(["evaluation", "arm"])
    assert ends.loc[("test", "meta"), "mean"] == pytest.approx(76.0)
    assert ends.loc[("validation", "cotrain"), "paper_mean"] == 83.1
    gaps = numbers[numbers["minus"].notna()].set_index(["evaluation", "minus"])
    assert gaps.loc[("test", "cotrain_pcgrad"), "mean"] == pytest.approx(7.0)
    for axis in runs.experiment.figure(runs.results()).axes:
        steps = [max(line.get_xdata()) for line in axis.lines if len(line.get_xdata()) > 1]
        assert len(steps) >= 4
        assert set(steps) == {1000}
    runs.inputs = {name: path for name, path in runs.inputs.items() if not name.endswith("/series")}
    assert len(runs.experiment.figure(runs.results()).axes) == 2


def test_cka_is_symmetric(tmp_path: Path) -> None:
    numbers = written("representations", tmp_path, representations=FEW).tabled()[0].set_index(["arm", "other"])["mean"]
    assert numbers[("no_pt", "meta")] == numbers[("meta", "no_pt")] == pytest.approx(0.78)
    assert numbers[("meta", "meta")] == 1.0


def test_learned_weights(tmp_path: Path) -> None:
    numbers, markdown = written("learned_weights", tmp_path, source="simulated").tabled()
    rows = numbers[numbers["seeds"].notna()].set_index("arm")
    assert rows.loc["meta-stable", "agreement"] > 0.9
    assert abs(rows.loc["meta", "agreement"]) < 0.3
    assert rows.loc["meta-stable", "planted"] > 0.95
    apart = numbers[numbers["half_iqr"].notna()]
    gaps = np.abs(weights_of("meta", "full_access", 1) - weights_of("cotrain_learned_weights", "full_access", 1))
    assert apart["median"].iloc[1] == pytest.approx(np.median(gaps))
    tasks = numbers[(numbers["arm"] == "meta-stable") & numbers["task"].notna()]
    assert len(tasks) == 60
    assert tasks["weight"].is_monotonic_decreasing
    e = estimate_mean(apart["median"])
    assert mean_and_error(e.mean, e.standard_error) in markdown
    assert "process number 0 of a cell" in markdown
    assert "planted use" in markdown


def test_negative_transfer_counts_tasks_that_lose_against_training_from_scratch(tmp_path: Path) -> None:
    runs = written("negative_transfer", tmp_path, negative_transfer={"arms": ["graph_supervised", "meta"]})
    numbers, markdown = runs.tabled()
    table = numbers.set_index(["arm", "evaluation", "task"])
    assert table.loc[("graph_supervised", "full_transfer", 0), "change"] == pytest.approx(-3.0)
    assert table.loc[("meta", "linear_evaluation", 0), "change"] == pytest.approx(2.0)
    assert math.isnan(table.loc[("meta", "full_transfer", 7), "change"])
    assert "28.57 ± 0" in markdown, "two of the seven tasks that can be scored"
    assert "-3.0, function number 0" in markdown
    drawn = runs.experiment.figure(runs.results()).axes
    assert [axis.get_title(loc="left") for axis in drawn] == ["graph supervised", "meta"]
    assert "29 % lose" in [text.get_text() for text in drawn[0].texts]
    runs.task_auroc = lambda arm, evaluation, seed: np.array([])
    with pytest.raises(DataError, match="no FT run with the AUROC of single tasks"):
        runs.experiment.figure(runs.write().results())


def test_negative_transfer_is_measured_against_an_arm_with_the_same_ft(tmp_path: Path) -> None:
    runs = runs_of("negative_transfer", tmp_path, negative_transfer={"arms": ["meta", "no_pt", "meta-released"]})
    scored = runs.task_auroc
    runs.task_auroc = lambda arm, evaluation, seed: (
        scored("no_pt", evaluation, seed) - 60.0 if arm == "no_pt-released" else scored(arm, evaluation, seed)
    )
    numbers, markdown = runs.write().tabled()
    change = numbers.set_index(["arm", "evaluation", "task"])["change"]
    assert change["meta-released", "full_transfer", 0] - change["meta", "full_transfer", 0] == pytest.approx(60)
    assert set(numbers["arm"]) == {"meta", "meta-released"}
    assert "no PT, released" in markdown


def test_cost_beside_the_papers_and_plain_pt_on_all_tasks_alike(tmp_path: Path) -> None:
    runs = written("cost", tmp_path, cost={"arms": ["meta", "meta-frozen", "related_only", "graph_supervised"]})
    numbers, markdown = runs.tabled()
    assert runs.results().plain == "graph_supervised"
    assert numbers.set_index("arm").loc["meta", "PT time per step (s), ratio"] == pytest.approx(1.6)
    assert "5 h, 8-9 GB" in markdown
    assert "Cost of FT from meta" in markdown
    assert "FT of the whole network" in markdown


@pytest.mark.parametrize(
    ("key", "section"), [("full_access", FEW), ("learned_weights", {"arms": ["meta", "meta-stable"]})]
)
def test_what_diverged_is_drawn_without_it(key: str, section: dict[str, Any], tmp_path: Path) -> None:
    runs = runs_of(key, tmp_path, pretrain_seeds=3, **{key: section})
    lost = lambda seed: np.where((np.arange(60) == 3) & (seed == 1), math.nan, 1)  # noqa: E731
    runs.gap = lambda arm, setting, seed: math.nan if seed == 1 and arm.startswith("meta") else 0.0
    runs.weight = lambda arm, setting, seed: weights_of(arm, setting, seed) * lost(seed)
    runs.experiment.figure(runs.write().results()).draw_without_rendering()
