"""Verdicts of the MNIST experiments, from metrics whose answers are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pytest

from metapt.domains.mnist import quantities
from metapt.domains.mnist.config import RotationMeanStd
from metapt.domains.mnist.experiments import EXPERIMENTS
from metapt.domains.mnist.studies import bptt as bptt_study
from metapt.domains.mnist.studies import fidelity as fidelity_study
from metapt.domains.mnist.studies import rotation as rotation_study
from metapt.domains.mnist.studies import weighting as weighting_study
from metapt.evaluation import metrics
from metapt.evaluation.claims import judge
from metapt.evaluation.metrics import row

SPREAD = (-0.3, 0.0, 0.1, 0.2)
"""What a replicate adds to the numbers of every arm."""

Values = Mapping[tuple[str, str, str], float]
"""Arm, metric, setting -> mean over the replicates, about."""


def verdicts(key: str, settings: dict[str, Any], values: Values, whole_run: tuple[str, ...] = ()) -> pd.Series[str]:
    """By claim; metrics in `whole_run` have one number per arm."""
    arms = list(dict.fromkeys(arm for arm, _, _ in values))
    rows = []
    for (arm, metric, setting), value in values.items():
        if metric in whole_run:
            rows.append(row(f"mnist_{key}", arm, metric, value, setting=setting))
        else:
            rows += [row(f"mnist_{key}", arm, metric, value + d, replicate=i, setting=setting) for i, d in enumerate(SPREAD)]
    judged = judge(EXPERIMENTS[key].claims(settings, arms), metrics.validate(rows))
    assert (judged["experiment"] == f"mnist_{key}").all()
    return judged.set_index("claim")["verdict"]


@pytest.mark.parametrize(("error", "word"), [(3.0, "reproduced"), (7.2, "inconclusive"), (30.0, "not reproduced")])
def test_the_mean_of_the_rotation(error: float, word: str) -> None:
    found = verdicts("rotation_mean", {}, {("meta", rotation_study.ERROR, ""): error})
    assert found.to_dict() == {"meta recovers the mean of the FT rotation": word}


@pytest.mark.parametrize(("error", "word"), [(0.0, "reproduced"), (8.0, "not reproduced"), (-8.0, "not reproduced")])
def test_mean_and_deviation_of_the_rotation_lie_near_the_target_on_both_sides(error: float, word: str) -> None:
    study = RotationMeanStd()
    values = {
        ("meta", metric, rotation_study.setting_mean_std(study, start)): target + error
        for start in range(len(study.starts))
        for metric, target in zip((rotation_study.MEAN, rotation_study.DEVIATION), study.target, strict=True)
    }
    found = verdicts("rotation_mean_std", study.model_dump(), values)
    assert len(found) == 2 * len(study.starts)
    assert set(found) == {word}


@pytest.mark.parametrize(("ratio", "word"), [(1000.0, "reproduced"), (100.0, "inconclusive"), (10.0, "not reproduced")])
def test_clean_examples_weigh_a_hundred_times_more(ratio: float, word: str) -> None:
    assert verdicts("example_weighting", {}, {("meta", weighting_study.RATIO, ""): ratio}).tolist() == [word]


@pytest.mark.parametrize("suffix", ["", "-shared"])
def test_which_arm_of_the_comparison_with_backpropagation_is_better(suffix: str) -> None:
    accuracies = {"meta": 87.6, "bptt": 88.0, "optimal_augmentation": 90.0, "initial_augmentation": 80.1}
    other = {"meta": 87.6, "bptt": 95.0, "optimal_augmentation": 87.0, "initial_augmentation": 87.0}
    values = {}
    for end, numbers, slow in ((suffix, accuracies, 7200.0), ("" if suffix else "-shared", other, 70.0)):
        for arm, value in numbers.items():
            values[arm + end, bptt_study.ACCURACY, ""] = value
            values[arm + end, bptt_study.WALL_TIME, ""] = slow if arm == "bptt" else 60.0
    found = verdicts("bptt", {}, values, whole_run=(bptt_study.WALL_TIME,))
    meta = f"meta{suffix}"
    assert found[f"{meta} comes within 1 point of bptt{suffix}"] == "reproduced"
    assert found[f"{meta} comes within 1 point of optimal_augmentation{suffix}"] == "not reproduced"
    assert found[f"{meta} is at least 4 points better than initial_augmentation{suffix}"] == "reproduced"
    assert found[f"{meta} is at least 20 times faster than bptt{suffix}"] == "reproduced"
    end = "" if suffix else "-shared"
    assert found[f"meta{end} comes within 1 point of bptt{end}"] == "not reproduced"
    assert found[f"meta{end} comes within 1 point of optimal_augmentation{end}"] == "reproduced"
    assert found[f"meta{end} is at least 4 points better than initial_augmentation{end}"] == "not reproduced"
    assert found[f"meta{end} is at least 20 times faster than bptt{end}"] == "not reproduced"


@pytest.mark.parametrize(("gain", "word"), [(0.1, "reproduced"), (-0.1, "not reproduced")])
def test_more_neumann_terms_point_nearer_to_the_exact_hypergradient(gain: float, word: str) -> None:
    settings = {"neumann_terms": [1, 9], "pretrain_steps": [5, 10], "unroll_steps": [1, 3]}
    values = {
        ("meta", fidelity_study.COSINE, quantities.setting_fidelity(steps, k, terms)): (
            0.5 + (gain if (steps, k) == (10, 3) else -gain) * (terms == 9)
        )
        for steps in (5, 10)
        for k in (1, 3)
        for terms in (1, 9)
    }
    assert verdicts("fidelity", settings, values).tolist() == [word]
