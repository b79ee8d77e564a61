"""Verdicts of the MNIST experiments, from metrics with known answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pytest

from metapt.domains.mnist import quantities
from metapt.domains.mnist.config import (
    BpttStudy,
    ExampleWeighting,
    Fidelity,
    MnistMeta,
    MnistSettings,
    RotationMean,
    RotationMeanStd,
    Study,
)
from metapt.domains.mnist.domain import DOMAIN
from metapt.domains.mnist.results import MnistResults
from metapt.evaluation import metrics
from metapt.evaluation.comparisons import BEYOND_THE_PAPER, judge
from metapt.evaluation.metrics import row

SPREAD = (-0.3, 0.0, 0.1, 0.2, 0.0)
"""What a replicate adds to the numbers of every arm."""

Values = Mapping[tuple[str, str, str], float]
"""Arm, metric, setting -> mean over the replicates, about."""


def verdicts(key: str, section: Study, values: Values) -> pd.DataFrame:
    """Return the rows of claims.csv by claim."""
    arms = list(dict.fromkeys(arm for arm, _, _ in values))
    rows = [
        row(f"mnist_{key}", arm, metric, value + d, replicate=i, setting=setting)
        for (arm, metric, setting), value in values.items()
        for i, d in enumerate(SPREAD)
    ]
    results = MnistResults(
        name=f"mnist_{key}",
        config=MnistSettings(),
        section=section.model_copy(update={"arms": {arm: section.arms[arm] for arm in arms}}),
        words={},
        metrics=metrics.validate(rows),
        series=pd.DataFrame(),
        machines={},
        files={},
    )
    judged = judge(results.name, DOMAIN.experiments[key].comparisons(results))
    assert (judged["experiment"] == f"mnist_{key}").all()
    assert set(judged["metric"]) <= set(results.metrics["metric"])
    return judged.set_index("claim")


@pytest.mark.parametrize(("error", "word"), [(3.0, "reproduced"), (7.2, "inconclusive"), (30.0, "not reproduced")])
def test_the_mean_of_the_rotation(error: float, word: str) -> None:
    found = verdicts("rotation_mean", RotationMean(), {("meta", quantities.ERROR, ""): error})
    assert found["verdict"].to_dict() == {"meta recovers the mean of the FT rotation": word}


@pytest.mark.parametrize(("error", "word"), [(0.0, "reproduced"), (8.0, "not reproduced"), (-8.0, "not reproduced")])
def test_mean_and_deviation_of_the_rotation_lie_near_the_target_on_both_sides(error: float, word: str) -> None:
    study = RotationMeanStd()
    values = {
        ("meta", metric, quantities.setting_mean_std(study, start)): target + error
        for start in range(len(study.starts))
        for metric, target in zip((quantities.MEAN, quantities.DEVIATION), study.target, strict=True)
    }
    found = verdicts("rotation_mean_std", study, values)
    assert len(found) == 2 * len(study.starts)
    assert set(found["verdict"]) == {word}
    assert set(found["criterion"]) == {"within 4 of 45", "within 3 of 15"}


def test_a_start_that_the_paper_lacks_has_no_number_of_the_paper() -> None:
    study = RotationMeanStd(starts=[(0.0, 1.0), (10.0, 1.0)])
    values = {
        ("meta", metric, quantities.setting_mean_std(study, start)): 45.0
        for start in range(2)
        for metric in (quantities.MEAN, quantities.DEVIATION)
    }
    papers = verdicts("rotation_mean_std", study, values)["paper"]
    assert papers.tolist() == ["45.9 degrees", "15.5 degrees", BEYOND_THE_PAPER, BEYOND_THE_PAPER]


@pytest.mark.parametrize("change", [{"epochs": 1}, {"target": 45.0}, {"initial_range": (0.0, 10.0)}])
def test_another_study_has_no_number_of_the_paper(change: dict[str, Any]) -> None:
    values, words = {("meta", quantities.ERROR, ""): 3.0}, "mean error 7.2 ± 1.5 degrees"
    assert verdicts("rotation_mean", RotationMean(replicates=3), values)["paper"].item() == words
    assert verdicts("rotation_mean", RotationMean(**change), values)["paper"].item() == BEYOND_THE_PAPER


@pytest.mark.parametrize("change", [{}, {"epochs": 1}, {"arms": {"meta": MnistMeta(meta_lr=0.1)}}])
def test_the_table_has_the_papers_numbers_beside_its_own_settings_only(change: dict[str, Any]) -> None:
    section, words = RotationMean(**change), {"setting": "10 initialisations in [45,135], target 90"}
    rows = [row("mnist_rotation_mean", "meta", quantities.ERROR, 3.0 + i, replicate=i, **words) for i in range(5)]
    made = (MnistSettings(), section, {}, metrics.validate(rows), pd.DataFrame(), {}, {})
    table = MnistResults("mnist_rotation_mean", *made).beside_paper("").numbers
    assert table["paper_mean"].notna().any() == (not change)


@pytest.mark.parametrize(("ratio", "word"), [(1000.0, "reproduced"), (100.0, "inconclusive"), (10.0, "not reproduced")])
def test_clean_examples_weigh_a_hundred_times_more(ratio: float, word: str) -> None:
    found = verdicts("example_weighting", ExampleWeighting(), {("meta", quantities.RATIO, ""): ratio})
    assert found["verdict"].tolist() == [word]
    assert found["criterion"].tolist() == ["ratio at least 100"]
    assert found["measured"].iloc[0].startswith("log10 of the ratio: ")


def backpropagation(accuracies: Mapping[str, float], slow: float, end: str) -> Values:
    """Return numbers of the arms whose names end with `end`; backpropagation takes `slow` seconds, the others 60."""
    values = {(arm + end, quantities.ACCURACY, ""): value for arm, value in accuracies.items()}
    times = {(arm + end, quantities.WALL_TIME, ""): slow if arm == "bptt" else 60.0 for arm in accuracies}
    return values | times


ACCURACIES = {
    "meta": 87.6, "bptt": 88.0, "bptt_limited": 83.4, "optimal_augmentation": 90.0, "initial_augmentation": 80.1
}  # fmt: skip


@pytest.mark.parametrize("suffix", ["", "-shared"])
def test_which_arm_of_the_comparison_with_backpropagation_is_better(suffix: str) -> None:
    other = dict(zip(ACCURACIES, (87.6, 95.0, 88.0, 87.0, 87.0), strict=True))
    end = "" if suffix else "-shared"
    values = {**backpropagation(ACCURACIES, 7200.0, suffix), **backpropagation(other, 70.0, end)}
    rows = verdicts("bptt", BpttStudy(), values)
    named = [claim.removesuffix(", at the same wall time").rpartition(" ")[2] for claim in rows.index]
    assert (rows["control"] == named).all()
    assert (rows["arm"] == [claim.partition(" ")[0] for claim in rows.index]).all()
    found = rows["verdict"]
    meta = f"meta{suffix}"
    assert found[f"{meta} comes within 1 point of bptt{suffix}"] == "reproduced"
    assert found[f"{meta} comes within 1 point of optimal_augmentation{suffix}"] == "not reproduced"
    assert found[f"{meta} is at least 4 points better than initial_augmentation{suffix}"] == "reproduced"
    assert found[f"{meta} beats bptt_limited{suffix}, at the same wall time"] == "reproduced"
    assert found[f"{meta} is at least 20 times faster than bptt{suffix}"] == "reproduced"
    assert found[f"meta{end} comes within 1 point of bptt{end}"] == "not reproduced"
    assert found[f"meta{end} comes within 1 point of optimal_augmentation{end}"] == "reproduced"
    assert found[f"meta{end} is at least 4 points better than initial_augmentation{end}"] == "not reproduced"
    assert found[f"meta{end} beats bptt_limited{end}, at the same wall time"] == "not reproduced"
    assert found[f"meta{end} is at least 20 times faster than bptt{end}"] == "not reproduced"


def test_backpropagation_that_ends_no_better_than_its_start_is_not_beaten() -> None:
    accuracies = ACCURACIES | {"bptt": 78.6, "bptt_limited": 79.6, "initial_augmentation": 79.6}
    rows = verdicts("bptt", BpttStudy(), backpropagation(accuracies, 7200.0, ""))
    failed = rows[rows["verdict"] == "control failed"]
    assert failed["control"].tolist() == ["bptt", "bptt_limited", "bptt"]
    assert "not shown that bptt beats initial_augmentation, its start: -1.0" in failed["measured"].iloc[0]
    assert (rows.loc[~rows["control"].str.startswith("bptt"), "verdict"] != "control failed").all()


def test_a_shorter_comparison_with_backpropagation_has_no_number_of_the_paper() -> None:
    values = backpropagation(ACCURACIES, 7200.0, "")
    assert BEYOND_THE_PAPER not in set(verdicts("bptt", BpttStudy(), values)["paper"])
    assert set(verdicts("bptt", BpttStudy(pretrain_steps=50), values)["paper"]) == {BEYOND_THE_PAPER}
    arms = BpttStudy().arms
    fewer = BpttStudy(arms=arms | {"bptt": arms["bptt"].model_copy(update={"outer_steps": 5})})
    found = verdicts("bptt", fewer, values).groupby("control")["paper"].unique()
    assert found["bptt"].tolist() == [BEYOND_THE_PAPER]
    assert found["optimal_augmentation"].tolist() == ["87.6 against 88.3 %"]


@pytest.mark.parametrize(("gain", "word"), [(0.1, "reproduced"), (-0.1, "not reproduced")])
def test_more_neumann_terms_point_nearer_to_the_exact_hypergradient(gain: float, word: str) -> None:
    section = Fidelity(neumann_terms=[1, 9], pretrain_steps=[5, 10], unroll_steps=[1, 3])
    values = {
        ("head", quantities.COSINE, quantities.setting_fidelity(steps, k, terms)): (
            0.5 + (gain if (steps, k) == (10, 3) else -gain) * (terms == 9)
        )
        for steps in (5, 10)
        for k in (1, 3)
        for terms in (1, 9)
    }
    assert verdicts("fidelity", section, values)["verdict"].tolist() == [word]
