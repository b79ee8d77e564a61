"""The arms of an experiment, and paired differences: which are compared, and over which replicates."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from metapt.errors import DataError
from metapt.evaluation import metrics
from metapt.evaluation.results import DIFFERENCES, Results, compared, differences
from metapt.sections import ArmSection, ExperimentSection, Section
from metapt.twostage.quantities import pair
from metapt.twostage.results import TwoStageResults


class Inner(Section):
    terms: int = 1


class Arm(ArmSection):
    lr: float = 0.1
    inverse: Inner = Inner()
    pretrain: dict[str, Any] = {}
    source: dict[str, Any] | None = None


class Own(ExperimentSection):
    arms: dict[str, Arm] = {"z": Arm(), "y": Arm()}


def results(values: dict[str, list[float]], kind: type[Results] = Results, **words: str) -> Any:
    rows = [
        metrics.row("some", arm, "score", value, replicate=pair(i, 0) if kind is TwoStageResults else i, **words)
        for arm, numbers in values.items()
        for i, value in enumerate(numbers)
    ]
    empty, section = pd.DataFrame(), Own(arms={name: Arm() for name in values})
    return kind("some", SimpleNamespace(), section, metrics.validate(rows), empty, {}, {})


def test_a_number_is_one_cell_of_the_metrics_table() -> None:
    table = [metrics.row("some", "a", "score", 0.1, replicate=i, setting="x" * i) for i in range(2)]
    found = Results("some", None, None, metrics.validate(table), pd.DataFrame(), {}, {})
    assert found.values("a", "score", "").to_dict() == {0: 0.1}
    with pytest.raises(
        metrics.NotMeasuredError, match="No run has measured experiment 'some', arm 'b', metric 'score'"
    ):
        found.values("b", "score")
    with pytest.raises(DataError, match="stands for 2 different numbers"):
        found.values("a", "score")


def test_an_arm_is_compared_with_the_one_that_it_extends() -> None:
    arms = {
        "a": Arm(),
        "b": Arm(extends="a", lr=1),
        "c": Arm(extends="b", lr=2, inverse=Inner(terms=5)),
        "d": Arm(extends="left out", lr=3),
        "own": Arm(extends="a", pretrain={"crop": 0.2}),
        "taken": Arm(extends="a", source={"of": "b"}),
        "same": Arm(extends="a"),
    }
    extended = {
        ("b", "a"): "lr: 1.0, not 0.1",
        ("c", "b"): "inverse.terms: 5, not 1; lr: 2.0, not 1.0",
        ("own", "a"): "pretrain.crop: 0.2, not the domain's",
        ("taken", "a"): "source.of: b, not None",
        ("same", "a"): "",
    }
    assert compared(arms, []) == extended
    claimed = [("a", "x"), ("b", ""), ("b", "a"), ("a", "x"), ("a", "a")]
    found = compared(arms, claimed)
    assert list(found)[:2] == [("a", "x"), ("b", "a")], "pairs of claims come first, each once"
    assert found == extended | {("a", "x"): "", ("b", "a"): ""}


def test_the_arms_of_an_experiment_are_its_own_or_its_domains() -> None:
    own = results({"a": [1.0], "y": [1.0], "z": [1.0]})
    assert list(own.arm_settings()) == ["z", "y", "a"], "what a config adds comes last"
    names = SimpleNamespace(arms=["b", "unknown"], arm_names=lambda: ["b", "unknown"])
    of_domain = Results("x", SimpleNamespace(arms={"b": Arm(), "c": Arm()}), names, own.metrics, own.series, {}, {})
    assert list(of_domain.arm_settings()) == ["b"]
    assert results({"a": [1.0]}, TwoStageResults).arm_settings() == {"a": Arm()}


def test_differences_are_paired_by_replicate() -> None:
    table = differences(results({"a": [1.0, 2.0, 3.0], "b": [2.0, 4.0, 3.0]}, setting="s"), {("b", "a"): "lr"})
    assert list(table) == DIFFERENCES
    [row] = table.to_dict("records")
    assert (row["arm"], row["control"], row["changed"], row["setting"], row["n"]) == ("b", "a", "lr", "s", 3)
    assert (row["mean"], row["standard_error"]) == pytest.approx((1, 1 / math.sqrt(3)))
    lonely = results({"a": [1.0, 2.0], "b": [2.0]})
    assert differences(lonely, {("b", "a"): "", ("a", "x"): ""}).empty, "what only one arm has is left out"


def test_fine_tuning_runs_of_one_encoder_are_one_replicate() -> None:
    found = results({"a": [1.0, 2.0], "b": [2.0, 4.0]}, TwoStageResults, evaluation="linear_evaluation")
    again = found.metrics.assign(replicate=found.metrics["replicate"] + 1, value=found.metrics["value"] + 10)
    object.__setattr__(found, "metrics", pd.concat([found.metrics, again]))
    [row] = differences(found, {("b", "a"): ""}).to_dict("records")
    assert (row["n"], row["mean"]) == (2, 1.5)
