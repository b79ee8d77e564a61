"""Results of PPI runs: cells, folds, and the agreement of weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from metapt.domains.ppi.config import ARMS, PpiFinetuning
from metapt.domains.ppi.experiments.learned_weights import agreement
from metapt.domains.ppi.quantities import RELATIVES
from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.metrics import NotMeasuredError
from metapt.twostage.aurocs import auroc_cells
from metapt.twostage.replicates import pretrain_seed

from .synthetic_results import SEED_SPREAD, Runs, runs_of, written


def held_out(folder: Path, **changes: Any) -> Runs:
    """Return the runs of one arm on the folds of held-out tasks."""
    runs = runs_of("held_out_tasks", folder, held_out_tasks={"arms": ["meta-stable"]})
    for name, change in changes.items():
        setattr(runs, name, change)
    return runs.write()


def test_an_arm_without_ft_data_has_its_full_access_runs_under_half_data(tmp_path: Path) -> None:
    results = written("half_data", tmp_path, half_data={"arms": ["graph_supervised", "meta"]}).results()
    assert set(results.metrics["setting"]) == {"full_access", "half_data"}
    assert len(results.runs("graph_supervised", "half_data", "full_transfer")) == 25
    with pytest.raises(NotMeasuredError):
        results.runs("meta", "full_access", "full_transfer")


def test_held_out_tasks_are_the_mean_of_the_folds(tmp_path: Path) -> None:
    results = held_out(tmp_path, auroc=lambda arm, setting, evaluation: 70.0 + int(setting[-1])).results()
    cell = auroc_cells(results).iloc[0]
    assert (cell["mean"], cell["n"]) == (pytest.approx(71.5), 4)
    assert cell["standard_error"] == pytest.approx(np.std([0, 1, 2, 3], ddof=1) / 2), "over the folds"
    assert cell["seed_standard_error"] == pytest.approx(np.std(SEED_SPREAD, ddof=1) / math.sqrt(5))
    assert results.papers_aurocs(["meta"]).set_index("evaluation").loc["linear_evaluation", "mean"] == 77.0


def test_folds_that_were_not_run_that_diverged_or_that_have_other_seeds(tmp_path: Path) -> None:
    cell = "meta-stable", "held_out_tasks", "full_transfer"
    runs = held_out(tmp_path, gap=lambda arm, setting, seed: math.nan if (setting[-1], seed) == ("2", 1) else 0.0)
    values = runs.results().runs(*cell)
    assert set(values[values.isna()].index) == {each for each in values.index if pretrain_seed(each) == 1}
    path = runs.inputs["finetune/meta-stable/held_out_3/seed4/metrics"]
    metrics.write(metrics.read(path).iloc[:0], path)
    with pytest.raises(DataError, match="other seeds"):
        runs.results().runs(*cell)
    runs.inputs = {name: path for name, path in runs.inputs.items() if "held_out_3" not in name}
    with pytest.raises(NotMeasuredError, match="held_out_3"):
        runs.results().runs(*cell)


def test_arms_that_share_pt_runs_have_their_weights(tmp_path: Path) -> None:
    arms = ARMS | {"tuned": ARMS["meta"].model_copy(update={"finetune": PpiFinetuning(epochs=1)})}
    runs = written("learned_weights", tmp_path, arms=arms, learned_weights={"arms": ["meta", "tuned"]})
    inputs = runs.summary.inputs
    for name in (name for name in inputs if name.startswith("pretrain/tuned/")):
        first = name.replace("/tuned/", "/meta/")
        assert inputs[name] == inputs[first]
        runs.inputs[name] = runs.inputs[first]
    results = runs.results()
    assert results.weights("tuned").equals(results.weights("meta"))
    assert results.pretraining("tuned", RELATIVES).equals(results.pretraining("meta", RELATIVES))
    assert results.machines["tuned"] == ["a machine"]
    assert results.weights("meta").shape == (60, 5)
    assert results.weights("meta")[2].to_numpy() == pytest.approx(runs.weight("meta", "full_access", 2))
    runs.inputs["tasks"].write_text("kind,task\ncoarse,0\n")
    with pytest.raises(DataError, match="not the list of tasks"):
        runs.tabled()


def test_agreement_is_the_mean_rank_correlation_jackknifed_over_seeds() -> None:
    """Of three seeds, leaving one out leaves one pair; two seeds have no spread, and one has no agreement."""
    weights = pd.DataFrame(np.random.default_rng(2).normal(size=(20, 3)))
    r = spearmanr(weights.to_numpy()).statistic
    pairs = np.array([r[1, 2], r[0, 2], r[0, 1]])
    for found in (agreement(weights), agreement(np.exp(weights))):  # only ranks count
        assert found.mean == pytest.approx(pairs.mean())
        assert found.standard_error == pytest.approx(math.sqrt(2 / 3 * ((pairs - pairs.mean()) ** 2).sum()))
    two = agreement(weights[[0, 1]])
    assert (two.mean, two.n) == (pytest.approx(pairs[2]), 2)
    assert math.isnan(two.standard_error)
    with pytest.raises(NotMeasuredError, match="needs two"):
        agreement(weights[[0]])
    for bad in (math.nan, math.inf):
        assert math.isnan(agreement(weights.replace(weights.iloc[3, 1], bad)).mean)
    assert math.isnan(agreement(weights.assign(**{"1": 1.0})).mean), "equal weights have no order"
