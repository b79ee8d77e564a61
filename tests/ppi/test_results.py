"""Results of PPI runs: cells, folds, and the agreement of weights."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from metapt.domains.ppi.aurocs import auroc_cells
from metapt.domains.ppi.config import ARMS, PpiFinetuning
from metapt.domains.ppi.quantities import RELATIVES
from metapt.domains.ppi.results import PpiResults
from metapt.domains.ppi.weights import agreement, correlations
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.metrics import NotMeasuredError
from metapt.twostage.replicates import pretrain_seed

from .synthetic_results import SEED_SPREAD, Runs, runs_of


def results_of(runs: Runs) -> PpiResults:
    runs.write()
    return runs.results()


def test_an_arm_without_ft_data_has_its_full_access_runs_under_half_data(tmp_path: Path) -> None:
    results = results_of(runs_of("half_data", tmp_path, half_data={"arms": ["graph_supervised", "meta"]}))
    assert set(results.metrics["setting"]) == {"full_access", "half_data"}
    assert len(results.runs("graph_supervised", "half_data", "full_transfer")) == 25
    with pytest.raises(NotMeasuredError):
        results.runs("meta", "full_access", "full_transfer")


def test_held_out_tasks_are_the_mean_of_the_folds(tmp_path: Path) -> None:
    runs = runs_of("held_out_tasks", tmp_path, held_out_tasks={"arms": ["meta-stable"]})
    runs.auroc = lambda arm, setting, evaluation: 70.0 + int(setting[-1])
    cell = auroc_cells(results_of(runs), ["held_out_tasks"]).iloc[0]
    assert cell["mean"] == pytest.approx(71.5)
    assert cell["n"] == 4
    assert cell["standard_error"] == pytest.approx(np.std([0, 1, 2, 3], ddof=1) / 2), "over the folds"
    assert cell["seed_standard_error"] == pytest.approx(np.std(SEED_SPREAD, ddof=1) / math.sqrt(5))


def test_a_fold_that_was_not_run_leaves_no_mean(tmp_path: Path) -> None:
    runs = runs_of("held_out_tasks", tmp_path, held_out_tasks={"arms": ["meta"]})
    runs.write()
    runs.inputs = {name: path for name, path in runs.inputs.items() if "held_out_3" not in name}
    results = runs.results()
    with pytest.raises(NotMeasuredError, match="held_out_3"):
        results.runs("meta", "held_out_tasks", "full_transfer")


def test_a_fold_that_diverged_leaves_no_number_for_its_seeds(tmp_path: Path) -> None:
    runs = runs_of("held_out_tasks", tmp_path, held_out_tasks={"arms": ["meta"]})
    runs.gap = lambda arm, setting, seed: math.nan if (setting, seed) == ("held_out_2", 1) else 0.0
    values = results_of(runs).runs("meta", "held_out_tasks", "full_transfer")
    assert set(values[values.isna()].index) == {
        replicate for replicate in values.index if pretrain_seed(replicate) == 1
    }


def test_folds_of_other_seeds_are_an_error(tmp_path: Path) -> None:
    runs = runs_of("held_out_tasks", tmp_path, held_out_tasks={"arms": ["meta"]})
    runs.write()
    path = runs.inputs["finetune/meta/held_out_3/seed4/metrics"]
    metrics.write(metrics.read(path).iloc[:0], path)
    results = runs.results()
    with pytest.raises(DataError, match="other seeds"):
        results.runs("meta", "held_out_tasks", "full_transfer")


def test_arms_that_share_pt_runs_have_their_weights(tmp_path: Path) -> None:
    arms = ARMS | {"tuned": ARMS["meta"].model_copy(update={"finetune": PpiFinetuning(epochs=1)})}
    runs = runs_of("learned_weights", tmp_path, arms=arms, learned_weights={"arms": ["meta", "tuned"]})
    runs.write()
    inputs = runs.summary.inputs
    for name in (name for name in inputs if name.startswith("pretrain/tuned/")):
        first = name.replace("/tuned/", "/meta/")
        assert inputs[name] == inputs[first]
        runs.inputs[name] = runs.inputs[first]
    results = runs.results()
    assert results.weights("tuned").equals(results.weights("meta"))
    assert results.pretraining("tuned", RELATIVES).equals(results.pretraining("meta", RELATIVES))
    assert results.machines["tuned"] == ["a machine"]


def test_weights_by_task_and_seed(tmp_path: Path) -> None:
    runs = runs_of("learned_weights", tmp_path, learned_weights={"arms": ["meta"]})
    weights = results_of(runs).weights("meta")
    assert weights.shape == (60, 5)
    assert weights[2].to_numpy() == pytest.approx(runs.weight("meta", "full_access", 2))


def test_correlations_are_spearmans() -> None:
    weights = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 3)).cumsum(axis=1))
    assert correlations(weights) == pytest.approx(spearmanr(weights.to_numpy()).statistic)
    assert correlations(np.exp(weights)) == pytest.approx(correlations(weights)), "only ranks count"


def test_agreement_of_equal_and_of_unlike_weights() -> None:
    weights = pd.DataFrame(np.random.default_rng(1).normal(size=(2000, 5)))
    equal = agreement(pd.concat([weights[0]] * 4, axis=1))
    assert (equal.mean, equal.standard_error, equal.n) == (pytest.approx(1), pytest.approx(0, abs=1e-9), 4)
    unlike = agreement(weights)
    assert unlike.low < 0 < unlike.high
    assert abs(unlike.mean) < 0.05


def test_agreement_is_jackknifed_over_seeds() -> None:
    """Use three seeds, of which leaving one out leaves one pair."""
    weights = pd.DataFrame(np.random.default_rng(2).normal(size=(20, 3)))
    r = correlations(weights)
    pairs = np.array([r[1, 2], r[0, 2], r[0, 1]])
    found = agreement(weights)
    assert found.mean == pytest.approx(pairs.mean())
    assert found.standard_error == pytest.approx(math.sqrt(2 / 3 * ((pairs - pairs.mean()) ** 2).sum()))


def test_agreement_of_two_seeds_has_no_spread_and_of_one_none() -> None:
    weights = pd.DataFrame(np.random.default_rng(3).normal(size=(20, 2)))
    found = agreement(weights)
    assert (found.mean, found.n) == (pytest.approx(correlations(weights)[0, 1]), 2)
    assert math.isnan(found.standard_error)
    with pytest.raises(NotMeasuredError, match="needs two"):
        agreement(weights[[0]])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_not_finite_or_all_equal_agree_with_nothing(bad: float) -> None:
    weights = pd.DataFrame(np.random.default_rng(4).normal(size=(20, 3)))
    assert math.isnan(agreement(weights.assign(**{"1": 1.0})).mean)
    weights.iloc[3, 1] = bad
    assert math.isnan(agreement(weights).mean)


def test_the_papers_numbers(tmp_path: Path) -> None:
    results = results_of(runs_of("during_pretraining", tmp_path))
    cells = results.papers_aurocs(["meta"], name="ppi_held_out_tasks").set_index("evaluation")
    assert cells.loc["linear_evaluation", "mean"] == 77.0
    assert results.papers_number("cotrain", "test AUROC (%)") == 67.3
    assert math.isnan(results.papers_number("meta-stable", "test AUROC (%)"))


def test_a_list_of_tasks_that_is_none(tmp_path: Path) -> None:
    runs = runs_of("learned_weights", tmp_path, learned_weights={"arms": ["meta"]})
    runs.write()
    runs.inputs["tasks"].write_text("kind,task\ncoarse,0\n")
    with pytest.raises(DataError, match="not the list of tasks"):
        runs.tabled()
