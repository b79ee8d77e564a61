"""Validation results along FT agree with test results as Spearman's correlation over settings says."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from metapt.errors import DataError
from metapt.evaluation.headroom import REFERENCE
from metapt.evaluation.objectives import agreements, figure, table

SETTINGS = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 5.0}


def runs() -> pd.DataFrame:
    rows = [
        ("e", "d", "p", "full_transfer", setting, value, seed, 0, 60 + value, 70 + value + 0.1 * seed)
        for setting, value in (SETTINGS | {REFERENCE: 1.5}).items()
        for seed in range(3)
    ]
    columns = "experiment domain problem evaluation setting strength pretrain_seed finetune_seed validation test"
    return pd.DataFrame(rows, columns=columns.split())


def epochs() -> pd.DataFrame:
    """Return results that have the wrong order after the first epoch, and the right one after the tenth."""
    rows = [
        ("linear_evaluation", setting, seed, epoch, sign * value)
        for setting, value in SETTINGS.items()
        for seed in range(3)
        for epoch, sign in ((1, -1), (10, 1))
    ]
    return pd.DataFrame(rows, columns=["evaluation", "setting", "pretrain_seed", "epoch", "validation"])


def test_the_agreement_is_the_rank_correlation_with_the_test_results_of_the_other_pt_seeds() -> None:
    first, tenth, ceiling = agreements(runs(), epochs())
    assert (first.objective, first.epoch, first.evaluation) == ("linear_evaluation", 1, "full_transfer")
    assert first.spearman.mean == pytest.approx(-1)
    assert tenth.spearman.mean == pytest.approx(1)
    assert (ceiling.epoch, ceiling.spearman.mean) == (None, pytest.approx(1))
    assert first.spearman.n == 3


def test_a_seed_is_not_compared_with_its_own_test_results() -> None:
    own = runs()
    own.loc[own["pretrain_seed"] == 0, "test"] *= -1
    ceiling = list(agreements(own, epochs()))[-1]
    assert ceiling.spearman.mean < 0


def test_missing_results_are_an_error() -> None:
    with pytest.raises(DataError, match="linear_evaluation after epoch 1 lack"):
        list(agreements(runs(), epochs().iloc[1:]))


def test_a_run_that_diverged_is_no_knowledge_and_a_test_that_diverged_is_no_number() -> None:
    lost, unknown = epochs(), runs()
    lost.loc[lost["pretrain_seed"] == 0, "validation"] = math.nan
    first, tenth, ceiling = agreements(runs(), lost)
    assert (first.spearman.mean, tenth.spearman.mean) == pytest.approx((-2 / 3, 2 / 3))
    assert ceiling.spearman.mean == pytest.approx(1)
    unknown.loc[(unknown["pretrain_seed"] == 0) & (unknown["setting"] == "a"), "test"] = math.nan
    assert math.isnan(next(agreements(unknown, epochs())).spearman.mean)


def test_the_figure_has_a_panel_for_each_evaluation_and_a_line_for_each_objective() -> None:
    found = list(agreements(runs(), epochs()))
    (axis,) = [each for each in figure(found, {"full_transfer": "FT"}).axes if each.get_title(loc="left")]
    assert "FT" in axis.get_title(loc="left")
    assert len(axis.containers) == 1


def test_the_table_has_a_row_for_each_objective_and_epoch_and_the_ceilings_last() -> None:
    found = table(list(agreements(runs(), epochs())), {"full_transfer": "FT", "linear_evaluation": "a head"})
    assert found.to_numpy().tolist() == [
        ["a head", "1", "-1.00 ± 0.00"],
        ["a head", "10", "1.00 ± 0.00"],
        ["test AUROC of one PT seed", "–", "1.00 ± 0.00"],
    ]
    assert list(found) == ["objective", "FT epochs", "correlation with the test AUROC, FT"]
